"""The wall clock of a process, set and moved from outside: libfaketime, which stands before libc's.

Only that clock: monotonic time, by which deadlines and timeouts are counted, stays as it is, as it does on a machine
whose clock somebody sets.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from e2e.absent import absent

SKEW: Final = 300
"""Seconds: what certificates are backdated by."""

# Envoy does not start under it, and has no use for a wall clock: its TLS is the supervisor's.
_NOT_INHERITED: Final = "import os\nos.environ.pop('LD_PRELOAD', None)\n"


@dataclass(frozen=True, slots=True)
class WallClock:
    """One that processes started with `environment` look at."""

    directory: Path

    @property
    def file(self) -> Path:
        """Where what it shows is kept."""
        return self.directory / "clock"

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a process look at it."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.directory), os.environ.get("PYTHONPATH")))),
        }

    def set(self, seconds: int) -> None:
        """From now on it is `seconds` ahead, or behind."""
        staged = self.file.with_suffix(".new")
        staged.write_text(f"{seconds:+d}")
        staged.replace(self.file)


def a_wall_clock(directory: Path, *, seconds: int) -> WallClock:
    """A clock that is `seconds` ahead; the test ends here if this machine has none that can be moved."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_NOT_INHERITED)
    clock = WallClock(directory)
    clock.set(seconds)
    found = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env={**os.environ, **clock.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode or abs(float(found.stdout) - time.time() - seconds) > SKEW / 2:
        absent(f"NO CLOCK THAT CAN BE MOVED: libfaketime does not work here: {found.stderr.strip()[:200]}")
    return clock


def _library() -> Path:
    spec = find_spec("libfaketime")
    if spec is None or spec.origin is None:
        absent("NO CLOCK THAT CAN BE MOVED: libfaketime is not installed")
    return Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
