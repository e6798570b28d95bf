"""`smw validate`: gather files and, where asked, services; judge with the one compiler; show everything at once.

Exit codes: 0 valid (warnings do not count), 1 something is wrong, 2 it could not be told: no such path, or a service
that could not be asked.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, TextIO

from supervisor_middleware.cli.identities import client_identity
from supervisor_middleware.cli.manifest_files import read_manifests
from supervisor_middleware.cli.validate_judge import accept, drafts_of, judge, policies_of, questions_of, recorded
from supervisor_middleware.cli.validate_render import Form, Result, render
from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS, BUILTINS
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.settings import CompilerSettings, Knowledge, Loopback
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.violation import Advice, Report, Subject, merge, report
from supervisor_middleware.registry.client import RegistryClient
from supervisor_middleware.registry.inquiry import ask_all, describe_all
from supervisor_middleware.sources.assembly import FILE
from supervisor_middleware.sources.files import list_files, shown
from supervisor_middleware.sources.folder import FolderSource

ASK_DEADLINE: Final = timedelta(seconds=60)
_QUIET_SECONDS: Final = 1.0
_REDRAW_SECONDS: Final = 0.1
_BAR_WIDTH: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is validated and how. `knowledge` LIVE asks the services themselves, with `credentials` if given."""

    paths: tuple[Path, ...]
    manifests: tuple[Path, ...] = ()
    knowledge: Knowledge = Knowledge.OFFLINE
    credentials: Path | None = None
    loopback: Loopback = Loopback.REFUSED
    form: Form = Form.TABLE


def run(options: Options, *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Validate and show; returns the exit code."""
    out, err = out or sys.stdout, err or sys.stderr
    progress = Progress(err)
    try:
        with _uncollected():
            result = asyncio.run(validate(options, progress=progress))
    except SupervisorMiddlewareError as error:
        err.write(f"smw: {error}\n")
        return 2
    finally:
        progress.clear()
    render(result, options.form, out=out)
    return _exit_code(result.report)


async def validate(options: Options, *, progress: "Progress") -> Result:
    """Everything there is to say about the paths.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    _require_paths((*options.paths, *options.manifests))
    if options.manifests and options.knowledge is Knowledge.LIVE:
        raise InvalidInput("--manifests and --live exclude each other: what was recorded, or what is true now")
    identity = client_identity(options.credentials)
    source = FolderSource(options.paths, progress=progress.read)
    snapshot = await source.snapshot()
    manifests, about_manifests = read_manifests(options.manifests)
    client = RegistryClient(lambda: identity)
    try:
        found = await _judged(snapshot, client, manifests=manifests, options=options, progress=progress)
    finally:
        await client.close()
    return Result(
        report=merge((snapshot.problems, about_manifests, found, _emptiness(snapshot, options.paths))),
        objects=len(snapshot.registrations) + len(snapshot.policies) + len(snapshot.sandboxes),
        skipped=snapshot.skipped,
        locate=source.location,
    )


async def _judged(
    snapshot: Snapshot,
    client: RegistryClient,
    *,
    manifests: dict[str, Manifest],
    options: Options,
    progress: "Progress",
) -> Report:
    settings = CompilerSettings(builtins=BUILTIN_BINDINGS, loopback=options.loopback, knowledge=options.knowledge)
    drafts, about_drafts = drafts_of(snapshot, settings)
    is_live = options.knowledge is Knowledge.LIVE
    descriptions = await describe_all(client, drafts) if is_live else recorded(drafts, manifests)
    registry = accept(drafts, descriptions, manifests=manifests, settings=settings)
    policies = policies_of(snapshot, progress.drafted)
    asked = questions_of(policies, registry.bindings, settings=settings)
    verdicts = await ask_all(asked, client=client, builtins=BUILTINS, deadline=ASK_DEADLINE)
    found = judge(
        policies, snapshot.sandboxes, registry, verdicts=verdicts, settings=settings, progress=progress.checked
    )
    return merge((about_drafts, registry.report, found))


class Progress:
    """One line on a terminal, only while something takes longer than a second."""

    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._began = self._drawn = time.monotonic()
        self._is_terminal = err.isatty()
        self._is_shown = False

    def read(self, done: int, total: int) -> None:
        """Hear of files read, of how many."""
        self._show("reading", done, total, "files")

    def drafted(self, done: int, total: int) -> None:
        """Hear of policies taken apart, of how many."""
        self._show("reading", done, total, "policies")

    def checked(self, done: int, total: int) -> None:
        """Hear of policies judged, of how many."""
        self._show("checking", done, total, "policies")

    def clear(self) -> None:
        """Leave no trace."""
        if self._is_shown:
            self._err.write("\r\x1b[K")
            self._err.flush()

    def _show(self, verb: str, done: int, total: int, noun: str) -> None:
        if not self._is_terminal:
            return
        now = time.monotonic()
        if now - self._began < _QUIET_SECONDS or now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn, self._is_shown = now, True
        share = done / max(total, 1)
        bar = ("=" * int(share * _BAR_WIDTH)).ljust(_BAR_WIDTH)
        self._err.write(f"\r\x1b[K[{bar}] {int(share * 100):3} %  {verb} {done} of {total} {noun}")
        self._err.flush()


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
    return report((), (Advice(subject=Subject(kind=FILE, name=shown(p)), path="", message=message) for p in paths))


def _exit_code(found: Report) -> int:
    if found.is_valid:
        return 0
    return 2 if found.is_retryable else 1
