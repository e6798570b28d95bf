"""Small JSON files that are whole or not there, each with the digest of what it holds. A file edge.

What does not verify is moved aside with its name kept, and reported: never a crash, and nothing else is lost.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.model.canonical import JsonObject, ParsedJson, digest
from supervisor_middleware.pki.files import Mode, make_directory, replace_file, sync_directory, translated

_LOCK: Final = "standalone.lock"
_CORRUPT: Final = ".corrupt"
_SUFFIX: Final = ".json"

_log = structlog.get_logger(__name__)


class Damaged(ValueError):  # noqa: N818 - named for the file
    """A file does not hold what was written to it."""


def write_sealed(path: Path, content: JsonObject) -> None:
    """Replace `path` as one step, durably, readable by us alone.

    Raises:
        InvalidInput, Unavailable: it cannot be written; names the file.
    """
    data = _encoded(content)
    head = b'{"digest": "' + digest(data).encode() + b'",\n "content": '
    replace_file(path, head + data + b"}\n", mode=Mode.PRIVATE)


def read_sealed(path: Path) -> ParsedJson | None:
    """What `write_sealed` wrote; None if there is no such file.

    Raises:
        Damaged: it holds something else.
        InvalidInput, Unavailable: it cannot be read; names the file.
    """
    with translated(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        sealed = json.loads(data)
        content: ParsedJson = sealed["content"]
        is_whole = digest(_encoded(content)) == sealed["digest"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise Damaged("is not what was written") from None
    if not is_whole or not isinstance(content, dict):
        raise Damaged("does not have the digest it was written with")
    return content


def sealed_files(directory: Path) -> Iterator[Path]:
    """The files of `write_sealed` in `directory`, sorted; leavings of an interrupted write are not among them."""
    with translated(directory):
        entries = sorted(directory.iterdir())
    yield from (e for e in entries if e.suffix == _SUFFIX and not e.name.startswith("."))


def remove(path: Path) -> None:
    """Remove `path` durably; an absent one is fine."""
    with translated(path):
        path.unlink(missing_ok=True)
    sync_directory(path.parent)


def move_aside(path: Path) -> Path:
    """Rename a damaged file so that it is kept for a person and read by nobody."""
    with translated(path):
        target = next(
            t
            for n in range(10_000)
            if not (t := path.with_name(f"{path.name}{_CORRUPT}" + (f"-{n}" if n else ""))).exists()
        )
        path.rename(target)
    _log.error("a damaged file of the state was moved aside", file=str(path), now=str(target))
    return target


def lock(directory: Path) -> int:
    """Hold `directory` for this process; the lock ends with `unlock` or with the process.

    Raises:
        InvalidInput: another process holds it.
    """
    make_directory(directory)
    path = directory / _LOCK
    with translated(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, Mode.PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise Unavailable(f"{path}: cannot be locked: {error.strerror}") from error
        raise InvalidInput(
            f"{directory}: in use by another standalone, process {holder or 'unknown'}: stop it, or use another state"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def unlock(descriptor: int) -> None:
    """Give back what `lock` took."""
    with suppress(OSError):
        os.close(descriptor)


def _encoded(content: JsonObject) -> bytes:
    # Not `model.canonical`: a folder may hold numbers that have none, and they must be kept to be complained of.
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
