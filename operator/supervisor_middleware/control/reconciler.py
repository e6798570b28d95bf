"""Gather, decide, apply: level-triggered, one pass at a time, over the whole snapshot.

Owns the order in which things become true: a revision is persisted, then the policy's status names it (the commit
point), then sandboxes are offered it. Services are asked in the background, so a slow one holds back nobody else;
each answer asks for another pass. While any kind is unknown nothing changes at all.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.control.conditions import summary_of
from supervisor_middleware.control.decisions import (
    Decisions,
    PolicyDecision,
    RegistrationDecision,
    decide,
    newest_revision,
)
from supervisor_middleware.control.inquiries import Asker, Inquiries
from supervisor_middleware.control.rollout import Composer, Leaving, Rollout
from supervisor_middleware.control.status import (
    PolicyStanding,
    RegistrationStanding,
    is_news,
    policy_status,
    registration_status,
)
from supervisor_middleware.distribution.ledger import View
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.generation import Sealed
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from supervisor_middleware.model.violation import Report, Subject, merge
from supervisor_middleware.registry.catalog import Catalog

KEPT_REVISIONS: Final = 2
RESYNC: Final = timedelta(seconds=30)
_SHORTEST_PAUSE: Final = timedelta(milliseconds=50)

_log = structlog.get_logger(__name__)


class Weight(StrEnum):
    """How much a notice matters, in Kubernetes' words."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Source(Protocol):
    """Where objects come from."""

    async def snapshot(self) -> Snapshot:
        """Everything at one moment."""


class Store(Protocol):
    """Where decisions are kept. Every method may raise `Unavailable`."""

    async def save_revision(self, stored: StoredRevision) -> None:
        """Create a revision; one that is there already, with the same digest, is fine."""

    async def delete_revision(self, name: str) -> None:
        """Remove a revision; an absent one is fine."""

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        """Replace a status, if the object is still the one that was read."""

    async def publish_bundle(self, pem: bytes, *, namespaces: frozenset[str]) -> None:
        """Give supervisors of these namespaces the trust bundle."""

    async def notify(self, subject: Subject, *, uid: str, reason: str, message: str, weight: str) -> None:
        """Tell whoever looks at the object."""


class Distributor(Protocol):
    """Where generations go."""

    async def publish(self, generations: Mapping[str, Sealed]) -> None:
        """Make these what sandboxes should run, by supervisor key."""

    def view(self, key: str, *, digest: str) -> View:
        """How a supervisor stands with a generation, published already or not."""


