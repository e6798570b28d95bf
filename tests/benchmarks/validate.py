"""`smw validate` as a pipeline runs it: one process on one core, over a folder and over one long file.

Beside it, in the same run: what PyYAML's C parser alone takes for the same bytes.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yaml

from tests.benchmarks.figures import show

COUNTS: Final = (100, 1_000, 10_000)
SPREAD: Final = 10
"""Policies of one namespace."""
_TURNS: Final = 5

_MANIFEST: Final = """\
registration: terms
name: terms
serviceVersion: 1.0.0
dialect: rfc0009
bindings:
- {id: acme/terms, operation: HTTP_REQUEST, phase: PRE_CREDENTIALS, maxBodyBytes: 262144, timeout: 1s}
"""
# A process of its own between us and what is measured: the kernel counts the memory of whoever forks as the child's.
_MEASURE: Final = """\
import json, os, subprocess, sys, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
began = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
_, status, used = os.wait4(child.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""
_HEAD: Final = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata:
  name: policy-{i}
  namespace: team-{team}
spec:
  sandboxSelector:
    matchLabels: {{app: agent-{i}}}
  networkMiddlewares:
"""
_BUILTIN: Final = """\
    keys-{n}:
      middleware: openshell/regex
      order: {order}
      config: {{mode: redact}}
      endpoints:
        include: ["api{n}.example.com", "*.team-{team}.example.org"]
        exclude: ["internal.team-{team}.example.org"]
"""
_SERVICE: Final = """\
    codenames-{n}:
      middleware: acme/terms
      order: {order}
      onError: FailClosed
      config:
        terms: ["Project Heron {i}", "Project Egret {n}", 'Operation "Night {team}"']
        action: redact
        caseSensitive: false
      endpoints:
        include: ["api{n}.example.com", "**.example.org"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one process took. `seconds` are of the core, so that a busy machine lies less; `wall` are of the clock."""

    seconds: float
    wall: float
    peak_bytes: int


async def run() -> None:
    """Policies a second at three sizes, growth of time and memory, and the floor."""
    with TemporaryDirectory() as root:
        folder = Path(root)
        manifests = folder / "manifests.yaml"
        manifests.write_text(_MANIFEST, encoding="utf-8")
        start, least = _least(folder, manifests)
        runs = {COUNTS[0]: least, **{n: _validated(_folder(folder, n), manifests) for n in COUNTS[1:]}}
        for count, taken in runs.items():
            show(f"validate_{count}_policies", count / (taken.seconds - start.seconds), "policies/s")
        most = runs[COUNTS[-1]]
        growth = _each(most, COUNTS[-1], start) / _each(least, COUNTS[0], start)
        show("validate_time_per_policy_10000_over_100", growth, "ratio")
        show("validate_peak_memory_10000", most.peak_bytes / 2**20, "MiB")
        show("validate_memory_per_policy", (most.peak_bytes - start.peak_bytes) / COUNTS[-1], "bytes")
        _one_file(folder, manifests, start)
        _with_findings(folder, manifests, start)
        _floor(folder, most.seconds - start.seconds)


def policy(i: int) -> str:
    """A valid policy of five configs, of which a service that is known by its manifest serves three."""
    team = i // SPREAD
    parts = (_BUILTIN, _SERVICE, _SERVICE, _BUILTIN, _SERVICE)
    entries = (part.format(i=i, n=n, team=team, order=10 * n) for n, part in enumerate(parts, 1))
    return _HEAD.format(i=i, team=team) + "".join(entries)


def _least(folder: Path, manifests: Path) -> tuple[Run, Run]:
    """The start of the process, shown by itself, and the fewest policies.

    Both take half a second, of which the difference is a tenth: the best of several, in turns.
    """
    one = folder / "one.yaml"
    one.write_text(policy(0), encoding="utf-8")
    few = _folder(folder, COUNTS[0])
    pairs = [(_validated(one, manifests), _validated(few, manifests)) for _ in range(_TURNS)]
    start = min((s for s, _ in pairs), key=lambda r: r.seconds)
    show("validate_one_policy_with_start", start.seconds * 1e3, "ms")
    show("smw_help", min(_measured("--help").seconds for _ in range(_TURNS)) * 1e3, "ms")
    return start, min((f for _, f in pairs), key=lambda r: r.seconds)


def _one_file(folder: Path, manifests: Path, start: Run) -> None:
    """All of them as one stream of documents."""
    path = folder / "all.yaml"
    path.write_text("---\n".join(map(policy, range(COUNTS[-1]))), encoding="utf-8")
    taken = _validated(path, manifests)
    show("validate_10000_policies_in_one_file", COUNTS[-1] / (taken.seconds - start.seconds), "policies/s")
    show("validate_one_file_peak_memory", taken.peak_bytes / 2**20, "MiB")


def _with_findings(folder: Path, manifests: Path, start: Run) -> None:
    """Where every policy has warnings: each is to be found in its file and shown."""
    doubtful = folder / "doubtful"
    doubtful.mkdir()
    for i in range(COUNTS[1]):
        text = policy(i).replace("onError: FailClosed", "onError: FailOpen")
        (doubtful / f"policy-{i:05d}.yaml").write_text(text, encoding="utf-8")
    taken = _validated(doubtful, manifests)
    show("validate_1000_policies_with_warnings", COUNTS[1] / (taken.seconds - start.seconds), "policies/s")


def _floor(folder: Path, seconds: float) -> None:
    """What nobody can do without in this language: the C parser and its plain values, no rules, no kubectl."""
    files = sorted((folder / str(COUNTS[-1])).iterdir())
    began = time.process_time()
    for path in files:
        for _ in yaml.load_all(path.read_bytes(), Loader=yaml.CSafeLoader):
            pass
    floor = time.process_time() - began
    show("pyyaml_c_safe_load_10000_policies", len(files) / floor, "policies/s")
    show("validate_over_pyyaml_c_safe_load", seconds / floor, "ratio")


def _each(taken: Run, count: int, start: Run) -> float:
    return (taken.seconds - start.seconds) / count


def _folder(root: Path, count: int) -> Path:
    folder = root / str(count)
    folder.mkdir()
    for i in range(count):
        (folder / f"policy-{i:05d}.yaml").write_text(policy(i), encoding="utf-8")
    return folder


def _validated(path: Path, manifests: Path) -> Run:
    return _measured("validate", str(path), "--manifests", str(manifests))


def _measured(*arguments: str) -> Run:
    """Run `smw` on one core."""
    command = [sys.executable, "-S", "-c", _MEASURE, sys.executable, "-m", "supervisor_middleware.cli", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    code, wall, seconds, peak_bytes = json.loads(done.stdout)
    if code:
        raise AssertionError(f"smw {arguments[0]} ended with {code}")
    return Run(seconds=seconds, wall=wall, peak_bytes=peak_bytes)
