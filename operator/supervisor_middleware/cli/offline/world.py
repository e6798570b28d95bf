"""What a folder comes to without a cluster: gathered once, judged by the one compiler, shared by the commands.

`gather` does the reading (files, recorded manifests, with --live the services); a `World` is the value everything
else is a function of.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Final, TextIO

from supervisor_middleware.cli.offline.assumptions import with_assumed
from supervisor_middleware.cli.offline.judge import (
    Registry,
    accept,
    drafts_of,
    judge,
    policies_of,
    questions_of,
    recorded,
)
from supervisor_middleware.cli.offline.manifest_files import read_manifests
from supervisor_middleware.cli.offline.scopes import Scope, scopes_of
from supervisor_middleware.cli.rendering.progress import Progress
from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.pipeline import CompiledPolicy
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS, BUILTINS
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.manifest import Dialect, Manifest
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings, Knowledge, Loopback
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Description, Outage, Unreachable, Verdict
from supervisor_middleware.model.violation import Advice, Report, Subject, merge, report
from supervisor_middleware.registry.inquiry import Services, ask_all, describe_all
from supervisor_middleware.sources.assembly import FILE
from supervisor_middleware.sources.files import list_files, name_of
from supervisor_middleware.sources.folder import FolderSource, Location

ASK_DEADLINE: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is read and how. `knowledge` LIVE asks the services themselves, with `credentials` if given."""

    paths: tuple[Path, ...]
    manifests: tuple[Path, ...] = ()
    knowledge: Knowledge = Knowledge.OFFLINE
    credentials: Path | None = None
    loopback: Loopback = Loopback.REFUSED


# No repr: asyncio makes one of its main task, hence of this result, only to throw it away.
@dataclass(frozen=True, kw_only=True, repr=False)
class World:
    """A folder, judged. `report` is all there is to say about it; `locate` gives file and line of a field."""

    snapshot: Snapshot
    settings: CompilerSettings
    registry: Registry
    policies: tuple[CompiledPolicy, ...]
    report: Report
    locate: Callable[[Subject, str], Location | None]

    @cached_property
    def revisions(self) -> tuple[Revision, ...]:
        """What sandboxes run of each policy: of an invalid one its hosts follow `onError`, nothing vanishes."""
        found = (p.revision or p.draft.as_unresolved() for p in self.policies)
        return tuple(r for r in found if r is not None)

    @cached_property
    def bindings(self) -> Bindings:
        """Who serves what: as far as is known, and unless the services were asked, as far as is assumed."""
        if self.settings.knowledge is Knowledge.LIVE:
            return self.registry.bindings
        wanted = (e.binding for r in self.revisions for e in r.entries if e.unresolved is None)
        return with_assumed(self.registry.bindings, wanted, pending=self.registry.pending)

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """Every sandbox with what it runs, composed on first use: validation does without."""
        return scopes_of(
            self.snapshot.sandboxes,
            self.revisions,
            namespaces=self.snapshot.namespaces,
            bindings=self.bindings,
            settings=self.settings,
        )

    @property
    def stages(self) -> Iterator[Stage]:
        """The stages of every scope."""
        return (stage for scope in self.scopes for stage in scope.generation.stages)

    def assumed(self, stages: Iterable[Stage]) -> tuple[str, ...]:
        """The bindings of `stages` whose service and limits are assumed."""
        known = self.registry.bindings
        return tuple(sorted({s.binding for s in stages if s.unresolved is None and known.find(s.binding) is None}))

    @property
    def objects(self) -> int:
        """How many objects of ours were read."""
        return len(self.snapshot.registrations) + len(self.snapshot.policies) + len(self.snapshot.sandboxes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of ours was found, and nothing wrong: a warning about the paths is all there is then."""
        return not self.objects and self.snapshot.problems.is_valid


def gathered(options: Options, *, err: TextIO | None = None) -> World:
    """`gather` for a command: progress on a terminal, no search for cycles meanwhile.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    progress = Progress(err or sys.stderr)
    try:
        with _uncollected():
            return asyncio.run(gather(options, progress=progress))
    finally:
        progress.clear()


async def gather(options: Options, *, progress: Progress) -> World:
    """Read, ask, judge.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    _require_paths((*options.paths, *options.manifests))
    if options.manifests and options.knowledge is Knowledge.LIVE:
        raise InvalidInput("--manifests and --live exclude each other: what was recorded, or what is true now")
    settings = CompilerSettings(builtins=BUILTIN_BINDINGS, loopback=options.loopback, knowledge=options.knowledge)
    source = FolderSource(options.paths, progress=progress.read)
    async with _services(options) as services:
        snapshot = await source.snapshot()
        manifests, about_manifests = read_manifests(options.manifests)
        registry, policies, found = await _judged(
            snapshot, services, manifests=manifests, settings=settings, progress=progress
        )
    return World(
        snapshot=snapshot,
        settings=settings,
        registry=registry,
        policies=policies,
        report=merge((snapshot.problems, about_manifests, found, _emptiness(snapshot, options.paths))),
        locate=source.location,
    )


async def _judged(
    snapshot: Snapshot,
    services: Services,
    *,
    manifests: dict[str, Manifest],
    settings: CompilerSettings,
    progress: Progress,
) -> tuple[Registry, tuple[CompiledPolicy, ...], Report]:
    drafts, about_drafts = drafts_of(snapshot, settings)
    is_live = settings.knowledge is Knowledge.LIVE
    descriptions = await describe_all(services, drafts) if is_live else recorded(drafts, manifests)
    registry = accept(drafts, descriptions, manifests=manifests, settings=settings)
    read = policies_of(snapshot, progress.drafted)
    asked = questions_of(read, registry.bindings, settings=settings)
    verdicts = await ask_all(asked, client=services, builtins=BUILTINS, deadline=ASK_DEADLINE)
    policies, found = judge(read, snapshot, registry, verdicts=verdicts, settings=settings, progress=progress.checked)
    return registry, policies, merge((about_drafts, registry.report, found))


class _Nobody:
    """Where nobody may be asked."""

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        """No service says what it is."""
        del connection, registration_name
        return Unreachable(Outage.CALL_FAILED)

    async def validate_config(
        self, connection: Connection, *, dialect: Dialect, binding: str, config: JsonObject, deadline: timedelta
    ) -> Verdict:
        """No service judges a config."""
        del connection, dialect, binding, config, deadline
        return Unreachable(Outage.CALL_FAILED)


@asynccontextmanager
async def _services(options: Options) -> AsyncIterator[Services]:
    """Who may be asked. gRPC takes a fifth of a second to import, so only where it is used."""
    if options.knowledge is Knowledge.OFFLINE and options.credentials is None:
        yield _Nobody()
        return
    from supervisor_middleware.cli.identities import client_identity
    from supervisor_middleware.registry.client import RegistryClient

    identity = client_identity(options.credentials)
    client = RegistryClient(lambda: identity)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles while a folder is read: it takes a tenth of the time and finds nothing to free."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _require_paths(paths: Sequence[Path]) -> None:
    missing = list_files([p for p in paths if not p.is_dir()]).missing
    if missing:
        raise InvalidInput(f"{', '.join(missing)}: no such file or folder")


def _emptiness(snapshot: Snapshot, paths: Sequence[Path]) -> Report:
    """A pipeline that looks into the wrong folder should not be green without a word."""
    if snapshot.registrations or snapshot.policies or snapshot.sandboxes or not snapshot.problems.is_valid:
        return Report()
    message = "holds no object of ours; is it the right path?"
    return report((), (Advice(subject=Subject(kind=FILE, name=name_of(p)), path="", message=message) for p in paths))