class Reconciler:
    """The control loop. Everything it is given is a Protocol or a value."""

    def __init__(
        self,
        *,
        source: Source,
        store: Store,
        distributor: Distributor,
        asker: Asker,
        settings: CompilerSettings,
        epoch: int,
        trust_bundle: Callable[[], bytes],
        now: Callable[[], datetime],
        emit: Callable[[Event], None],
    ) -> None:
        """`now` is UTC; `emit` takes audit events."""
        self._source, self._store, self._distributor = source, store, distributor
        self._settings, self._epoch, self._trust_bundle, self._now, self._emit = (
            settings,
            epoch,
            trust_bundle,
            now,
            emit,
        )
        self._inquiries = Inquiries(asker, now=now, answered=self.request)
        self._composer = Composer(settings)
        self._leaving = Leaving()
        self._wanted = asyncio.Event()
        self.has_published = asyncio.Event()

    @property
    def catalog(self) -> Catalog:
        """What services said: the webhook shares it, so that nobody is asked twice."""
        return self._inquiries.catalog

    def request(self) -> None:
        """Ask for a pass; many requests are one."""
        self._wanted.set()

    async def run(self) -> None:
        """Pass after pass until cancelled. A pass that fails is logged and tried again, never fatal."""
        self.request()
        try:
            while True:
                await self._wait()
                await self._guarded_pass()
        finally:
            self._inquiries.cancel()

    async def reconcile(self) -> None:
        """One pass.

        Raises:
            Unavailable: the source or the store could not be used; nothing is half done.
        """
        snapshot = await self._source.snapshot()
        if snapshot.unknown:
            _log.error("holding everything as it is: kinds cannot be read", kinds=sorted(snapshot.unknown))
            return
        now = self._now()
        decisions = decide(snapshot, self._inquiries.catalog, settings=self._settings)
        self._inquiries.pursue(decisions)
        accepted = await self._commit(snapshot, decisions)
        revisions = self._in_force(decisions, accepted, now=now)
        rollout = self._composer.roll_out(snapshot.sandboxes, revisions, bindings=decisions.registry.bindings)
        await self._store.publish_bundle(
            self._trust_bundle(), namespaces=frozenset(s.namespace for s in snapshot.sandboxes)
        )
        await self._distributor.publish(rollout.generations)
        self.has_published.set()
        await self._write_statuses(decisions, accepted, rollout, now=now)
        await self._collect(snapshot, accepted)

    async def _guarded_pass(self) -> None:
        try:
            await self.reconcile()
        except Unavailable as error:
            _log.warning("a pass could not be completed and is tried again", reason=str(error))
            asyncio.get_running_loop().call_later(1.0, self.request)
        except Exception:  # noqa: BLE001 - see below
            # A pass must never end the operator: the data plane depends on it staying up, not on this pass.
            _log.exception("a pass failed and is tried again")
            asyncio.get_running_loop().call_later(5.0, self.request)

    async def _wait(self) -> None:
        """Until somebody asks or something is due; a burst of requests becomes one pass."""
        due = [d for d in (self._inquiries.next_due(), self._leaving.next_due()) if d is not None]
        pause = min((max(d - self._now(), _SHORTEST_PAUSE) for d in due), default=RESYNC)
        try:
            async with asyncio.timeout(min(pause, RESYNC).total_seconds()):
                await self._wanted.wait()
        except TimeoutError:
            return
        finally:
            self._wanted.clear()

    # -------------------------------------------------------------------------------------------------- committing

    async def _commit(self, snapshot: Snapshot, decisions: Decisions) -> dict[str, StoredRevision]:
        """Persist fresh revisions; returns what is accepted of each policy, by UID."""
        accepted = {p.stored.uid: p.accepted for p in decisions.policies if p.accepted is not None}
        for policy in decisions.policies:
            fresh = policy.fresh
            if fresh is None:
                continue
            try:
                accepted[policy.stored.uid] = await self._commit_one(fresh, snapshot)
            except Unavailable as error:
                # This policy stays on what it has; the others go on.
                _log.warning("a revision could not be kept", policy=str(fresh.policy), reason=str(error))
                self.request()
        return accepted

    async def _commit_one(self, fresh: Revision, snapshot: Snapshot) -> StoredRevision:
        newest = newest_revision(snapshot, fresh.uid)
        if newest is not None and newest.digest == fresh.digest:
            # Saved by a pass whose status write was lost, or not seen yet: the same content is the same revision.
            return newest
        number = 1 if newest is None else newest.number + 1
        stored = StoredRevision(
            name=f"{fresh.uid}-{number}", number=number, epoch=self._epoch, digest=fresh.digest, revision=fresh
        )
        await self._store.save_revision(stored)
        return stored

    def _in_force(
        self, decisions: Decisions, accepted: Mapping[str, StoredRevision], *, now: datetime
    ) -> tuple[Revision, ...]:
        present = {}
        for policy in decisions.policies:
            stored = accepted.get(policy.stored.uid)
            revision = policy.fallback if stored is None else stored.revision
            if revision is not None:
                present[policy.stored.uid] = revision
        return (*present.values(), *self._leaving.observe(present, now=now))

    async def _collect(self, snapshot: Snapshot, accepted: Mapping[str, StoredRevision]) -> None:
        """Keep the current and the previous revision of each policy; drop those of policies that are gone."""
        by_policy: dict[str, list[StoredRevision]] = {}
        for stored in snapshot.revisions:
            by_policy.setdefault(stored.revision.uid, []).append(stored)
        for uid, revisions in by_policy.items():
            current = accepted.get(uid)
            if current is None and any(p.uid == uid for p in snapshot.policies):
                continue
            older = [r for r in revisions if current is None or r.number < current.number]
            surplus = sorted(older, key=lambda r: r.number)[: -(KEPT_REVISIONS - 1) if current is not None else None]
            if current is None and uid in self._leaving.gone:
                continue
            for stored in surplus:
                await self._store.delete_revision(stored.name)

    # ---------------------------------------------------------------------------------------------------- statuses

    async def _write_statuses(
        self, decisions: Decisions, accepted: Mapping[str, StoredRevision], rollout: Rollout, *, now: datetime
    ) -> None:
        for policy in decisions.policies:
            stored_revision = accepted.get(policy.stored.uid)
            standing = self._policy_standing(policy, stored_revision, rollout)
            await self._write(policy.stored, policy_status(policy.stored, standing, now=now), standing.report)
        for registration in decisions.registry.registrations:
            of_registration = _registration_standing(registration, decisions)
            status = registration_status(registration.stored, of_registration, now=now)
            await self._write(registration.stored, status, of_registration.report)

    def _policy_standing(
        self, policy: PolicyDecision, stored: StoredRevision | None, rollout: Rollout
    ) -> PolicyStanding:
        uid = policy.stored.uid
        conflicts = rollout.conflicts.get(uid, Report())
        compiled = policy.compiled
        report = None if compiled is None else merge((compiled.report, conflicts))
        revision = None if compiled is None else compiled.revision
        is_current = revision is not None and stored is not None and stored.digest == revision.digest
        return PolicyStanding(
            report=report,
            accepted=stored,
            is_current=is_current and not conflicts.violations,
            views=[
                self._distributor.view(k, digest=rollout.generations[k].digest) for k in rollout.matched.get(uid, ())
            ],
        )

    async def _write(self, stored: Stored, status: Mapping[str, Any], report: Report | None) -> None:
        if not is_news(status, stored.status):
            return
        try:
            await self._store.write_status(stored, status)
            await self._tell(stored, status, report)
        except Unavailable as error:
            _log.info("a status could not be written yet", object=str(stored.subject), reason=str(error))
            self.request()

    async def _tell(self, stored: Stored, status: Mapping[str, Any], report: Report | None) -> None:
        """Events and audit on transitions of `Accepted` only."""
        before, after = _accepted_condition(stored.status), _accepted_condition(status)
        if report is None or after == before:
            return
        is_good = after[0] == "True"
        weight = Weight.NORMAL if is_good else Weight.WARNING
        message = summary_of(report) or "accepted"
        await self._store.notify(stored.subject, uid=stored.uid, reason=after[1], message=message, weight=weight)
        kind = _CHANGES[stored.subject.kind, is_good]
        self._emit(Changed(kind=kind, subject=str(stored.subject), reason=after[1]))


