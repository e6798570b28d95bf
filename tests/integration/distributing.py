"""Discovery and enrolment served on loopback as the control plane serves them, and supervisors that talk to them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from supervisor_middleware.apps.control_plane import server_options
from supervisor_middleware.audit.events import Event
from supervisor_middleware.distribution.admission import RUSH, Rush
from supervisor_middleware.distribution.attendance import Leaf
from supervisor_middleware.distribution.discovery import Discovery
from supervisor_middleware.distribution.doors import MESSAGE_WAIT, Door
from supervisor_middleware.distribution.endings import PUSHBACK
from supervisor_middleware.distribution.enrollment import Enrollment
from supervisor_middleware.distribution.guests import supervisor_key
from supervisor_middleware.distribution.issuance import Issuer
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.distribution.outflow import FLOW, Flow
from supervisor_middleware.distribution.reaper import Bounds, Reaper
from supervisor_middleware.distribution.renewal import Renewal
from supervisor_middleware.distribution.tls import ClientCertificate, server_credentials
from supervisor_middleware.distribution.watch import SERVICE, Patience, Watch
from supervisor_middleware.model.generation import Sealed, seal
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.spiffe import SandboxIdentity, operator_server_name
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as rpc
from tests.builders import a_generation, a_stage
from tests.fakes.tokens import FakeReviewer
from tests.pki.builders import TRUST_DOMAIN, an_authority, an_identity, supervisor_credentials

NOW: Final = datetime.now(UTC)
LONG_AGO: Final = NOW - timedelta(days=30)
AUTHORITY: Final = an_authority(now=LONG_AGO)
STRANGER: Final = an_authority(now=LONG_AGO)
WAIT: Final = 5.0
SHORT: Final = timedelta(milliseconds=150)

EOF: Any = vars(grpc.aio)["EOF"]  # not in the stubs
PATIENCE: Final = Patience(sandbox=SHORT, hello=timedelta(seconds=2))

Options = tuple[tuple[str, int], ...]


def a_pod(name: str) -> SandboxIdentity:
    return an_identity(sandbox=name, pod_uid=f"uid-{name}")


def credentials_of(name: str) -> Credentials:
    return supervisor_credentials(AUTHORITY, identity=a_pod(name), now=NOW)


def a_sealed(key: str = "redact", *, size: int = 0) -> Sealed:
    """A generation named by its stage; `size` bytes of config in a chain of stages."""
    stages = [a_stage(f"{key}-{i}", config={"filler": "x" * min(size, 60_000)}) for i in range(1 + size // 60_000)]
    return seal(a_generation(*stages))


class Operator:
    """What a test looks at; `current` is what the next handshake sees."""

    def __init__(self, *, patience: Patience, rush: Rush, flow: Flow, message_wait: float) -> None:
        self.current = AUTHORITY.issue_operator(namespace="system", now=NOW)
        self.changes = 0
        self.is_leading = True
        self.now = NOW
        self.metrics = ControlMetrics()
        self.audited = list[Event]()
        self.bundle = AUTHORITY.certificate_pem
        self.reviewer = FakeReviewer({"token-a": a_pod("a")})
        self._published: dict[str, Sealed] = {}
        self.discovery = Discovery(
            epoch=7,
            trust_bundle=lambda: self.bundle,
            changed=self._changed,
            metrics=self.metrics,
            audit=self.audited.append,
            leads=lambda: self.is_leading,
            now=lambda: self.now,
            objection=self._objection,
        )
        self.watch = Watch(
            self.discovery,
            trust_domain=TRUST_DOMAIN,
            now=lambda: self.now,
            random=lambda: 0.5,
            patience=patience,
            rush=rush,
            flow=flow,
        )
        self.issuer = Issuer(
            authority=lambda: AUTHORITY,
            trust_bundle=lambda: self.bundle,
            leaf_lifetime=timedelta(hours=1),
            now=lambda: self.now,
            emit=self.audited.append,
            leads=lambda: self.is_leading,
            superseded=self.discovery.revise_one,
        )
        self.enrollment = Enrollment(self.issuer, reviewer=self.reviewer)
        self.renewal = Renewal(self.issuer, vouching=self.reviewer, trust_domain=TRUST_DOMAIN)
        self.doors = Door(message_wait=message_wait), Door(message_wait=message_wait)
        self.port = 0
        self.enrollment_port = 0

    def credentials(self, door: Door) -> Credentials:
        """What a handshake at `door` sees."""
        door.arrived()
        return self.current

    @asynccontextmanager
    async def reaped(self, bounds: Bounds) -> AsyncIterator[None]:
        """Both ports, in the block, often."""
        reaping = asyncio.create_task(Reaper([(d, bounds) for d in self.doors], interval=0.1, pause=0.05).run())
        try:
            yield
        finally:
            reaping.cancel()

    async def publish(self, generations: Mapping[str, Sealed]) -> None:
        """Make these all there is, by supervisor key."""
        changes: dict[str, Assignment | None] = dict.fromkeys(self._published.keys() - generations.keys())
        for key, sealed in generations.items():
            if self._published.get(key) != sealed:
                changes[key] = Assignment(sandbox=sandbox_of(key), sealed=sealed)
        self._published = dict(generations)
        await self.discovery.publish(changes)

    def _objection(self, identity: SandboxIdentity, leaf: Leaf) -> str:
        if identity in self.reviewer.gone:
            return "revoked"
        return "" if self.issuer.holders.shown(supervisor_key(identity), leaf) else "older"

    def _changed(self) -> None:
        self.changes += 1


def sandbox_of(key: str) -> Sandbox:
    """The one whose supervisor is known by `key`: that of `a_pod`, or one that joined."""
    namespace, _, name = key.rpartition("/")
    if namespace:
        return Sandbox(namespace=namespace, name=name)
    return Sandbox(namespace="team-a", name=key.removeprefix("uid-"), uid=key)


@asynccontextmanager
async def an_operator(
    *,
    patience: Patience = PATIENCE,
    rush: Rush = RUSH,
    flow: Flow = FLOW,
    message_wait: float = MESSAGE_WAIT,
    options: Options = (),
    interceptors: "Sequence[grpc.aio.ServerInterceptor[Any, Any]]" = (),
) -> AsyncIterator[Operator]:
    """`options` instead of the ones that a control plane has, where they name the same."""
    operator = Operator(patience=patience, rush=rush, flow=flow, message_wait=message_wait)
    kinds = ClientCertificate.REQUIRED, ClientCertificate.NOT_ASKED
    servers = tuple(
        grpc.aio.server(
            options=tuple(dict((*server_options(kind), *options)).items()), interceptors=(door, *interceptors)
        )
        for kind, door in zip(kinds, operator.doors, strict=True)
    )
    servers[0].add_generic_rpc_handlers((operator.watch.handler(),))
    rpc.add_RenewalServicer_to_server(operator.renewal, servers[0])
    rpc.add_EnrollmentServicer_to_server(operator.enrollment, servers[1])
    operator.port, operator.enrollment_port = (
        server.add_secure_port(
            "127.0.0.1:0", server_credentials(partial(operator.credentials, door), client_certificate=kind)
        )
        for server, kind, door in zip(servers, kinds, operator.doors, strict=True)
    )
    operator.doors[0].port, operator.doors[1].port = operator.port, operator.enrollment_port
    await asyncio.gather(*(server.start() for server in servers))
    try:
        yield operator
    finally:
        await asyncio.gather(*(server.stop(None) for server in servers))


@asynccontextmanager
async def a_channel(
    port: int, client: Credentials | None, *, options: Options = (), name: str = operator_server_name(TRUST_DOMAIN)
) -> AsyncIterator[grpc.aio.Channel]:
    tls = grpc.ssl_channel_credentials(
        root_certificates=AUTHORITY.certificate_pem,
        private_key=client.private_key_pem.reveal() if client else None,
        certificate_chain=client.certificate_chain_pem if client else None,
    )
    whole = (
        ("grpc.ssl_target_name_override", name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", MAX_STREAM_MESSAGE_BYTES),
        *options,
    )
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", tls, options=whole) as channel:
        yield channel


class Supervisor:
    """One stream."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reading: asyncio.Future[Any] | None = None

    async def say(self, **report: Any) -> None:
        await self.say_bytes(pb.SupervisorReport(**report).SerializeToString())

    async def say_bytes(self, data: bytes) -> None:
        await asyncio.wait_for(self._call.write(data), WAIT)

    async def hello(self, **fields: Any) -> None:
        await self.say(hello=pb.Hello(version="1.0.0", **fields))

    async def offer(self) -> pb.GenerationOffer:
        data = await self._read()
        assert data is not EOF, "the stream ended"
        return pb.GenerationOffer.FromString(data)

    async def runs(self, digest: str) -> None:
        """Answer an offer as one that can run it."""
        await self.say(accepted=pb.Accepted(digest=digest))
        await self.say(active=pb.Active(digest=digest))

    async def hears_nothing(self, seconds: float = 0.1) -> None:
        # Cancelling a read would cancel the call: the next `offer` goes on with it.
        self._reading = self._reading or asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait((self._reading,), timeout=seconds)
        assert not done, "something was sent"

    async def end(self) -> grpc.StatusCode:
        """How the stream ended."""
        try:
            while await self._read() is not EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        code: grpc.StatusCode = await self._call.code()
        return code

    async def floods(self, **report: Any) -> None:
        """Say the same thing until the operator has had enough."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self.say(**report)

    async def pause(self) -> float | None:
        """How many seconds it was told to stay away, when the stream ended."""
        found = dict(await self._call.trailing_metadata()).get(PUSHBACK)
        return None if found is None else int(found) / 1000

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended."""
        return bool(self._call.done())

    async def half_close(self) -> None:
        await self._call.done_writing()

    def cut(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._call.cancel()

    async def _read(self) -> Any:
        reading, self._reading = self._reading or asyncio.ensure_future(self._call.read()), None
        return await asyncio.wait_for(reading, WAIT)


def watch(channel: Any) -> Any:
    """A call in bytes; the stubs know neither those nor a call that is written to."""
    return channel.stream_stream(f"/{SERVICE}/Watch")()


@asynccontextmanager
async def a_supervisor(
    operator: Operator, client: Credentials | None, *, options: Options = ()
) -> AsyncIterator[Supervisor]:
    async with a_channel(operator.port, client, options=options) as channel:
        supervisor = Supervisor(watch(channel))
        try:
            yield supervisor
        finally:
            supervisor.cut()


@asynccontextmanager
async def a_running_supervisor(operator: Operator, name: str, *, active: str = "") -> AsyncIterator[Supervisor]:
    """One that said hello already."""
    async with a_supervisor(operator, credentials_of(name)) as supervisor:
        await supervisor.hello(active_digest=active, trust_bundle_digest=bundle_digest(operator.bundle))
        yield supervisor


async def refusal(operator: Operator, client: Credentials | None) -> grpc.StatusCode:
    """How a stream ends that is refused before anything is said: a write would race with the refusal."""
    async with a_supervisor(operator, client) as supervisor:
        return await supervisor.end()


async def enroll(operator: Operator, csr: bytes, token: str) -> pb.EnrollResponse:
    async with a_channel(operator.enrollment_port, None) as channel:
        stub: Any = rpc.EnrollmentStub(channel)
        response: pb.EnrollResponse = await stub.Enroll(pb.EnrollRequest(csr_pem=csr, token=token), timeout=WAIT)
        return response


async def renew(operator: Operator, csr: bytes, client: Credentials | None) -> pb.EnrollResponse:
    async with a_channel(operator.port, client) as channel:
        stub: Any = rpc.RenewalStub(channel)
        response: pb.EnrollResponse = await stub.Renew(pb.RenewRequest(csr_pem=csr), timeout=WAIT)
        return response


async def renewal_refusal(operator: Operator, csr: bytes, client: Credentials | None) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await renew(operator, csr, client)
    return caught.value


def bought(response: pb.EnrollResponse, key: SecretBytes) -> Credentials:
    """What a supervisor makes of an answer."""
    return Credentials(
        certificate_chain_pem=response.certificate_chain_pem,
        private_key_pem=key,
        trust_bundle_pem=response.trust_bundle_pem,
    )


async def enrolment_refusal(operator: Operator, csr: bytes, token: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await enroll(operator, csr, token)
    return caught.value


def other_roots(credentials: Credentials) -> Credentials:
    """The same client, which trusts our operator."""
    return replace(credentials, trust_bundle_pem=AUTHORITY.certificate_pem)
