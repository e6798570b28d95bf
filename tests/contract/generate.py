"""Files made from other files: write them, or say which are stale. `python -m tests.contract.generate [--check]`.

Owns the list of generators and the comparison with the tree; `make generate` writes, `make check` compares. A
generator is pure with respect to the tree: it returns what should be there and never writes. To add one, write a
function in a module of its own and add a line to `GENERATORS`.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

from tests.contract.chart import chart
from tests.contract.crds import crds
from tests.contract.editor_schema import editor_schema
from tests.contract.protobuf import protobuf_code
from tests.contract.reference import reference

ROOT: Final = Path(__file__).resolve().parents[2]

Files: TypeAlias = Mapping[Path, bytes]
"""Path below the repository's root -> content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """What is made, and the globs it alone fills: a file that matches and is not produced is extra."""

    produce: Callable[[], Files]
    owns: tuple[str, ...]


GENERATORS: Final = (
    Generator(produce=protobuf_code, owns=("operator/supervisor_middleware/wire/gen/*.py*",)),
    Generator(produce=crds, owns=("crds/*.yaml",)),
    Generator(
        produce=chart,
        owns=("charts/supervisor-middleware/templates/crds/*.yaml", "charts/supervisor-middleware/README.md"),
    ),
    Generator(produce=reference, owns=("docs/reference/*.md",)),
    Generator(produce=editor_schema, owns=("docs/reference/*.json",)),
)


class Drift(StrEnum):
    """How a file in the tree differs from what its generator makes."""

    MISSING = "missing"
    STALE = "stale"
    EXTRA = "extra"


def drifted(generator: Generator, *, root: Path = ROOT) -> dict[Path, Drift]:
    """Every file of `generator` that is not as it should be, sorted by path."""
    return dict(sorted(_compare(generator.produce(), owns=generator.owns, root=root).items()))


def write(generator: Generator, *, root: Path = ROOT) -> dict[Path, Drift]:
    """Bring the tree in line; what had to be changed."""
    files = generator.produce()
    changed = _compare(files, owns=generator.owns, root=root)
    for path, drift in changed.items():
        if drift is Drift.EXTRA:
            (root / path).unlink()
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(files[path])
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: fresh, or now written. 1: `--check` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract.generate", description="Generated files.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if a file is not fresh")
    checks = parser.parse_args(arguments).check
    found = {
        path: drift
        for g in GENERATORS
        for path, drift in (drifted(g, root=ROOT) if checks else write(g, root=ROOT)).items()
    }
    for path, drift in found.items():
        print(f"{drift}: {path.as_posix()}" if checks else f"written (was {drift}): {path.as_posix()}")  # noqa: T201
    if checks and found:
        print("run `make generate` and commit the result")  # noqa: T201
    return 1 if checks and found else 0


def _compare(files: Files, *, owns: tuple[str, ...], root: Path) -> dict[Path, Drift]:
    present = {path.relative_to(root) for pattern in owns for path in root.glob(pattern) if path.is_file()}
    differences = dict.fromkeys(present - files.keys(), Drift.EXTRA)
    for path, content in files.items():
        if not (root / path).is_file():
            differences[path] = Drift.MISSING
        elif (root / path).read_bytes() != content:
            differences[path] = Drift.STALE
    return differences


if __name__ == "__main__":
    sys.exit(main())
