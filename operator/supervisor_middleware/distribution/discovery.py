"""`GenerationDiscovery.Watch`: the state of the world on connect, then the newest offer at a time.

Identity comes from the client certificate alone, so a supervisor can only ever get its own generation. A generation
is serialized once and its bytes fanned out. A new stream of a supervisor ends its old one; the stream of a sandbox
that is gone is closed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
import structlog

from supervisor_middleware.distribution.ledger import Event, Ledger, Position, Record, View, Wish, view
from supervisor_middleware.errors import Untrusted
from supervisor_middleware.model.generation import Sealed
from supervisor_middleware.model.identifiers import status_text
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.spiffe import SandboxIdentity, sandbox_identity
from supervisor_middleware.wire.gen import distribution_pb2 as pb

SERVICE: Final = "supervisor_middleware.distribution.v1alpha1.GenerationDiscovery"
JOINED_PREFIX: Final = "join-"
_UNKNOWN_SANDBOX_WAIT: Final = 5.0
_MAX_LISTED: Final = 64

_log = structlog.get_logger(__name__)
_EVENTS: Final = {
    "accepted": Event.ACCEPTED,
    "rejected": Event.REJECTED,
    "not_ready": Event.NOT_READY,
    "active": Event.ACTIVE,
}


def supervisor_key(identity: SandboxIdentity) -> str:
    """The ledger's key: the Pod's UID, or the sandbox's name for one that joined without a Pod."""
    if identity.pod_uid.startswith(JOINED_PREFIX):
        return f"{identity.namespace}/{identity.sandbox}"
    return identity.pod_uid


@dataclass(slots=True, eq=False)
class _Stream:
    """What one connected supervisor is to be sent: a slot in which the newest wins."""

    offer: bytes | None = None
    end: tuple[grpc.StatusCode, str] | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, offer: bytes) -> None:
        self.offer = offer
        self.woken.set()

    def close(self, code: grpc.StatusCode, details: str) -> None:
        self.end = (code, details)
        self.woken.set()


