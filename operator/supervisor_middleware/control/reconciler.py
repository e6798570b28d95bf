"""Gather, decide, apply: level-triggered, one pass at a time, over the whole snapshot.

Owns the order in which things become true: a revision is persisted, then the policy's status names it (the commit
point), then sandboxes are offered it; what could not be committed is not offered. Services are asked in the
background, so a slow one holds back nobody else; each answer asks for another pass. While any kind is unknown nothing
changes at all.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

import structlog

from supervisor_middleware.audit.events import Event
from supervisor_middleware.control.acceptances import Acceptances, Revisions
from supervisor_middleware.control.batches import for_each
from supervisor_middleware.control.collection import Collector
from supervisor_middleware.control.commits import orphans, revision_to_store, surplus
from supervisor_middleware.control.decisions import Decisions, decide
from supervisor_middleware.control.inquiries import Asker, Inquiries
from supervisor_middleware.control.judge import Judge, PolicyDecision
from supervisor_middleware.control.leaving import Leaving
from supervisor_middleware.control.measures import Measures
from supervisor_middleware.control.passes import Passes
from supervisor_middleware.control.publications import Publications
from supervisor_middleware.control.rollout import Composer, Rollout
from supervisor_middleware.control.status_writer import StatusStore, StatusWriter
from supervisor_middleware.control.statuses import Statuses
from supervisor_middleware.distribution.ledger import View
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot, StoredRevision
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.telemetry import ControlMetrics

_Accepted = Mapping[str, StoredRevision]
_log = structlog.get_logger(__name__)


class Source(Protocol):
    """Where objects come from."""

    async def snapshot(self) -> Snapshot:
        """Everything at one moment, with everything that was written through the store before."""


class Store(StatusStore, Protocol):
    """Where decisions are kept. Every method may raise `Unavailable`."""

    async def save_revision(self, stored: StoredRevision) -> None:
        """Create a revision; one that is there already, with the same digest, is fine."""

    async def delete_revision(self, name: str) -> None:
        """Remove a revision; an absent one is fine."""

    async def publish_bundle(self, pem: bytes, *, namespaces: frozenset[str]) -> None:
        """Give supervisors of these namespaces the trust bundle."""


class Distributor(Protocol):
    """Where generations go."""

    async def publish(self, changes: Mapping[str, Assignment | None]) -> None:
        """Make these what sandboxes should run, by supervisor key; None for one that is no more."""

    def view(self, key: str, digest: str) -> View:
        """How a supervisor stands with a generation, published already or not."""


class Reconciler:
    """The control loop. Everything it is given is a Protocol or a value."""

    def __init__(  # noqa: PLR0913 - by name, each a different thing
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
        metrics: ControlMetrics,
        catalog: Catalog | None = None,
        acceptances: Acceptances | None = None,
    ) -> None:
        """`now` is UTC; `emit` takes audit events; `catalog` is what this process knows of services already.

        `acceptances` is the replica's.
        """
        self._source, self._store, self._distributor = source, store, distributor
        self._epoch, self._trust_bundle, self._now = epoch, trust_bundle, now
        self._measures = Measures(metrics)
        self._passes = Passes(self.reconcile, due=self._next_due, now=now, measures=self._measures)
        self._inquiries = Inquiries(asker, now=now, answered=self.request, catalog=catalog)
        self._judge = Judge(settings, acceptances=acceptances or Acceptances())
        self._composer = Composer(settings)
        self._leaving = Leaving()
        self._writer = StatusWriter(store, emit=emit, failed=self._passes.request_soon)
        self._statuses = Statuses(self._writer, distributor)
        self._publications = Publications(emit)
        self._collector = Collector(store.delete_revision)
        self._is_held = False
        self._sandboxes = Snapshot().sandboxes
        self.has_published = asyncio.Event()

    @property
    def catalog(self) -> Catalog:
        """What services said: the webhook shares it, so that nobody is asked twice."""
        return self._inquiries.catalog

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        """Those of the last pass."""
        return self._sandboxes

    def request(self) -> None:
        """Ask for a pass; many requests are one."""
        self._passes.request()

    def stands(self) -> None:
        """A supervisor stands otherwise now: statuses may have to say so."""
        self._passes.request_standings()

    def lost(self, connection: Connection) -> None:
        """The connection to a service ended; it is described again soon."""
        self._inquiries.lost(connection)

    async def run(self) -> None:
        """Pass after pass until cancelled. A pass that fails is logged and tried again, never fatal."""
        try:
            await self._passes.run()
        finally:
            self._inquiries.cancel()
            self._collector.cancel()
            self._writer.cancel()

    async def reconcile(self) -> None:
        """One pass.

        Raises:
            Unavailable: the source could not be used; nothing was done.
        """
        snapshot = await self._source.snapshot()
        self._is_held = bool(snapshot.unknown)
        if self._is_held:
            _log.error("holding everything as it is: kinds cannot be read", kinds=sorted(snapshot.unknown))
            return
        now = self._now()
        if not self.has_published.is_set():
            self._leaving = Leaving(accepted=orphans(snapshot))
        self._writer.begin_pass(frozenset(s.uid for s in (*snapshot.policies, *snapshot.registrations)))
        decisions = await self._decide(snapshot)
        self._inquiries.pursue(decisions)
        if frozen := await self._commit_registrations(decisions, now=now):
            decisions = await self._decide(snapshot, frozen=frozen)
        revisions = self._judge.acceptances.of(snapshot).revisions
        accepted, rollout = await self._commit_policies(snapshot, decisions, revisions, now=now)
        self._sandboxes = snapshot.sandboxes
        await self._distributor.publish(rollout.changes)
        await self._publications.tell(rollout.changes)
        self._composer.published()
        self.has_published.set()
        standings = self._statuses.standings(decisions.policies, accepted, rollout, registry=decisions.registry)
        self._measures.stand(standings, now=self._now())
        self._measures.registered(decisions.registry.registrations)
        await self._statuses.write_all(decisions, standings, now=now)
        await self._publish_bundle(snapshot)
        self._collect(snapshot, accepted, revisions)

    # -------------------------------------------------------------------------------------------------- committing

    def _next_due(self) -> datetime | None:
        if self._is_held:
            # What is due stays due: nothing but news from the source is worth a pass.
            return None
        due = (owner.next_due() for owner in (self._inquiries, self._leaving, self._writer))
        return min((d for d in due if d is not None), default=None)

    async def _decide(self, snapshot: Snapshot, *, frozen: frozenset[str] = frozenset()) -> Decisions:
        """Off the loop: many intricate policies may be new at once, and streams and reviews go on meanwhile."""
        return await asyncio.to_thread(decide, snapshot, self._inquiries.catalog, judge=self._judge, frozen=frozen)

    async def _commit_registrations(self, decisions: Decisions, *, now: datetime) -> frozenset[str]:
        """Write what is newly accepted; returns those (by UID) that stay on what they had."""
        fresh = [r for r in decisions.registry.registrations if r.is_fresh]
        outcomes = await self._statuses.write_registrations(fresh, decisions, now=now)
        return frozenset(r.stored.uid for r, is_written in zip(fresh, outcomes, strict=True) if not is_written)

    async def _commit_policies(
        self, snapshot: Snapshot, decisions: Decisions, revisions: Revisions, *, now: datetime
    ) -> tuple[_Accepted, Rollout]:
        """Persist fresh revisions and name them in statuses; what is accepted (by UID) and comes of that."""
        accepted = {p.stored.uid: p.accepted for p in decisions.policies if p.accepted is not None}
        hoped_for = self._to_save(decisions, revisions)
        wanted = {**accepted, **hoped_for}
        leaving = self._leaves(decisions, wanted, now=now)
        # Composed while the store works: nearly always it takes them all.
        composing = asyncio.create_task(self._roll_out(snapshot, decisions, leaving))
        try:
            saved = await self._save(decisions, hoped_for, revisions)
        finally:
            rollout = await composing
        if len(saved) < len(hoped_for):
            wanted = {**accepted, **saved}
            leaving = self._leaves(decisions, wanted, now=now)
            rollout = await self._roll_out(snapshot, decisions, leaving)
        fresh = [p for p in decisions.policies if p.stored.uid in saved]
        standings = self._statuses.standings(fresh, wanted, rollout, registry=decisions.registry)
        written = await self._statuses.write_policies(fresh, standings, now=now)
        committed = {p.stored.uid for p, is_written in zip(fresh, written, strict=True) if is_written}
        for uid in committed:
            self._measures.changed(uid, at=now)
        if len(committed) < len(fresh):
            wanted = {**accepted, **{uid: stored for uid, stored in saved.items() if uid in committed}}
            leaving = self._leaves(decisions, wanted, now=now)
            rollout = await self._roll_out(snapshot, decisions, leaving)
        self._leaving = leaving
        return wanted, rollout

    def _to_save(self, decisions: Decisions, revisions: Revisions) -> dict[str, StoredRevision]:
        """Fresh revisions (by policy UID)."""
        return {
            p.stored.uid: revision_to_store(
                p.fresh, policy=p.stored, stored=revisions.get(p.stored.uid, ()), epoch=self._epoch
            )
            for p in decisions.policies
            if p.fresh is not None
        }

    async def _save(self, decisions: Decisions, fresh: _Accepted, revisions: Revisions) -> dict[str, StoredRevision]:
        """Save `fresh`; one that cannot be saved leaves its policy on what it has, and the others go on."""

        async def save(policy: PolicyDecision) -> StoredRevision | None:
            stored = fresh[policy.stored.uid]
            if stored in revisions.get(policy.stored.uid, ()):
                return stored
            try:
                await self._store.save_revision(stored)
            except SupervisorMiddlewareError as error:
                _log.warning("a revision could not be kept", policy=str(policy.stored.subject), reason=str(error))
                self._passes.request_soon()
                return None
            return stored

        outcomes = await for_each((p for p in decisions.policies if p.stored.uid in fresh), save)
        return {stored.revision.uid: stored for stored in outcomes if stored is not None}

    def _leaves(self, decisions: Decisions, accepted: _Accepted, *, now: datetime) -> Leaving:
        fallbacks = {
            p.stored.uid: p.fallback
            for p in decisions.policies
            if p.stored.uid not in accepted and p.fallback is not None
        }
        in_force = {
            p.stored.uid: accepted[p.stored.uid].revision for p in decisions.policies if p.stored.uid in accepted
        }
        return self._leaving.after(in_force, fallbacks, now=now)

    async def _roll_out(self, snapshot: Snapshot, decisions: Decisions, leaving: Leaving) -> Rollout:
        return await asyncio.to_thread(
            self._composer.roll_out,
            snapshot.sandboxes,
            leaving.applying,
            namespaces=snapshot.namespaces,
            bindings=decisions.registry.bindings,
        )

    def _collect(self, snapshot: Snapshot, accepted: _Accepted, revisions: Revisions) -> None:
        needed = frozenset((*(p.uid for p in snapshot.policies), *self._leaving.gone))
        self._collector.collect(stored.name for stored in surplus(revisions, accepted=accepted, needed=needed))

    async def _publish_bundle(self, snapshot: Snapshot) -> None:
        namespaces = frozenset(s.namespace for s in snapshot.sandboxes)
        try:
            await self._store.publish_bundle(self._trust_bundle(), namespaces=namespaces)
        except Unavailable as error:
            _log.warning("the trust bundle could not be published everywhere", reason=str(error))
            self._passes.request_soon()
