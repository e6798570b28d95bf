"""Which files a folder holds, and their bytes. A file edge: bounded, safe from link loops, never blocked by a pipe.

Nothing here raises for what people leave in folders: what cannot be read comes back as a problem.
"""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supervisor_middleware.sources.documents import MAX_FILE_BYTES

STDIN: Final = "-"
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file to read; `name` is for people and is its identity from read to read."""

    path: Path
    name: str
    is_named: bool
    """Whether somebody asked for this very file: then it may be a pipe, or have any suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A file or folder that could not be looked at."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the given paths lead to. `missing` are given paths that do not exist."""

    files: tuple[Found, ...]
    obstacles: tuple[Obstacle, ...] = ()
    missing: tuple[str, ...] = ()


def list_files(paths: Sequence[Path], *, except_under: Path | None = None) -> Listing:
    """Every file under `paths`, sorted by name, each once however many links lead to it; hidden ones are left out.

    `except_under` is a folder that is not entered: our own state may lie inside what we read.
    """
    walk = _Walk()
    missing = []
    if except_under is not None and except_under.exists():
        walk.is_new(except_under.stat())
    for path in paths:
        if str(path) == STDIN:
            walk.files.append(Found(path=path, name=name_of(path), is_named=True))
        elif not os.path.lexists(path) or not path.exists():
            missing.append(shown(path))
        elif path.is_dir():
            walk.enter(path)
        elif walk.is_new(path.stat()):
            walk.files.append(Found(path=path, name=shown(path), is_named=True))
    return Listing(
        files=tuple(sorted(walk.files, key=lambda f: f.name)), obstacles=tuple(walk.obstacles), missing=tuple(missing)
    )


def read_bytes(found: Found) -> bytes:
    """The content, or one byte more than the limit of a file.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    if str(found.path) == STDIN:
        return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if not found.is_named and not stat.S_ISREG(found.path.stat().st_mode):
        raise OSError(0, "is no regular file")
    with found.path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def signature(paths: Sequence[Path], *, except_under: Path | None = None) -> object:
    """Changes when a file under `paths` does: for file systems that tell nobody."""
    return tuple(_stamps(list_files(paths, except_under=except_under)))


def name_of(path: Path) -> str:
    """What a given path is called in reports."""
    return "<stdin>" if str(path) == STDIN else shown(path)


def shown(path: Path) -> str:
    """A path as text that any terminal takes."""
    text = path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)


class _Walk:
    """A walk over folders. Links are followed: a mounted ConfigMap consists of nothing else."""

    def __init__(self) -> None:
        self.files: list[Found] = []
        self.obstacles: list[Obstacle] = []
        self._seen: set[tuple[int, int]] = set()

    def is_new(self, status: os.stat_result) -> bool:
        """Whether this file or folder has not been met before."""
        identity = (status.st_dev, status.st_ino)
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True

    def enter(self, root: Path) -> None:
        """Everything under `root`."""
        waiting = [root]
        while waiting:
            folder = waiting.pop()
            try:
                if not self.is_new(folder.stat()):
                    continue
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError as error:
                self.obstacles.append(Obstacle(name=shown(folder), reason=error.strerror or "it cannot be read"))
                continue
            waiting.extend(self._take(folder, entries))

    def _take(self, folder: Path, entries: Sequence["os.DirEntry[str]"]) -> Iterator[Path]:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = folder / entry.name
            try:
                status = entry.stat()
            except OSError as error:
                if path.suffix in SUFFIXES:
                    self.obstacles.append(Obstacle(name=shown(path), reason=error.strerror or "it cannot be read"))
                continue
            if stat.S_ISDIR(status.st_mode):
                yield path
            elif path.suffix in SUFFIXES and self.is_new(status):
                self.files.append(Found(path=path, name=shown(path), is_named=False))


def _stamps(listing: Listing) -> Iterator[tuple[object, ...]]:
    yield listing.missing
    for found in listing.files:
        try:
            status = found.path.stat()
        except OSError:
            yield (found.name,)
        else:
            yield (found.name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
