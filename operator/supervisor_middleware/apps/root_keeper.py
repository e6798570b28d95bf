"""Keeps the root of identities: every replica follows what is kept, and the one that leads moves it on.

Order: what is kept is adopted, so that every offer and enrolment carries its bundle; the bundle is published in every
namespace and told to every supervisor; then what is known of others is gathered, and the next stage written over the
version that was read. A leader that is killed anywhere in between leaves a state that the next one goes on from.

What is deleted is not made anew, nor restored from memory: somebody may have wanted it gone. This process goes on
with what it has, and says so, loudly, until the roots are back.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.apps.replica import Replica
from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError, Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.rotation import Cause, Facts, Rotation, Rules, Wait, advance, waits
from supervisor_middleware.pki.rotation_record import StoredRotation
from supervisor_middleware.pki.rotation_requests import Request, Stage
from supervisor_middleware.pki.rotation_status import status_of
from supervisor_middleware.settings import ControlPlaneSettings, RootRotation

LOOK_INTERVAL: Final = timedelta(seconds=5)
_LOOKS_AN_OVERLAP: Final = 4
_RETRY: Final = 1.0

_KINDS: Final = {stage: ChangeKind(f"root_{stage.value}") for stage in Stage}
_log = structlog.get_logger(__name__)


class Roots(Protocol):
    """Where the roots are kept: `sources.cluster_authority.ClusterAuthority`, `pki.rotation_files.RotationFiles`."""

    async def read(self, *, now: datetime, known: Rotation) -> StoredRotation | None:
        """What is kept; None: it is gone."""

    async def write(self, rotation: Rotation, *, over: StoredRotation, check: Callable[[], None]) -> bool:
        """Keep another instead, if `check` does not raise; False: what is kept is another by now."""

    async def show(self, status: JsonObject, *, check: Callable[[], None]) -> None:
        """Let people see where the rotation stands."""


class Leading(Protocol):
    """What a leader knows of others, and tells them (`apps.root_facts.LeaderFacts`)."""

    def check(self) -> None:
        """Raise `Unavailable` if this process leads no more."""

    def tell(self, rotation: Rotation) -> None:
        """Have supervisors told of the bundle, and (tainted) told to renew."""

    async def facts(self, rotation: Rotation) -> Facts:
        """Publish the bundle, and gather what is known."""


@dataclass(slots=True, kw_only=True)
class RootKeeper:
    """One a process. `run` for ever; `leading` while this process leads."""

    replica: Replica
    roots: Roots
    emit: Callable[[Event], None]
    rules: Rules
    now: Callable[[], datetime] = utc_now
    _leading: Leading | None = None
    _shown: JsonObject | None = None
    _trouble: str = ""
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.contextmanager
    def leading(self, leading: Leading) -> Iterator[None]:
        """Move the rotation on as long as this lasts."""
        self._leading, self._shown = leading, None
        self._woken.set()
        try:
            yield
        finally:
            self._leading = None

    async def run(self) -> None:
        """Look again and again; what cannot be read or written now is tried again."""
        pause = min(LOOK_INTERVAL, self.rules.overlap / _LOOKS_AN_OVERLAP).total_seconds()
        while True:
            try:
                for _ in Stage:
                    if not await self.look():
                        break
            except SupervisorMiddlewareError as error:
                # Also what the API server refuses for good: whoever made the Secret immutable can undo that.
                _log.warning("the root of identities cannot be looked after now", reason=str(error))
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)

    async def catch_up(self) -> None:
        """Return once what is kept is known: before anything is issued by one that has just come to lead."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                _log.warning("the root of identities cannot be read yet", reason=str(error))
                await asyncio.sleep(_RETRY)
            except SupervisorMiddlewareError as error:
                _log.warning("the root of identities cannot be looked after now", reason=str(error))
                return
            else:
                return

    async def look(self) -> bool:
        """One look; whether it changed something, so that the next one should follow at once.

        Raises:
            SupervisorMiddlewareError: the roots cannot be read or written now.
        """
        async with self._turn:
            return await self._look()

    async def _look(self) -> bool:
        leading, now = self._leading, self.now()
        try:
            stored = await self.roots.read(now=now, known=self.replica.rotation)
        except InvalidInput as error:
            self._tell_trouble(str(error), kind=ChangeKind.ROOT_REFUSED)
            return False
        if stored is None:
            self._tell_trouble("it is missing", kind=ChangeKind.ROOT_MISSING)
            return False
        self._tell_trouble(stored.problem, kind=ChangeKind.ROOT_REFUSED)
        self._adopt(stored.rotation)
        self._measure()
        if leading is None or leading is not self._leading:
            return False
        return await self._move(stored, leading, now=now)

    async def _move(self, stored: StoredRotation, leading: Leading, *, now: datetime) -> bool:
        rotation = stored.rotation
        leading.tell(rotation)
        if stored.changes:
            # Noted nowhere yet, or somebody else wrote there.
            return await self._write(rotation, over=stored, leading=leading)
        request = stored.request
        is_news = request is not None and request.identifier != rotation.handled
        is_idle = rotation.stage is Stage.STEADY and not is_news
        facts = Facts() if is_idle else await leading.facts(rotation)
        waiting = waits(rotation, facts, now=now, rules=self.rules)
        following = advance(rotation, facts, now=now, rules=self.rules, request=request)
        await self._show(status_of(rotation, waiting, problem=stored.problem), leading)
        if following is None or not await self._write(following, over=stored, leading=leading):
            return False
        self._adopt(following)
        self._report(following, before=rotation, request=request if is_news else None, waiting=waiting)
        return True

    def _adopt(self, rotation: Rotation) -> None:
        if rotation != self.replica.rotation:
            self.replica.follow(rotation)

    async def _write(self, rotation: Rotation, *, over: StoredRotation, leading: Leading) -> bool:
        return await self.roots.write(rotation, over=over, check=leading.check)

    async def _show(self, status: JsonObject, leading: Leading) -> None:
        if status == self._shown:
            return
        try:
            await self.roots.show(status, check=leading.check)
        except SupervisorMiddlewareError as error:
            _log.warning("where the rotation stands cannot be shown", reason=str(error))
        else:
            self._shown = status

    # -------------------------------------------------------------------------------------------------------- telling

    def _report(
        self, rotation: Rotation, *, before: Rotation, request: Request | None, waiting: tuple[Wait, ...]
    ) -> None:
        subject, asked = _subject(rotation), "" if request is None else request.identifier
        if rotation.stage is before.stage:
            reason = "supplied" if rotation.is_supplied else "under_way"
            kind = ChangeKind.ROOT_REQUEST_REFUSED
            self.emit(Changed(kind=kind, subject=subject, reason=reason, request=asked))
            _log.warning("a request for a rotation does nothing now", request=asked, reason=reason)
            return
        if rotation.cause is Cause.FORCED and request is not None:
            overridden = ",".join(wait.awaited.value for wait in waiting)
            count = sum(wait.count for wait in waiting if wait.awaited.value.startswith("supervisors"))
            forced = Changed(
                kind=ChangeKind.ROOT_FORCED, subject=subject, reason=overridden, request=asked, count=count
            )
            self.emit(forced)
            _log.warning("a stage was ended by force", stage=before.stage.value, overridden=_words(waiting))
        digest = bundle_digest(rotation.roots.bundle)
        kind, cause = _KINDS[rotation.stage], rotation.cause.value
        self.emit(Changed(kind=kind, subject=subject, reason=cause, digest=digest, request=asked))
        _log.info("the root of identities", stage=rotation.stage.value, cause=cause, trust_bundle=digest)

    def _tell_trouble(self, trouble: str, *, kind: ChangeKind) -> None:
        self.replica.metrics.root_usable.set(not trouble)
        if trouble and trouble != self._trouble:
            self.emit(Changed(kind=kind, subject=_subject(self.replica.rotation), reason=kind.value))
        if trouble:
            _log.error(
                "the CA of identities cannot be used where it is kept; this process goes on with the one it has, a "
                "restart could not: restore it",
                reason=trouble,
            )
        elif self._trouble:
            _log.info("the CA of identities is as it should be again")
        self._trouble = trouble

    def _measure(self) -> None:
        rotation, metrics = self.replica.rotation, self.replica.metrics
        for stage in Stage:
            metrics.root_stage.labels(stage.value).set(stage is rotation.stage)
        deadline = rotation.deadline
        metrics.root_deadline.set(0 if deadline is None else deadline.timestamp())


def rotation_rules(settings: ControlPlaneSettings) -> Rules:
    """What the administrator wants of rotations."""
    return Rules(
        overlap=settings.root_overlap,
        root_lifetime=settings.root_lifetime,
        is_scheduled=settings.root_rotation is RootRotation.SCHEDULED,
    )


def _subject(rotation: Rotation) -> str:
    return f"CertificateAuthority {bundle_digest(rotation.roots.current.certificate_pem)[:19]}"


def _words(waiting: tuple[Wait, ...]) -> list[str]:
    return [f"{wait.awaited.value}: {', '.join(wait.names) or wait.count}" for wait in waiting]
