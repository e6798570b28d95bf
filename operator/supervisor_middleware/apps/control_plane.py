"""The control plane, whatever it stands on: reconciler, distribution and identity wired around a source and a store.

Shared by the operator and standalone, which differ only in what they hand in.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import grpc.aio
import structlog

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.apps.farewells import Farewells
from supervisor_middleware.apps.replica import Replica
from supervisor_middleware.audit.events import Event
from supervisor_middleware.control.reconciler import Reconciler, Source, Store
from supervisor_middleware.distribution.attendance import Leaf
from supervisor_middleware.distribution.connections import raise_descriptor_limit
from supervisor_middleware.distribution.discovery import Discovery
from supervisor_middleware.distribution.doors import Door
from supervisor_middleware.distribution.enrollment import Enrollment, TokenReviewer
from supervisor_middleware.distribution.guests import supervisor_key
from supervisor_middleware.distribution.inspection import Access, Inspection
from supervisor_middleware.distribution.issuance import Issuer
from supervisor_middleware.distribution.possession import SETTLING, Possession
from supervisor_middleware.distribution.reaper import Bounds, Reaper
from supervisor_middleware.distribution.renewal import Renewal, Vouching
from supervisor_middleware.distribution.tls import ClientCertificate, server_credentials
from supervisor_middleware.distribution.watch import Watch
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.wire.gen import distribution_pb2_grpc as pb_grpc
from supervisor_middleware.wire.gen import inspection_pb2_grpc
from supervisor_middleware.wire.sockets import probe_who_connects

_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_STREAM_MESSAGE_BYTES),
    # Reports and CSRs are small; whoever sends more is no supervisor of ours.
    ("grpc.max_receive_message_length", 256 * 1024),
    # For whoever is stuck while its kernel answers; the kernel asks after machines that are gone (`wire.sockets`).
    # Each ping of thousands costs.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # That one counts for TCP alone: a peer that is stuck, and whose kernel answers, has a minute without this.
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Else data is answered by a ping, to learn how much fits on the way: a quarter of what a small offer costs.
    ("grpc.http2.bdp_probe", 0),
    # A stream has an age of its own, with jitter, and its end waits for an offer under way. This is for whoever
    # begins another on the same connection: identity is proven at its handshake.
    ("grpc.max_connection_age_ms", 7_200_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
    # A buffer of this size is kept for every connection; larger records are hardly faster.
    ("grpc.tsi.max_frame_size", 4096),
    # Nobody looks at it, and it is kept for every connection, too.
    ("grpc.enable_channelz", 0),
    ("grpc.max_channel_trace_event_memory_per_node", 0),
    # A second operator on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
    # A call costs 20 KiB, and nobody of ours makes more than a few at once.
    ("grpc.max_concurrent_streams", 64),
    # Without a certificate nobody needs longer to show it.
    ("grpc.server_handshake_timeout_ms", 20_000),
)
_DISCOVERY_OPTIONS: Final = (
    *_OPTIONS,
    # A supervisor's stream is a call. gRPC looks at every connection as often, at one with a call too; many that
    # carry none end by the reaper, and sooner.
    ("grpc.max_connection_idle_ms", 600_000),
    # More than are served anywhere; the reaper keeps places free.
    ("grpc.max_allowed_incoming_connections", 16_384),
)
_ENROLLMENT_OPTIONS: Final = (
    *_OPTIONS,
    # Anybody may connect here, and has something to ask. What is kept from being idle ends by the reaper.
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_allowed_incoming_connections", 2048),
)
# Everybody comes at once when an operator has just begun to lead, perhaps from behind one address; nobody can make a
# call until its handshake is over.
_DISCOVERY_BOUNDS: Final = Bounds(of_one=5120, of_all=8192)
_ENROLLMENT_BOUNDS: Final = Bounds(of_one=1024, of_all=1024)
_DRAIN: Final = 5.0
"""Seconds in which a leader that ends well sends its supervisors away, at most; it leads no more by then."""
_FAREWELLS_A_SECOND: Final = 200.0
_GRACE: Final = 2.0
_log = structlog.get_logger(__name__)


def server_options(client_certificate: ClientCertificate) -> tuple[tuple[str, int], ...]:
    """Of gRPC, for the port that asks for certificates, or for the one that anybody may use."""
    return _DISCOVERY_OPTIONS if client_certificate is ClientCertificate.REQUIRED else _ENROLLMENT_OPTIONS


def bounds(client_certificate: ClientCertificate) -> Bounds:
    """On connections without a call, for the same two."""
    return _DISCOVERY_BOUNDS if client_certificate is ClientCertificate.REQUIRED else _ENROLLMENT_BOUNDS


class Reviewer(TokenReviewer, Vouching, Protocol):
    """Says who a token proves, and whether who proved itself still lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the operator and standalone hand in. `leads` is asked before anything is said to a supervisor."""

    replica: Replica
    source: Source
    store: Store
    reviewer: Reviewer
    access: Access
    epoch: int
    emit: Callable[[Event], None]
    leads: Callable[[], bool] = lambda: True
    farewells: Farewells = field(default_factory=Farewells)
    stands: Callable[[SandboxIdentity], bool] = lambda _: True
    """Whether somebody who once proved itself may go on, where that is known without asking."""
    has_joined: Callable[[str], bool] = lambda _: True
    """Whether the supervisor of a key may ever have had a certificate, where that is remembered."""


class ControlPlane:
    """The running control plane, for one term of leading. Ports are known after `started`."""

    def __init__(self, parts: Parts) -> None:
        """Wire everything; nothing runs or listens yet."""
        replica = parts.replica
        self._parts, self._settings = parts, replica.settings
        self._issuer = Issuer(
            authority=lambda: replica.authority,
            trust_bundle=replica.trust_bundle,
            leaf_lifetime=replica.settings.leaf_lifetime,
            now=utc_now,
            emit=parts.emit,
            leads=parts.leads,
            superseded=self._superseded,
        )
        self.possession = Possession(end_of=self._issuer.holders.end_of, now=utc_now, has_joined=parts.has_joined)
        self.discovery = Discovery(
            epoch=parts.epoch,
            trust_bundle=replica.trust_bundle,
            changed=self._stands,
            metrics=replica.metrics,
            audit=parts.emit,
            leads=parts.leads,
            now=utc_now,
            objection=self._objection,
        )
        self.reconciler = Reconciler(
            source=parts.source,
            store=parts.store,
            distributor=self.discovery,
            asker=replica.inquirer,
            settings=replica.compiler_settings,
            epoch=parts.epoch,
            trust_bundle=replica.trust_bundle,
            now=utc_now,
            emit=parts.emit,
            metrics=replica.metrics,
            catalog=replica.catalog,
            acceptances=replica.acceptances,
        )
        replica.client.lost = self.reconciler.lost
        self._doors = list[tuple[Door, Bounds]]()
        self.enrollment_port = 0
        self.discovery_port = 0
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Reconcile, serve, and keep on until cancelled.

        Supervisors are served only after the first complete pass: an incomplete world must not reach them.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reconciler.run())
            tasks.create_task(self._serve())
            tasks.create_task(self._settle())

    def readiness(self) -> str | None:
        """What is missing until supervisors are served."""
        return None if self.started.is_set() else "no complete pass has been made yet"

    @contextlib.asynccontextmanager
    async def _server(
        self, port: int, *, client_certificate: ClientCertificate
    ) -> AsyncIterator[tuple[grpc.aio.Server, int]]:
        door = Door()
        server = grpc.aio.server(options=server_options(client_certificate), interceptors=(door,))

        def current() -> Credentials:
            door.arrived()
            return self._parts.replica.identity.credentials()

        credentials = server_credentials(current, client_certificate=client_certificate)
        address = f"{self._settings.host}:{port}"
        is_enrollment = client_certificate is ClientCertificate.NOT_ASKED
        setting = "enrolment: SMW_ENROLLMENT_PORT" if is_enrollment else "discovery: SMW_DISCOVERY_PORT"
        try:
            bound = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address}: it is taken, or not an address of this machine ({setting})"
            ) from error
        door.port = bound
        self._doors.append((door, bounds(client_certificate)))
        try:
            yield server, bound
        finally:
            await self._end(server)

    async def _end(self, server: grpc.aio.Server) -> None:
        if not self._parts.leads():
            # Whoever has lost its lease must not serve a moment longer.
            self.discovery.leave()
            await server.stop(None)
            return
        self.discovery.leave_slowly(random=random.random, pace=_FAREWELLS_A_SECOND, at_most=_DRAIN)
        await self._parts.farewells.add(server.stop(_DRAIN + _GRACE))

    async def _settle(self) -> None:
        await self.reconciler.has_published.wait()
        await asyncio.sleep(SETTLING)
        self.possession.settle(sandbox.key for sandbox in self.reconciler.sandboxes)

    async def _serve(self) -> None:
        parts, settings = self._parts, self._settings
        await self.reconciler.has_published.wait()
        raise_descriptor_limit()
        enrollment = Enrollment(self._issuer, reviewer=parts.reviewer)
        renewal = Renewal(self._issuer, vouching=parts.reviewer, trust_domain=settings.trust_domain)
        watch = Watch(self.discovery, trust_domain=settings.trust_domain, now=utc_now, random=random.random)
        async with (
            self._server(settings.enrollment_port, client_certificate=ClientCertificate.NOT_ASKED) as (enrol, first),
            self._server(settings.discovery_port, client_certificate=ClientCertificate.REQUIRED) as (
                discover,
                second,
            ),
        ):
            pb_grpc.add_EnrollmentServicer_to_server(enrollment, enrol)
            pb_grpc.add_RenewalServicer_to_server(renewal, discover)
            inspection_pb2_grpc.add_InspectionServicer_to_server(self._inspection(), enrol)
            discover.add_generic_rpc_handlers((watch.handler(),))
            await enrol.start()
            await discover.start()
            probe_who_connects(second)
            self.enrollment_port, self.discovery_port = first, second
            self.started.set()
            _log.info("serving supervisors", enrollment_port=first, discovery_port=second)
            await Reaper(self._doors).run()

    def _inspection(self) -> Inspection:
        return Inspection(
            access=self._parts.access,
            standings=self.discovery,
            sandboxes=lambda: self.reconciler.sandboxes,
            trust_bundle=self._parts.replica.trust_bundle,
            now=utc_now,
            leads=self._parts.leads,
        )

    def _objection(self, identity: SandboxIdentity, leaf: Leaf) -> str:
        if not self._parts.stands(identity):
            return f"the join of sandbox {identity.namespace}/{identity.sandbox} was revoked, or is unknown"
        if not self._issuer.holders.shown(supervisor_key(identity), leaf):
            return f"{supervisor_key(identity)} has a newer certificate"
        return ""

    def _superseded(self, key: str) -> None:
        self.discovery.revise_one(key)

    def _stands(self) -> None:
        self.reconciler.stands()
