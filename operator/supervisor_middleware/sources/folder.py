"""A folder of YAML as a `Snapshot`. The source of standalone and of `smw validate`.

Absence of data is not absence of policy. A file that cannot be read or parsed keeps giving what it held when it last
could be, marked by the problem, until it parses again or is deleted; a given path that is gone makes every kind
unknown. With a `StateStore` that memory, statuses and revisions outlive a restart.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from supervisor_middleware.model.canonical import JsonObject, digest
from supervisor_middleware.model.snapshot import POLICY_KINDS, Kind, Snapshot, StoredRevision
from supervisor_middleware.model.violation import Reason, Report, Subject, Violation, merge, report
from supervisor_middleware.sources.assembly import (
    about_file,
    bundles_of,
    by_kind,
    choose,
    findings_of,
    kept,
    namespaces_of,
    objects_of,
)
from supervisor_middleware.sources.documents import Document, lines_of, read_documents
from supervisor_middleware.sources.files import STDIN, Found, Listing, list_files, read_bytes
from supervisor_middleware.sources.memory import Identity, Memory
from supervisor_middleware.sources.objects import Contents, read_contents
from supervisor_middleware.sources.places import Place, line_of, located
from supervisor_middleware.sources.problems import Problem

UNDATED: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""When everything was created, where nobody can tell."""

_KINDS: Final = frozenset(k.value for k in Kind if k is not Kind.POLICY_REVISION)
_NOTHING: Final = Report()


class State(Protocol):
    """What of a folder outlives a restart: `sources.state.StateStore`."""

    @property
    def directory(self) -> Path:
        """Where it is kept; never read as policy."""
        ...

    @property
    def problems(self) -> Report:
        """What was found damaged."""
        ...

    def revisions(self) -> tuple[StoredRevision, ...]:
        """Persisted revisions."""
        ...

    def statuses(self) -> Mapping[str, JsonObject]:
        """Statuses by the object's UID."""
        ...

    def memory(self) -> Memory:
        """What was last remembered."""
        ...

    def remember(self, memory: Memory) -> None:
        """Replace what is remembered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place a person can go to: file and line."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A file as it was last read: `contents` is what it gives, in part perhaps older than `problems`."""

    digest: str
    contents: Contents
    problems: tuple[Problem, ...] = ()