_CHANGES: Final = {
    ("SandboxPolicy", True): ChangeKind.POLICY_ACCEPTED,
    ("SandboxPolicy", False): ChangeKind.POLICY_REJECTED,
    ("SupervisorMiddleware", True): ChangeKind.REGISTRATION_ACCEPTED,
    ("SupervisorMiddleware", False): ChangeKind.REGISTRATION_REJECTED,
}


def _registration_standing(decision: RegistrationDecision, decisions: Decisions) -> RegistrationStanding:
    offered = frozenset(b.id for b in decision.accepted.manifest.bindings) if decision.accepted else frozenset()
    return RegistrationStanding(
        report=decision.report,
        accepted=decision.accepted,
        policies=sum(_uses(p, offered) for p in decisions.policies),
        is_drifted=decision.is_drifted,
        last_described=decision.last_described,
    )


def _uses(policy: PolicyDecision, offered: frozenset[str]) -> bool:
    current = policy.compiled.revision if policy.compiled is not None else None
    in_force = current or (policy.accepted.revision if policy.accepted else policy.fallback)
    return in_force is not None and any(e.binding in offered for e in in_force.entries)


def _accepted_condition(status: Mapping[str, Any]) -> tuple[str, str]:
    for condition in status.get("conditions", ()):
        if condition.get("type") == "Accepted":
            return str(condition.get("status")), str(condition.get("reason"))
    return "", ""
