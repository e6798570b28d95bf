"""A directory for the sockets of one process: short, private, and gone with it. A file edge.

Socket paths end at 107 bytes, so they cannot stand under just any state directory. A process that is killed removes
nothing: whoever starts next removes what nobody holds any more. Who holds one is told by a lock, which ends with its
process.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "smw-run-"


@contextmanager
def scratch_directory(parent: Path | None = None) -> Iterator[Path]:
    """A directory (0700) for the block, in the system's directory for such things unless `parent` says another."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_abandoned(parent)
    directory, lock = _claimed(parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _claimed(parent: Path) -> tuple[Path, int]:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        if (lock := _locked(directory)) is not None:
            return directory, lock  # else another one that starts took it for abandoned


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{PREFIX}*"):
        if _is_ours(directory) and (lock := _locked(directory)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def _is_ours(directory: Path) -> bool:
    with suppress(OSError):
        found = directory.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def _locked(directory: Path) -> int | None:
    """Hold it; None: somebody else does, or it is gone."""
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), directory.stat()):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
