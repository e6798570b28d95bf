"""Preparing a candidate off to the side: connect, describe, compare, and only then hand it over whole.

RFC 0009 "Registration and delivery": a candidate is prepared off the request path, and a failed preparation leaves
what runs alone. What the running generation has connected and described already is taken over as it is.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.model.generation import Service
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.supervisor.activation import Candidate
from supervisor_middleware.supervisor.capability import ServiceState, state_of
from supervisor_middleware.supervisor.connections import ChannelKey, Lease, Pool, channel_key
from supervisor_middleware.supervisor.describe import Describer
from supervisor_middleware.supervisor.runtime import Connected, Evaluator, Prepared


class Preparer:
    """Turns candidates into `Prepared` generations. Holds nothing between two preparations but the pool."""

    def __init__(self, *, pool: Pool, describer: Describer, evaluator: Evaluator) -> None:
        self._pool = pool
        self._describer = describer
        self._evaluator = evaluator

    async def prepare(
        self, candidate: Candidate, *, credentials: Credentials | None, known: Sequence[Prepared] = ()
    ) -> Prepared:
        """`candidate` with every service it needs connected as far as that goes; all services at once.

        `known` are generations whose connections and manifests may be taken over, in order of preference. The caller
        swaps the result in or retires it. Cancelling returns every lease.
        """
        services = candidate.sealed.generation.services
        with ExitStack() as leases:
            connecting = _Connecting(
                pool=self._pool, describer=self._describer, credentials=credentials, known=known, leases=leases
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


class _Connecting:
    def __init__(
        self,
        *,
        pool: Pool,
        describer: Describer,
        credentials: Credentials | None,
        known: Sequence[Prepared],
        leases: ExitStack,
    ) -> None:
        self._pool = pool
        self._describer = describer
        self._credentials = credentials
        self._known = known
        self._leases = leases

    async def connect(self, service: Service) -> Connected:
        key = channel_key(service.connection, credentials=self._credentials)
        if (same := self._taken_over(service, is_same=lambda known: known == key)) is not None:
            return same
        fresh = await self._dialled(service)
        if fresh.state is ServiceState.READY:
            return fresh
        # A renewed certificate that the service does not take (yet) costs nobody the connection that works.
        return self._taken_over(service, is_same=lambda known: _differs_in_certificate(known, key)) or fresh

    def _taken_over(self, service: Service, *, is_same: Callable[[ChannelKey], bool]) -> Connected | None:
        for prepared in self._known:
            before = prepared.services.get(service.name)
            if before is None or before.lease is None or not is_same(before.lease.key):
                continue
            if state_of(before.manifest, service=service) is ServiceState.READY:
                lease = self._held(before.lease.renewed())
                return Connected(service=service, state=ServiceState.READY, manifest=before.manifest, lease=lease)
        return None

    async def _dialled(self, service: Service) -> Connected:
        try:
            lease = self._held(self._pool.lease(service.connection, credentials=self._credentials))
        except (Unavailable, InvalidInput):
            return Connected(service=service, state=ServiceState.UNREACHABLE)
        # A lease whose service does not answer is kept too: the next attempt finds the channel where it got to.
        try:
            manifest = await self._describer.describe(lease.channel, service=service)
        except Unavailable:
            return Connected(service=service, state=ServiceState.UNREACHABLE, lease=lease)
        except Untrusted:
            return Connected(service=service, state=ServiceState.INCAPABLE, lease=lease)
        return Connected(service=service, state=state_of(manifest, service=service), manifest=manifest, lease=lease)

    def _held(self, lease: Lease) -> Lease:
        self._leases.callback(lease.release)
        return lease


def _differs_in_certificate(known: ChannelKey, wanted: ChannelKey) -> bool:
    return bool(known.identity) and bool(wanted.identity) and replace(known, identity=wanted.identity) == wanted
