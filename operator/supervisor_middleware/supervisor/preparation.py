"""Preparing a candidate off to the side: connect, describe, compare, and only then hand it over whole.

RFC 0009 "Registration and delivery": a candidate is prepared off the request path, and a failed preparation leaves
what runs alone. What runs already as the candidate needs it is taken over as it is, up or down. All else has to have
been described lately: a service that is being upgraded behind its address says one thing now and another in a minute.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.model.generation import Service
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.supervisor.activation import Candidate
from supervisor_middleware.supervisor.capability import ServiceState, state_of
from supervisor_middleware.supervisor.connections import ChannelKey, Lease, Pool, channel_key
from supervisor_middleware.supervisor.describe import CallerRefused, Describer
from supervisor_middleware.supervisor.runtime import Connected, Evaluator, Prepared
from supervisor_middleware.supervisor.waiting import asks_no_more

ANSWER_LASTS: Final = 20.0
"""Seconds that a `Describe` counts for a candidate: two of the longest pauses between attempts, so that services that
are upgraded out of step need not all be capable in the same moment, and one that shrinks is found out."""


class Preparer:
    """Turns candidates into `Prepared` generations. Holds nothing between two preparations but the pool."""

    def __init__(self, *, pool: Pool, describer: Describer, evaluator: Evaluator) -> None:
        self._pool = pool
        self._describer = describer
        self._evaluator = evaluator

    async def prepare(
        self,
        candidate: Candidate,
        *,
        credentials: Credentials | None,
        running: Prepared | None = None,
        attempt: Prepared | None = None,
    ) -> Prepared:
        """`candidate` with every service it needs connected as far as that goes; all services at once.

        Connections and answers of `running` and of an earlier `attempt`, at this candidate or at the one whose place
        it takes, are taken over where they do. The caller swaps the result in or retires it. Cancelling returns every
        lease.
        """
        services = candidate.sealed.generation.services
        with ExitStack() as leases:
            connecting = _Connecting(
                pool=self._pool,
                describer=self._describer,
                clock=self._evaluator.clock,
                credentials=credentials,
                running=running,
                attempt=attempt,
                leases=leases,
            )
            connected = await asyncio.gather(*(connecting.connect(service) for service in services))
            return Prepared(
                candidate=candidate,
                services={c.service.name: c for c in connected},
                evaluator=self._evaluator,
                leases=leases.pop_all(),
            )


def is_settled(prepared: Prepared, *, credentials: Credentials | None) -> bool:
    """Whether every service is ready over a channel that shows the current certificate: nothing to prepare anew."""
    return all(
        c.state is ServiceState.READY
        and c.lease is not None
        and c.lease.key == channel_key(c.service.connection, credentials=credentials)
        for c in prepared.services.values()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connecting:
    pool: Pool
    describer: Describer
    clock: Callable[[], float]
    credentials: Credentials | None
    running: Prepared | None
    attempt: Prepared | None
    leases: ExitStack

    async def connect(self, service: Service) -> Connected:
        key = channel_key(service.connection, credentials=self.credentials)
        if (same := self._taken_over(service, is_same=lambda known: known == key)) is not None:
            return same
        fresh = await self._dialled(service)
        if fresh.state is ServiceState.READY:
            return fresh
        # A renewed certificate that the service does not take (yet) costs nobody the connection that works.
        return self._taken_over(service, is_same=lambda known: _differs_in_certificate(known, key)) or fresh

    def _taken_over(self, service: Service, *, is_same: Callable[[ChannelKey], bool]) -> Connected | None:
        for before in self._known(service):
            if before.lease is None or not is_same(before.lease.key):
                continue
            if state_of(before.manifest, service=service) is ServiceState.READY:
                lease = self._held(before.lease.renewed())
                return replace(before, service=service, state=ServiceState.READY, lease=lease)
        return None

    def _known(self, service: Service) -> Iterator[Connected]:
        """Where it is connected and what it answered, as far as that still counts."""
        running = None if self.running is None else self.running.services.get(service.name)
        if running is not None and asks_no_more(service, of=running.service):
            yield running
        attempt = None if self.attempt is None else self.attempt.services.get(service.name)
        yield from (c for c in (attempt, running) if c is not None and self._is_fresh(c))

    def _is_fresh(self, connected: Connected) -> bool:
        return self.clock() - connected.described_at <= ANSWER_LASTS

    async def _dialled(self, service: Service) -> Connected:
        try:
            lease = self._held(self.pool.lease(service.connection, credentials=self.credentials))
        except (Unavailable, InvalidInput):
            return Connected(service=service, state=ServiceState.UNREACHABLE)
        # A lease whose service does not answer is kept too: the next attempt finds the channel where it got to.
        try:
            manifest = await self.describer.describe(lease.channel, service=service)
        except CallerRefused:
            return Connected(service=service, state=ServiceState.REFUSING, lease=lease)
        except Unavailable:
            return Connected(service=service, state=ServiceState.UNREACHABLE, lease=lease)
        except Untrusted:
            return Connected(service=service, state=ServiceState.INCAPABLE, lease=lease)
        return Connected(
            service=service,
            state=state_of(manifest, service=service),
            manifest=manifest,
            described_at=self.clock(),
            lease=lease,
        )

    def _held(self, lease: Lease) -> Lease:
        self.leases.callback(lease.release)
        return lease


def _differs_in_certificate(known: ChannelKey, wanted: ChannelKey) -> bool:
    return bool(known.identity) and bool(wanted.identity) and replace(known, identity=wanted.identity) == wanted