class FolderSource:
    """Reads its paths anew whenever a snapshot is asked for; only what changed is parsed."""

    def __init__(
        self,
        paths: Sequence[Path],
        state: State | None = None,
        *,
        now: Callable[[], datetime] = lambda: UNDATED,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """`now` dates objects that do not say when they were created; `progress` hears of files read, of how many."""
        self._paths, self._state, self._now, self._progress = tuple(paths), state, now, progress
        self._remembered = Memory() if state is None else state.memory()
        self._identities: Mapping[str, Identity] = self._remembered.identities
        self._known = {name: _Known(digest="", contents=c) for name, c in self._remembered.files.items()}
        self._places: dict[Subject, tuple[str, Place]] = {}
        self._found: dict[str, Found] = {}
        self._lines: dict[tuple[str, int], Mapping[str, int]] = {}
        # Read once; kept to tell the lines of fields.
        self._stdin = b""
        self._lock = asyncio.Lock()

    async def snapshot(self) -> Snapshot:
        """Everything in the files now.

        Raises:
            Unavailable: what was read could not be remembered.
        """
        async with self._lock:
            return await asyncio.to_thread(self._snapshot)

    async def changes(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Once for each burst of changes, until `stop` is set; a hint to ask for a snapshot."""
        from supervisor_middleware.sources import watching  # noqa: PLC0415 - an extra, needed to watch only

        async for _ in watching.changes(self._paths, stop, except_under=self._own_directory):
            yield

    def location(self, subject: Subject, path: str = "") -> Location | None:
        """Where a field of an object of the latest snapshot stands, or the closest thing above it."""
        if subject not in self._places:
            return None
        name, place = self._places[subject]
        lines = self._lines_of(name, place)
        path = ".".join(p for p in (place.within, path) if p)
        return Location(file=name, line=line_of(lines, path, otherwise=place.line))

    @property
    def _own_directory(self) -> Path | None:
        return None if self._state is None else self._state.directory

    def _snapshot(self) -> Snapshot:
        listing = list_files(self._paths, except_under=self._own_directory)
        unreadable = tuple(self._read_all(listing))
        files = {name: known.contents for name, known in self._known.items()}
        chosen = choose(files, owners=self._places)
        self._places = chosen.places
        stored, identities = objects_of(
            chosen,
            identities=self._identities,
            statuses={} if self._state is None else self._state.statuses(),
            now=self._now(),
        )
        registrations = by_kind(stored, Kind.SUPERVISOR_MIDDLEWARE)
        bundles, unused = bundles_of(files.values(), registrations)
        self._remember(Memory(files=files, identities=self._and_departed(identities)))
        return Snapshot(
            registrations=registrations,
            policies=by_kind(stored, *POLICY_KINDS),
            revisions=() if self._state is None else self._state.revisions(),
            sandboxes=tuple(s.sandbox for _, (_, s) in sorted(chosen.sandboxes.items())),
            namespaces=namespaces_of(files.values(), (s.namespace for s in chosen.places)),
            described=frozenset(name for c in files.values() for name in c.namespaces),
            bundles=bundles,
            unknown=_KINDS if listing.missing else frozenset(),
            problems=merge((report((*unreadable, *chosen.violations)), *self._findings())),
            skipped=unused + sum(c.skipped for c in files.values()),
        )

    def _read_all(self, listing: Listing) -> Iterator[Violation]:
        for name in listing.missing:
            hint = "create it, or name another"
            yield about_file(name, "", "does not exist", hint=hint, reason=Reason.REFERENCE_NOT_FOUND)
        for obstacle in listing.obstacles:
            yield _unreadable(obstacle.name, obstacle.reason)
        self._found = {f.name: f for f in listing.files}
        hidden = (*listing.missing, *(o.name for o in listing.obstacles))
        for name in [n for n in self._known if n not in self._found and not any(_is_under(n, h) for h in hidden)]:
            del self._known[name]
        for number, found in enumerate(listing.files):
            self._progress(number, len(listing.files))
            yield from self._read(found)
        self._progress(len(listing.files), len(listing.files))

    def _read(self, found: Found) -> Iterator[Violation]:
        before = self._known.get(found.name)
        if str(found.path) == STDIN and before is not None:
            return
        try:
            content = read_bytes(found)
        except OSError as error:
            yield _unreadable(found.name, error.strerror or "it cannot be read")
            return
        of_content = digest(content)
        if before is not None and before.digest == of_content:
            return
        if str(found.path) == STDIN:
            self._stdin = content
        parsed = read_documents(content)
        contents = read_contents(parsed)
        if contents.problems:
            of_objects = contents.problems[len(parsed.problems) :]
            contents = replace(contents, problems=(*parsed.problems, *located(of_objects, content)))
            contents = kept(contents, None if before is None else before.contents)
        self._known[found.name] = _Known(digest=of_content, contents=contents, problems=contents.problems)
        self._lines = {key: lines for key, lines in self._lines.items() if key[0] != found.name}

    def _findings(self) -> Iterator[Report]:
        yield _NOTHING if self._state is None else self._state.problems
        for name, known in self._known.items():
            yield findings_of(name, problems=known.problems, advice=known.contents.advice)

    def _and_departed(self, identities: Mapping[str, Identity]) -> Mapping[str, Identity]:
        """With those that have gone but have revisions: one that comes back must not count from 1 again."""
        kept_uids = {r.revision.uid for r in (() if self._state is None else self._state.revisions())}
        departed = {uid: i for uid, i in self._identities.items() if uid in kept_uids and uid not in identities}
        self._identities = {**departed, **identities}
        return self._identities

    def _remember(self, memory: Memory) -> None:
        if self._state is not None and memory != self._remembered:
            self._state.remember(memory)
        self._remembered = memory

    def _lines_of(self, name: str, place: Place) -> Mapping[str, int]:
        found, key = self._found.get(name), (name, place.line)
        if found is None:
            return {}
        if key not in self._lines:
            try:
                document = Document(line=place.line, value=None, size=0)
                self._lines[key] = lines_of(self._stdin if str(found.path) == STDIN else read_bytes(found), document)
            except OSError:
                return {}
        return self._lines[key]


def _unreadable(name: str, why: str) -> Violation:
    return about_file(name, "", f"cannot be read: {why}", hint="check what it is and its permissions")


def _is_under(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder.rstrip('/')}/") or (folder == "." and not name.startswith("/"))
