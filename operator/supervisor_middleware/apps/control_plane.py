"""The control plane, whatever it stands on: reconciler, distribution and identity wired around a source and a store.

Shared by the operator and standalone, which differ only in what they hand in.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import grpc.aio
import structlog

from supervisor_middleware.apps.clock import until_renewal, utc_now
from supervisor_middleware.apps.health import Probes, port_of, serve_health
from supervisor_middleware.audit.events import Event
from supervisor_middleware.control.reconciler import Reconciler, Source, Store
from supervisor_middleware.distribution.discovery import Discovery
from supervisor_middleware.distribution.enrollment import Enrollment, TokenReviewer
from supervisor_middleware.distribution.tls import ClientCertificate, server_credentials
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS, BUILTINS
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.registry.client import RegistryClient
from supervisor_middleware.registry.inquiry import Inquirer
from supervisor_middleware.settings import ControlPlaneSettings
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.channels import ClientIdentity
from supervisor_middleware.wire.gen import distribution_pb2_grpc as pb_grpc

_SERVER_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_STREAM_MESSAGE_BYTES),
    # Reports and CSRs are small; whoever sends more is no supervisor of ours.
    ("grpc.max_receive_message_length", 256 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Established TLS outlives a certificate, so identity is proven anew now and then; gRPC adds a jitter of 10 %. It
    # also ends streams of peers that take no byte and yet answer pings.
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    # A second operator on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
)
_DRAIN: Final = 2.0
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class OperatorIdentity:
    """The operator's own certificate: a server to supervisors, a client of services; renewed at half-life."""

    authority: Authority
    namespace: str
    lifetime: timedelta
    current: Credentials = field(init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Issue anew; connections made from now on use it."""
        self.current = self.authority.issue_operator(namespace=self.namespace, now=utc_now(), lifetime=self.lifetime)

    def credentials(self) -> Credentials:
        """What to prove ourselves with now."""
        return self.current

    def client_identity(self) -> ClientIdentity:
        """The same, for channels to services."""
        return ClientIdentity(
            certificate_chain_pem=self.current.certificate_chain_pem,
            private_key_pem=self.current.private_key_pem.reveal(),
        )

    async def keep_fresh(self) -> None:
        """Renew at half-life, with jitter, for ever."""
        while True:
            await until_renewal(self.current)
            self.renew()
            _log.info("renewed the operator's certificate", expires_at=self.current.expires_at.isoformat())


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the operator and standalone hand in."""

    settings: ControlPlaneSettings
    namespace: str
    source: Source
    store: Store
    authority: Authority
    reviewer: TokenReviewer
    epoch: int
    metrics: ControlMetrics
    emit: Callable[[Event], None]
    alive: Callable[[], str | None]


class ControlPlane:
    """The running control plane. Ports are known after `started`."""

    def __init__(self, parts: Parts) -> None:
        """Wire everything; nothing runs or listens yet."""
        settings = parts.settings
        self._parts = parts
        self._identity = OperatorIdentity(parts.authority, parts.namespace, settings.leaf_lifetime)
        self._client = RegistryClient(self._identity.client_identity, metrics=parts.metrics)
        self.compiler_settings = CompilerSettings(
            builtins=BUILTIN_BINDINGS,
            unselected=settings.unselected,
            loopback=settings.loopback,
            latency_budget=settings.latency_budget,
        )
        self.inquirer = Inquirer(self._client, BUILTINS)
        self.discovery = Discovery(
            trust_domain=settings.trust_domain,
            epoch=parts.epoch,
            trust_bundle=self._trust_bundle,
            changed=self._request,
            metrics=parts.metrics,
        )
        self.reconciler = Reconciler(
            source=parts.source,
            store=parts.store,
            distributor=self.discovery,
            asker=self.inquirer,
            settings=self.compiler_settings,
            epoch=parts.epoch,
            trust_bundle=self._trust_bundle,
            now=utc_now,
            emit=parts.emit,
            metrics=parts.metrics,
        )
        self.enrollment_port = 0
        self.discovery_port = 0
        self.health_port = 0
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Reconcile, serve, and keep on until cancelled.

        Supervisors are served only after the first complete pass: an incomplete world must not reach them.
        """
        parts = self._parts
        probes = Probes(alive=parts.alive, ready=self._readiness, metrics=self._render_metrics)
        async with contextlib.AsyncExitStack() as stack:
            health = await serve_health(probes, host=parts.settings.host, port=parts.settings.health_port)
            stack.push_async_callback(health.cleanup)
            self.health_port = port_of(health)
            stack.push_async_callback(self._client.close)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.reconciler.run())
                tasks.create_task(self._identity.keep_fresh())
                tasks.create_task(self._serve())

    @contextlib.asynccontextmanager
    async def _server(
        self, port: int, *, client_certificate: ClientCertificate
    ) -> AsyncIterator[tuple[grpc.aio.Server, int]]:
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        credentials = server_credentials(self._identity.credentials, client_certificate=client_certificate)
        address = f"{self._parts.settings.host}:{port}"
        is_enrollment = client_certificate is ClientCertificate.NOT_ASKED
        setting = "enrolment: SMW_ENROLLMENT_PORT" if is_enrollment else "discovery: SMW_DISCOVERY_PORT"
        try:
            bound = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address}: it is taken, or not an address of this machine ({setting})"
            ) from error
        try:
            yield server, bound
        finally:
            await server.stop(_DRAIN)

    async def _serve(self) -> None:
        parts, settings = self._parts, self._parts.settings
        await self.reconciler.has_published.wait()
        enrollment = Enrollment(
            authority=lambda: parts.authority,
            reviewer=parts.reviewer,
            trust_bundle=self._trust_bundle,
            leaf_lifetime=settings.leaf_lifetime,
            now=utc_now,
            emit=parts.emit,
        )
        async with (
            self._server(settings.enrollment_port, client_certificate=ClientCertificate.NOT_ASKED) as (enrol, first),
            self._server(settings.discovery_port, client_certificate=ClientCertificate.REQUIRED) as (
                discover,
                second,
            ),
        ):
            pb_grpc.add_EnrollmentServicer_to_server(enrollment, enrol)
            discover.add_generic_rpc_handlers((self.discovery.handler(),))
            await enrol.start()
            await discover.start()
            self.enrollment_port, self.discovery_port = first, second
            self.started.set()
            _log.info("serving supervisors", enrollment_port=first, discovery_port=second)
            await asyncio.Event().wait()

    def _request(self) -> None:
        self.reconciler.request()

    def _trust_bundle(self) -> bytes:
        return self._parts.authority.certificate_pem

    def _readiness(self) -> str | None:
        return None if self.started.is_set() else "no complete pass has been made yet"

    def _render_metrics(self) -> bytes:
        metrics = self._parts.metrics
        metrics.supervisors.clear()
        for state, count in self.discovery.states().items():
            metrics.supervisors.labels(state).set(count)
        expiry = metrics.certificate_expiry
        expiry.labels("root").set(self._parts.authority.expires_at.timestamp())
        expiry.labels("operator").set(self._identity.current.expires_at.timestamp())
        return metrics.render()