class Discovery:
    """The servicer and everything the control plane wants of it."""

    def __init__(
        self,
        *,
        trust_domain: str,
        epoch: int,
        trust_bundle: Callable[[], bytes],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called, at most often, whenever a supervisor's standing may have changed."""
        self._trust_domain = trust_domain
        self._epoch = epoch
        self._sequence = 0
        self._trust_bundle = trust_bundle
        self._changed = changed
        self._ledger = Ledger()
        self._streams: dict[str, _Stream] = {}
        self._sealed: dict[str, Sealed] = {}
        self._encoded: dict[Wish, bytes] = {}
        self._published = asyncio.Condition()
        self.encodings = 0

    async def publish(self, generations: Mapping[str, Sealed]) -> None:
        """Make `generations` (by supervisor key) what every sandbox should run; others lose their stream."""
        self._sealed = {s.digest: s for s in generations.values()}
        wishes = self._wishes(generations)
        self._encoded = {w: e for w, e in self._encoded.items() if w in set(wishes.values())}
        for key, wish in self._ledger.wish(wishes):
            self._send(key, wish)
        for key in [k for k in self._streams if k not in wishes]:
            self._streams[key].close(grpc.StatusCode.PERMISSION_DENIED, "the sandbox is gone")
        async with self._published:
            self._published.notify_all()

    def view(self, key: str) -> View:
        """How a supervisor stands with what it should run."""
        return view(self._ledger, key)

    def states(self) -> Mapping[str, int]:
        """How many supervisors are in which state."""
        counts: dict[str, int] = {}
        for key in self._ledger.records:
            state = self.view(key).state.value
            counts[state] = counts.get(state, 0) + 1
        return counts

    def handler(self) -> grpc.GenericRpcHandler[pb.SupervisorReport, bytes]:
        """For `server.add_generic_rpc_handlers`: offers travel as bytes that are made once."""
        method = grpc.stream_stream_rpc_method_handler(
            self._watch, request_deserializer=pb.SupervisorReport.FromString, response_serializer=None
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Watch": method})

    async def _watch(
        self,
        reports: AsyncIterator[pb.SupervisorReport],
        context: grpc.aio.ServicerContext[pb.SupervisorReport, bytes],
    ) -> AsyncIterator[bytes]:
        key = supervisor_key(await self._identify(context))
        await self._await_sandbox(key, context)
        hello = await anext(aiter(reports), None)
        if hello is None or hello.WhichOneof("report") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first report must be hello")
        stream = self._open(key, hello.hello if hello else pb.Hello())
        reading = asyncio.create_task(self._read(key, stream, reports))
        try:
            while stream.end is None:
                await stream.woken.wait()
                stream.woken.clear()
                if stream.offer is not None:
                    offer, stream.offer = stream.offer, None
                    yield offer
            await context.abort(*stream.end)
        finally:
            reading.cancel()
            if self._streams.get(key) is stream:
                del self._streams[key]
                self._ledger.disconnected(key)
                self._changed()

    async def _identify(self, context: grpc.aio.ServicerContext[pb.SupervisorReport, bytes]) -> SandboxIdentity:
        # gRPC verified the chain; which sandbox it names is ours to read.
        certificates = context.auth_context().get("x509_pem_cert", ())
        try:
            return sandbox_identity(b"".join(certificates), trust_domain=self._trust_domain)
        except Untrusted as error:
            _log.warning("refused a supervisor", reason=str(error))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no sandbox of ours")
            raise

    async def _await_sandbox(self, key: str, context: grpc.aio.ServicerContext[pb.SupervisorReport, bytes]) -> None:
        """A Pod that has just enrolled may not have been seen by our watch yet."""
        try:
            async with asyncio.timeout(_UNKNOWN_SANDBOX_WAIT), self._published:
                await self._published.wait_for(lambda: key in self._ledger.wishes)
        except TimeoutError:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "there is no such sandbox")

    def _open(self, key: str, hello: pb.Hello) -> _Stream:
        if key in self._streams:
            self._streams[key].close(grpc.StatusCode.ABORTED, "a newer stream of this supervisor took over")
        stream = self._streams[key] = _Stream()
        record = Record(
            key=key,
            version=status_text(hello.version),
            active=hello.active_digest,
            rejected=frozenset(hello.rejected_digests[:_MAX_LISTED]),
            trust_bundle=hello.trust_bundle_digest,
        )
        wish = self._ledger.connected(record)
        bundle = self._trust_bundle()
        if wish is not None:
            self._send(key, wish)
        elif record.trust_bundle != bundle_digest(bundle):
            stream.put(_bundle_only(bundle))
        self._changed()
        return stream

    async def _read(self, key: str, stream: _Stream, reports: AsyncIterator[pb.SupervisorReport]) -> None:
        try:
            async for report in reports:
                if self._streams.get(key) is stream:
                    self._take(key, report)
        finally:
            stream.close(grpc.StatusCode.OK, "")

    def _take(self, key: str, report: pb.SupervisorReport) -> None:
        kind = report.WhichOneof("report")
        event = _EVENTS.get(kind or "")
        if event is None:
            return
        body = getattr(report, kind or "")
        services = tuple(
            status_text(s.name)
            for s in getattr(body, "services", ())[:_MAX_LISTED]
            if s.state != pb.SERVICE_STATE_READY
        )
        if event is Event.REJECTED:
            reasons = [pb.RejectionReason.Name(r) for r in body.reasons[:8] if r in pb.RejectionReason.values()]
            _log.warning("a supervisor rejected a generation", supervisor=key, reasons=reasons)
        wish = self._ledger.reported(key, event, digest=body.digest, services=services)
        if wish is not None:
            self._send(key, wish)
        self._changed()

    def _wishes(self, generations: Mapping[str, Sealed]) -> dict[str, Wish]:
        known = self._ledger.wishes
        fresh = {k for k, s in generations.items() if k not in known or known[k].digest != s.digest}
        if fresh:
            self._sequence += 1
        position = Position(epoch=self._epoch, sequence=self._sequence)
        return {
            k: Wish(digest=s.digest, position=position) if k in fresh else known[k] for k, s in generations.items()
        }

    def _send(self, key: str, wish: Wish) -> None:
        stream = self._streams.get(key)
        if stream is not None:
            stream.put(self._encode(wish))

    def _encode(self, wish: Wish) -> bytes:
        encoded = self._encoded.get(wish)
        if encoded is None:
            bundle = self._trust_bundle()
            encoded = self._encoded[wish] = pb.GenerationOffer(
                epoch=wish.position.epoch,
                sequence=wish.position.sequence,
                digest=wish.digest,
                payload=self._sealed[wish.digest].payload,
                trust_bundle_pem=bundle,
                trust_bundle_digest=bundle_digest(bundle),
            ).SerializeToString()
            self.encodings += 1
        return encoded


def _bundle_only(bundle: bytes) -> bytes:
    return pb.GenerationOffer(trust_bundle_pem=bundle, trust_bundle_digest=bundle_digest(bundle)).SerializeToString()
