"""Files that other processes read while we write. A file edge.

A reader sees an old file or a new one, never half of one; what was written survives a power cut (fsync of file and
directory). An `OSError` becomes `InvalidInput` where an administrator must act and `Unavailable` where not; messages
name the path, never the content. POSIX: links, advisory locks.
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Final

from supervisor_middleware.errors import InvalidInput, Unavailable

MAX_FILE_BYTES: Final = 4_194_304

_STAGED: Final = ".staged-"
_ADMINISTRATOR: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


class Mode(IntEnum):
    """Who may read a file."""

    PRIVATE = 0o600
    PUBLIC = 0o644


def make_directory(directory: Path) -> None:
    """Create `directory` (for us alone) unless it is there."""
    with translated(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def read_file(path: Path) -> bytes | None:
    """The content of `path`, or None if there is no such file.

    Raises:
        InvalidInput: larger than any file of ours, or not ours to read.
    """
    with translated(path):
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInput(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return content


def permissions(path: Path) -> int:
    """The permission bits of `path`."""
    with translated(path):
        return stat.S_IMODE(path.stat().st_mode)


def create_file(path: Path, content: bytes, *, mode: Mode) -> None:
    """Create `path` whole, unless somebody else has: then theirs stays, and the caller reads it."""
    if path.exists():
        return
    with _staged(path, content, mode=mode) as staged, suppress(FileExistsError):
        os.link(staged, path)


def replace_file(path: Path, content: bytes, *, mode: Mode) -> None:
    """Put `content` in the place of whatever `path` holds."""
    with _staged(path, content, mode=mode) as staged:
        staged.replace(path)


def remove_staged(directory: Path) -> None:
    """Remove what a process that was killed while it wrote has left; only while nobody else writes there."""
    with suppress(OSError):
        for staged in directory.glob(f"{_STAGED}*"):
            shutil.rmtree(staged, ignore_errors=True)


def write_new(path: Path, content: bytes, *, mode: Mode) -> None:
    """Write a file that must not exist yet, in a directory nobody reads yet."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    with _opened(directory) as descriptor:
        os.fsync(descriptor)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `directory` alone among those that ask (not re-entrant); waits. The lock ends with the process."""
    with _opened(directory) as descriptor:
        with translated(directory):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn an `OSError` about `path` into an error that says whose move it is."""
    try:
        yield
    except OSError as error:
        kind = InvalidInput if error.errno in _ADMINISTRATOR else Unavailable
        raise kind(f"{error.filename or path}: {error.strerror}") from error


@contextmanager
def _staged(path: Path, content: bytes, *, mode: Mode) -> Iterator[Path]:
    with translated(path), tempfile.TemporaryDirectory(prefix=_STAGED, dir=path.parent) as scratch:
        staged = Path(scratch, path.name)
        write_new(staged, content, mode=mode)
        yield staged
        sync_directory(path.parent)


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    with translated(directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
