"""Last-known-good on disk: what a supervisor starts with when the operator is away. A file edge.

One directory (0700, ours alone, held by a lock), one file. A crash at any moment leaves the old record or the new
one, whole (`pki.files`). A file that is not whole, another sandbox's, or not ours alone to write is moved aside for
inspection and not used; the supervisor then begins unconfigured, that is closed. Do not keep credentials in the same
directory: their writer locks it too.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.model.canonical import digest, short
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES, MIB
from supervisor_middleware.pki.files import Mode, remove_staged, replace_file
from supervisor_middleware.supervisor.record import Defect, Record, decode, encode

FILE_NAME: Final = "last-known-good"
MAX_KEPT_ASIDE: Final = 3
"""Defective files kept for inspection; the oldest go first."""

Writer: TypeAlias = Callable[[Path, bytes], None]
"""Replaces a file's content durably, or raises `Unavailable` or `InvalidInput` and leaves it."""

_ASIDE: Final = "defective-"
_MAX_FILE_BYTES: Final = MAX_STREAM_MESSAGE_BYTES + MIB
_replace: Final[Writer] = partial(replace_file, mode=Mode.PRIVATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was on disk. Neither field set: nothing was, this supervisor is new."""

    record: Record | None = None
    defect: Defect | None = None


class Store:
    """The last-known-good of one supervisor, `owner` by SPIFFE ID. `open_store` gives one; `close` frees the lock."""

    def __init__(self, directory: Path, *, owner: str, lock: int, write: Writer) -> None:
        self._directory = directory
        self._owner = owner
        self._lock = lock
        self._write = write

    def load(self) -> Loaded:
        """The record on disk, if it is whole and ours. What is not is moved aside and named by its defect."""
        path = self._directory / FILE_NAME
        try:
            content = _read(path)
        except FileNotFoundError:
            return Loaded()
        except OSError:
            return Loaded(defect=Defect.UNREADABLE)
        decoded = content if isinstance(content, Defect) else decode(content, owner=self._owner)
        if isinstance(decoded, Record):
            return Loaded(record=decoded)
        self._move_aside(path, name=b"" if isinstance(content, Defect) else content, defect=decoded)
        return Loaded(defect=decoded)

    def save(self, record: Record) -> None:
        """Replace the record on disk. Blocks on the disk: call it from a thread.

        Raises:
            Unavailable: the disk is full, read-only or broken. What was there is still there.
        """
        path = self._directory / FILE_NAME
        try:
            self._write(path, encode(record, owner=self._owner))
        except (Unavailable, InvalidInput) as error:
            raise Unavailable(f"{error}: last-known-good was not saved") from error

    def close(self) -> None:
        """Let another process have the directory."""
        os.close(self._lock)

    def _move_aside(self, path: Path, *, name: bytes, defect: Defect) -> None:
        aside = self._directory / f"{_ASIDE}{defect.value}-{short(digest(name))}"
        with suppress(OSError):  # a read-only disk: it stays where it is, unused
            path.replace(aside)
        kept = sorted(self._directory.glob(f"{_ASIDE}*"), key=lambda p: p.lstat().st_mtime_ns)
        for old in kept[:-MAX_KEPT_ASIDE]:
            with suppress(OSError):
                old.unlink()


def open_store(directory: Path, *, owner: str, write: Writer | None = None) -> Store:
    """The store in `directory` (created if need be), held until it is closed or the process ends.

    Raises:
        InvalidInput: another process holds it, or it cannot be made or entered.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):  # a read-only disk; or somebody else's directory, and then opening it says so
            directory.chmod(0o700)
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InvalidInput(f"{directory}: {error.strerror}: the state directory cannot be used") from error
    try:
        # The directory itself is locked: that needs no file to be made, so it also works on a read-only disk.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise InvalidInput(
            f"{directory}: in use by another supervisor: give each its own state directory, or stop the other"
        ) from error
    if os.fstat(lock).st_mode & stat.S_IWOTH:
        os.close(lock)
        raise InvalidInput(
            f"{directory}: everybody may write there: let the state directory be the supervisor's alone"
        )
    remove_staged(directory)
    return Store(directory, owner=owner, lock=lock, write=_replace if write is None else write)


def _read(path: Path) -> bytes | Defect:
    try:
        # A link may lead anywhere, and a pipe would keep us waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link; a socket or a device nobody serves
            return Defect.UNSAFE
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) or mode & stat.S_IWOTH:
            return Defect.UNSAFE
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    return content if len(content) <= _MAX_FILE_BYTES else Defect.CORRUPT
