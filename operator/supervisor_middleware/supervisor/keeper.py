"""Keeps one complete, known-good generation served, through every offer, outage and restart.

Takes offers (the newest wins, also over one that is being prepared), asks the pure rules in `activation` and
`waiting`, prepares off to the side, swaps whole, persists, reports. While a needed service is missing it tries again
by itself, whatever the operator does. Dials nothing (`preparation` does) and speaks no protocol (`subscriber` does).

The order is: swap, persist, report `active` (`accepted` before it, if the disk is slow). Serving never waits for a
disk, and what was reported active survives a crash. A crash between swap and persist comes back with the previous
generation, which is complete too and which is what the operator was last told; it offers the new one again. A disk
that takes nothing delays the report by `persistence.ATTEMPT_WAIT` at most: then we serve from memory, and a restart
comes back with the older generation.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from supervisor_middleware.model.generation import Generation, Rank
from supervisor_middleware.supervisor.activation import (
    NOTHING_HELD,
    Candidate,
    Held,
    OfferedGeneration,
    Refusal,
    examine,
)
from supervisor_middleware.supervisor.keeping import Surroundings
from supervisor_middleware.supervisor.pacing import Backoff, first_of, jittered, unless
from supervisor_middleware.supervisor.preparation import is_settled
from supervisor_middleware.supervisor.record import Defect, Record
from supervisor_middleware.supervisor.reports import Hello
from supervisor_middleware.supervisor.runtime import Prepared
from supervisor_middleware.supervisor.store import Loaded
from supervisor_middleware.supervisor.waiting import NOT_WAITING, Activate, Wait, Waits, decide, waits_of

RETRY_MAX: Final = 10.0
"""Longest pause, in seconds, between two attempts at a missing service."""
LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks at whether connected services are still reachable."""
PROMPT_SECONDS: Final = 0.1
"""After so long without a word about an offer the operator hears at least that it could be prepared."""


@dataclass(slots=True, kw_only=True)
class _Pending:
    candidate: Candidate
    waits: Waits
    attempt: Prepared | None = None
    remaining: timedelta | None = None

    def drop(self) -> None:
        if self.attempt is not None:
            self.attempt.retire()


