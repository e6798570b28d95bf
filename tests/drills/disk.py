"""A supervisor's disk that can be filled: a small file system of its own, or where only root may mount one, a limit.

The limit is of the size of any file that the supervisor writes, so that its audit goes through a pipe meanwhile.
"""

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.apps.rig import pid_of
from tests.drills.drill import Drill

_DISK_BYTES: Final = 2 * 1024 * 1024
_FILE_BYTES: Final = 64 * 1024
"""What a generation that is saved under the limit must exceed, and a log must not."""


class Disk(Protocol):
    """What a drill wants of it."""

    def fill(self) -> None:
        """Nothing more can be saved by the supervisor that runs."""

    def start(self) -> None:
        """Start the supervisor again, while it is full."""

    def free(self) -> None:
        """There is room again."""


DiskOf = Callable[[Drill], AbstractContextManager[Disk]]


@dataclass(frozen=True, slots=True)
class _FileSystem:
    drill: Drill
    folder: Path

    def fill(self) -> None:
        free = os.statvfs(self.folder)
        with (self.folder / "filler").open("wb") as file, pytest.raises(OSError, match="No space left"):
            os.posix_fallocate(file.fileno(), 0, (free.f_bfree + 1) * free.f_bsize)
        with (self.folder / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, os.statvfs(self.folder).f_bfree * free.f_bsize)

    def start(self) -> None:
        self.drill.agent.process.start()

    def free(self) -> None:
        (self.folder / "filler").unlink()


@contextmanager
def a_file_system(drill: Drill) -> Iterator[Disk]:
    """Of the state directory alone."""
    folder = drill.agent.folder / "state"
    folder.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=0700", "tmpfs", str(folder))
    mounted = subprocess.run(["mount", *options], check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"only root may mount a file system; the limit stands for it: {mounted.stderr.strip()}")
    try:
        yield _FileSystem(drill, folder)
    finally:
        drill.agent.process.stop()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass(frozen=True, slots=True)
class _Limit:
    drill: Drill
    usual: tuple[int, int]

    def fill(self) -> None:
        self._set(_FILE_BYTES, pid=pid_of(self.drill.agent.process))

    def start(self) -> None:
        # It inherits ours, and nobody else must.
        self._set(_FILE_BYTES, pid=os.getpid())
        try:
            self.drill.agent.process.start()
        finally:
            self._set(self.usual[0], pid=os.getpid())

    def free(self) -> None:
        self._set(self.usual[0], pid=pid_of(self.drill.agent.process))

    def _set(self, soft: int, *, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, self.usual[1]))


@contextmanager
def a_limit(drill: Drill) -> Iterator[Disk]:
    """Of every file that the supervisor writes."""
    pipe, audit = drill.agent.folder / "audit.pipe", drill.agent.folder / "audit.jsonl"
    os.mkfifo(pipe)
    # Also for writing: then it has no end when the supervisor is killed, and what was written stays in it.
    reading = os.open(pipe, os.O_RDWR)
    drill.agent.process.environment = {**drill.agent.process.environment, "SMW_AUDIT_FILE": str(pipe)}
    disk = _Limit(drill, resource.getrlimit(resource.RLIMIT_FSIZE))
    copying = threading.Thread(target=_copy, args=(reading, audit), daemon=True)
    copying.start()
    try:
        yield disk
        drill.agent.process.stop()
    finally:
        os.write(reading, _END)
        copying.join()
        os.close(reading)


_END: Final = b"\0\n"


def _copy(reading: int, path: Path) -> None:
    rest = b""
    while not rest.endswith(_END):
        rest = os.read(reading, 1 << 16)
        with path.open("ab") as file:
            file.write(rest.removesuffix(_END))
