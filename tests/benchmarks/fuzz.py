"""Fuzzing of what strangers send: files of policies and registrations, recorded manifests, manifests on the wire.

Whatever the bytes are, there is an answer in bounded time and memory, and it can be shown in every form.

    python -m tests.benchmarks.fuzz --seed 7 --seconds 60
"""

import argparse
import asyncio
import faulthandler
import io
import json
import random
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from supervisor_middleware.cli.offline.world import Options, gather
from supervisor_middleware.cli.rendering.forms import Form
from supervisor_middleware.cli.rendering.progress import Progress
from supervisor_middleware.cli.rendering.reports import render
from supervisor_middleware.cli.validate import result_of
from supervisor_middleware.model.manifest import Dialect, Manifest
from supervisor_middleware.wire.codec import ManifestUndecodable, decode_manifest, encode_manifest
from tests.benchmarks.figures import show
from tests.benchmarks.mutations import BOMBS, ROOT, mutated, objects, reshaped, text_seeds

SECONDS: Final = 60.0
SLOW_SECONDS: Final = 2.0
"""Of the core, for one input: longer is a failure."""
HANG_SECONDS: Final = 30.0
"""Of the clock, for one input: then every thread's stack is shown, and the process ends."""
MAX_GROWTH_MIB: Final = 256
_MAX_FAILURES: Final = 10
_WARM_UP: Final = 300

_RECORDED: Final = """\
registration: terms
name: terms
serviceVersion: 1.0.0
dialect: rfc0009
bindings:
- {id: acme/terms, operation: HTTP_REQUEST, phase: PRE_CREDENTIALS, maxBodyBytes: 1048576, timeout: 1s}
"""
_RECORDED_LIST: Final = """\
[{"registration": "old", "dialect": "released", "bindings":
  [{"id": "old", "operation": "HTTP_REQUEST", "phase": "PRE_CREDENTIALS", "maxBodyBytes": 1}]}]
"""


@dataclass(slots=True)
class Findings:
    """What came of it. A failure names the number of its input: the same seed makes the same inputs."""

    inputs: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)


class Fuzzer:
    """Makes inputs, one after another, and feeds each to one target."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = random.Random(seed)
        self._file, self._recorded = folder / "input.yaml", folder / "manifests.yaml"
        self._recorded.write_text(_RECORDED, encoding="utf-8")
        texts = text_seeds()
        self._texts = (*texts, *BOMBS)
        self._objects = objects(texts)
        self._records = (_RECORDED.encode(), _RECORDED_LIST.encode())
        self._record_objects = objects(self._records)
        self._wire = tuple(map(encode_manifest, _manifests(self._record_objects)))
        self._targets: tuple[tuple[Callable[[], bytes], Callable[[bytes], Awaitable[None]]], ...] = (
            (lambda: self._mutated(self._texts), self._validate),
            (lambda: self._reshaped(self._objects), self._validate),
            (lambda: self._mutated(self._records), self._validate_against),
            (lambda: self._reshaped(self._record_objects), self._validate_against),
            (lambda: self._mutated(self._wire), self._decode),
        )

    async def one(self) -> None:
        """Make an input and have it judged.

        Raises:
            Exception: whatever the product lets escape, which is the failure.
        """
        make, judge = self._chance.choice(self._targets)
        await judge(make())

    def _mutated(self, seeds: tuple[bytes, ...]) -> bytes:
        return mutated(self._chance.choice(seeds), other=self._chance.choice(seeds), chance=self._chance)

    def _reshaped(self, values: tuple[object, ...]) -> bytes:
        return reshaped(self._chance.choice(values), other=self._chance.choice(values), chance=self._chance)

    async def _validate(self, data: bytes) -> None:
        self._file.write_bytes(data)
        await _shown(Options(paths=(self._file,), manifests=(self._recorded,)))

    async def _validate_against(self, data: bytes) -> None:
        self._file.write_bytes(data)
        await _shown(Options(paths=(ROOT / "examples" / "quickstart",), manifests=(self._file,)))

    async def _decode(self, data: bytes) -> None:
        try:
            manifest = decode_manifest(data, registration_name="service")
        except ManifestUndecodable as error:
            str(error).encode()
            return
        kept = json.dumps({"registration": "terms", **manifest.to_json()})
        await self._validate_against(kept.encode())


async def fuzz(seed: int, *, goes_on: Callable[[int], bool], slow: float = float("inf")) -> Findings:
    """Feed inputs while `goes_on(number)`; an exception is a failure, and more than `slow` seconds of the core."""
    found = Findings()
    with TemporaryDirectory() as root:
        fuzzer = Fuzzer(seed, Path(root))
        while goes_on(found.inputs) and len(found.failures) < _MAX_FAILURES:
            began = time.process_time()
            try:
                await fuzzer.one()
            except Exception as error:  # noqa: BLE001 - an exception of any kind is what is looked for
                found.failures.append(f"input {found.inputs} of seed {seed}: {type(error).__name__}: {error}"[:500])
            taken = time.process_time() - began
            if taken > slow:
                found.failures.append(f"input {found.inputs} of seed {seed}: took {taken:.1f} s")
            found.inputs += 1
            found.slowest = max(found.slowest, taken)
    return found


async def run(*, seed: int = 1, seconds: float = SECONDS) -> None:
    """A minute of it. Ends with an error if anything failed."""
    ends = time.monotonic() + seconds

    def watched(number: int) -> bool:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        return time.monotonic() < ends

    warm = await fuzz(seed, goes_on=lambda number: number < _WARM_UP and watched(number), slow=SLOW_SECONDS)
    before = _resident_mib()
    began = time.monotonic()
    found = await fuzz(seed + 1, goes_on=watched, slow=SLOW_SECONDS)
    faulthandler.cancel_dump_traceback_later()
    grown = _resident_mib() - before
    failures = [*warm.failures, *found.failures]
    if grown > MAX_GROWTH_MIB:
        failures.append(f"seed {seed}: memory grew by {grown:.0f} MiB over {found.inputs} inputs")
    show("fuzz_seed", seed, "seed")
    show("fuzz_inputs_per_second", found.inputs / (time.monotonic() - began), "inputs/s")
    show("fuzz_inputs", found.inputs, "inputs")
    show("fuzz_slowest_input", found.slowest * 1e3, "ms")
    show("fuzz_memory_growth", grown, "MiB")
    show("fuzz_failures", len(failures), "failures")
    if failures:
        raise AssertionError("\n".join(failures))


async def _shown(options: Options) -> None:
    """Validate, and show the result in every form, as bytes for a pipe."""
    result = result_of(await gather(options, progress=Progress(io.StringIO())))
    for form in Form:
        out = io.StringIO()
        render(result, form, out=out)
        text = out.getvalue()
        text.encode()
        if form is Form.JSON:
            json.loads(text)


def _manifests(records: Iterable[Any]) -> Iterator[Manifest]:
    """In both dialects."""
    for record in records:
        for dialect in Dialect:
            yield Manifest.from_json({**record, "dialect": dialect.value})


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    asyncio.run(run(seed=given.seed, seconds=given.seconds))


if __name__ == "__main__":
    _main()