class Keeper:
    """One supervisor's control side. `restore` first, then `run` for ever; `offer` at any time."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._with = surroundings
        self._held = NOTHING_HELD
        self._offered: OfferedGeneration | None = None
        self._news = asyncio.Event()
        self._is_unsaved = False
        self._defect: Defect | None = None
        self._pending: _Pending | None = None
        self._backoff = Backoff(random=surroundings.random, longest=RETRY_MAX)

    @property
    def rank(self) -> Rank:
        """The highest pair taken so far: anything lower is refused."""
        return self._held.rank

    @property
    def is_waiting(self) -> bool:
        """Whether last-known-good is served while a newer candidate waits for a service."""
        return self._pending is not None

    @property
    def defect(self) -> Defect | None:
        """Why what was on disk was not used at the start; None: it was, or there is something new."""
        return self._defect

    def hello(self) -> Hello:
        """Where this supervisor stands, for the beginning of a stream."""
        running = self._with.runtime.current
        return Hello(
            active_digest="" if running is None else running.digest,
            rank=self._held.rank,
            rejected_digests=tuple(r.digest for r in self._held.refusals),
            trust_bundle_digest=self._with.trust_bundle_digest(),
            version=self._with.version,
            defect=self._defect,
        )

    def offer(self, offered: OfferedGeneration) -> None:
        """Take note of an offer; one that was not looked at yet is forgotten."""
        self._offered = offered
        self._news.set()

    def follow(self, epoch: int) -> None:
        """Take note of an operator that said something without a generation: what earlier ones say is stale now."""
        rank = max(self._held.rank, Rank(epoch=epoch))
        if rank != self._held.rank:
            self._held = replace(self._held, rank=rank)
            self._is_unsaved = True
            self._news.set()

    async def restore(self, loaded: Loaded) -> None:
        """Serve what is on disk, before any contact with the operator. Services that are down follow `on_error`."""
        self._defect = loaded.defect
        if loaded.defect is not None:
            self._with.announcer.defective(loaded.defect)
        if (record := loaded.record) is None:
            return
        # Another version may run what that one could not.
        refusals = record.held.refusals if record.version == self._with.version else ()
        self._held = Held(rank=record.held.rank, refusals=refusals)
        if record.sealed is not None:
            candidate = Candidate(sealed=record.sealed, rank=record.held.rank)
            prepared = await self._with.preparation.prepare(candidate, credentials=self._with.credentials.value)
            self._with.runtime.swap(prepared)
            self._with.announcer.serving(prepared.digest)

    async def run(self) -> None:
        """Work through offers and retries; for ever."""
        while True:
            renewal = self._with.credentials.change
            self._news.clear()
            await self._look_at_offer()
            await self._keep_epoch()
            await self._try_pending()
            await self._refresh_running()
            self._forget_defect()
            await first_of(self._news.wait(), renewal.wait(), self._with.clock.sleep(self._pause()))

    async def _look_at_offer(self) -> None:
        offered, self._offered = self._offered, None
        if offered is None:
            return
        self._backoff.reset()
        match examine(offered, held=self._held):
            case Refusal() as refusal:
                await self._refuse(refusal)
            case Candidate() as candidate:
                await self._take(candidate)

    async def _keep_epoch(self) -> None:
        """Also after a restart nobody who led before is believed."""
        if self._is_unsaved:
            self._is_unsaved = False
            await self._save()

    def _forget_defect(self) -> None:
        if self._with.runtime.is_ready and self._with.saving.is_saved:
            self._defect = None

    async def _refuse(self, refusal: Refusal) -> None:
        if refusal in self._held.refusals:
            self._with.announcer.refused_again(refusal)
            return
        self._with.announcer.refused(refusal)
        self._held = self._held.refused(refusal)
        if refusal.is_about_content:
            await self._save()

    async def _take(self, candidate: Candidate) -> None:
        self._held = replace(self._held, rank=candidate.rank)
        running, pending = self._with.runtime.current, self._pending
        digest = candidate.sealed.digest
        if running is not None and running.digest == digest:
            self._drop_pending()
            await self._save()
            self._with.announcer.active_again(digest, running.reports())
        elif pending is not None and pending.candidate.sealed.digest == digest:
            pending.candidate = candidate
        else:
            self._pending = self._succeeding(pending, candidate)
            self._with.announcer.wait_is_over()

    def _succeeding(self, pending: _Pending | None, candidate: Candidate) -> _Pending:
        """`candidate` in the place of the one that waits: what that has connected, and for how long, goes on."""
        now, generation = self._with.clock.monotonic(), candidate.sealed.generation
        before = NOT_WAITING if pending is None else pending.waits
        return _Pending(
            candidate=candidate,
            waits=waits_of(generation, running=self._running(), before=before, now=now),
            attempt=None if pending is None else pending.attempt,
        )

    def _running(self) -> Generation | None:
        running = self._with.runtime.current
        return None if running is None else running.candidate.sealed.generation

    async def _refresh_running(self) -> None:
        running = self._with.runtime.current
        if running is None:
            return
        if not is_settled(running, credentials=self._with.credentials.value):
            prepared = await self._prepared(running.candidate, yields_to=self._news)
            if prepared is not None:
                running = prepared
                self._with.runtime.swap(prepared)
        self._with.announcer.active(running.digest, running.reports())

    async def _try_pending(self) -> None:
        if (pending := self._pending) is None:
            return
        # A stream of offers must not keep the platform's from ever being looked at to the end.
        is_overdue = pending.waits.is_overdue(now=self._with.clock.monotonic())
        yields_to = asyncio.Event() if is_overdue else self._news
        prepared = await self._prepared(pending.candidate, attempt=pending.attempt, yields_to=yields_to)
        if prepared is None:
            return  # a newer offer came
        pending.drop()
        pending.attempt = None
        match decide(
            running=self._running(),
            candidate=pending.candidate.sealed.generation,
            states=prepared.states(),
            waits=pending.waits,
            now=self._with.clock.monotonic(),
        ):
            case Activate():
                self._pending = None
                await self._activate(prepared)
            case Wait(remaining=remaining):
                pending.attempt, pending.remaining = prepared, remaining
                self._with.announcer.waiting(prepared.digest, prepared.reports())

    async def _activate(self, prepared: Prepared) -> None:
        announcer = self._with.announcer
        self._with.runtime.swap(prepared)
        announcer.serving(prepared.digest)
        self._backoff.reset()
        # Who is about to say that it serves need not say first that it could.
        slow = asyncio.get_running_loop().call_later(PROMPT_SECONDS, announcer.accepted, prepared.digest)
        try:
            await self._save()
        finally:
            slow.cancel()
        announcer.active(prepared.digest, prepared.reports())

    async def _prepared(
        self, candidate: Candidate, *, attempt: Prepared | None = None, yields_to: asyncio.Event
    ) -> Prepared | None:
        """`candidate` prepared, or None as soon as what it yields to happens."""
        preparing = self._with.preparation.prepare(
            candidate, credentials=self._with.credentials.value, running=self._with.runtime.current, attempt=attempt
        )
        return await unless(yields_to, preparing)

    def _pause(self) -> float:
        running, pending = self._with.runtime.current, self._pending
        is_settled_now = running is None or is_settled(running, credentials=self._with.credentials.value)
        if pending is None and is_settled_now:
            self._backoff.reset()
            return jittered(LOOK_INTERVAL, random=self._with.random)
        pause = self._backoff.next()
        if pending is not None and pending.remaining is not None:
            return min(pause, pending.remaining.total_seconds())
        return pause

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._pending.drop()
            self._pending = None
            self._with.announcer.wait_is_over()

    async def _save(self) -> None:
        running = self._with.runtime.current
        record = Record(
            sealed=None if running is None else running.candidate.sealed,
            held=self._held,
            trust_bundle_digest=self._with.trust_bundle_digest(),
            version=self._with.version,
        )
        await self._with.saving.save(record)
