"""`GenerationDiscovery.Watch`: the state of the world on connect, then the newest offer at a time.

Identity comes from the client certificate alone, so a supervisor can only ever get its own generation. A generation
is serialized once and its bytes fanned out. A new stream of a supervisor ends its old one; the stream of a sandbox
that is gone is closed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NoReturn, TypeAlias

import grpc
import grpc.aio
import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.audit.events import Event as Audited
from supervisor_middleware.distribution.attendance import Attendance, Leaf, Standing, leaf_of
from supervisor_middleware.distribution.ledger import Event, Ledger, View, Wish
from supervisor_middleware.distribution.offers import Offers
from supervisor_middleware.distribution.reports import Answer, answer_of, parse_report, record_of
from supervisor_middleware.distribution.streams import NOT_LEADING, End, Stream
from supervisor_middleware.errors import Bug, Untrusted
from supervisor_middleware.model.generation import Sealed
from supervisor_middleware.pki.spiffe import SandboxIdentity, sandbox_identity
from supervisor_middleware.pki.tokens import JOINED_PREFIX
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.gen import distribution_pb2 as pb

SERVICE: Final = "supervisor_middleware.distribution.v1alpha1.GenerationDiscovery"
MAX_STREAMS: Final = 16
"""Of one supervisor, also those that say no hello or take no byte, which cannot be ended at once. Two are usual."""

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_HALF_CLOSED: Final = End(grpc.StatusCode.OK)
_MALFORMED: Final = End(grpc.StatusCode.INVALID_ARGUMENT, "a report cannot be read")
_TAKEN_OVER: Final = End(grpc.StatusCode.ABORTED, "a newer stream of this supervisor took over")
_NOT_OURS: Final = End(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no sandbox of ours")
_GONE: Final = End(grpc.StatusCode.PERMISSION_DENIED, "the sandbox is gone")
_TOO_MANY: Final = End(grpc.StatusCode.RESOURCE_EXHAUSTED, "this supervisor has too many streams")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a supervisor may keep us waiting."""

    sandbox: timedelta = timedelta(seconds=5)
    """For our own watch: a Pod that has just enrolled may not have been seen yet."""
    hello: timedelta = timedelta(seconds=10)


def supervisor_key(identity: SandboxIdentity) -> str:
    """The ledger's key: the Pod's UID, or the sandbox's name for one that joined without a Pod."""
    if identity.pod_uid.startswith(JOINED_PREFIX):
        return f"{identity.namespace}/{identity.sandbox}"
    return identity.pod_uid


class Discovery:
    """The servicer and everything the control plane wants of it."""

    def __init__(
        self,
        *,
        trust_domain: str,
        epoch: int,
        trust_bundle: Callable[[], bytes],
        changed: Callable[[], None],
        metrics: ControlMetrics | None = None,
        audit: Callable[[Audited], None] = lambda _: None,
        leads: Callable[[], bool] = lambda: True,
        patience: Patience = Patience(),
        now: Callable[[], datetime | None] = lambda: None,
        objection: Callable[[SandboxIdentity, Leaf], str] = lambda _identity, _leaf: "",
    ) -> None:
        """`changed` is called whenever a supervisor's standing changed; `audit` takes audit events.

        Nothing is said to anybody unless `leads`. Without `now` no ages are known. `objection` says why a certificate
        that TLS accepts counts no more (for our log), or nothing.
        """
        self._trust_domain = trust_domain
        self._changed = changed
        self._metrics = metrics
        self._audit = audit
        self._leads = leads
        self._patience = patience
        self._now = now
        self._objection = objection
        self._guests: dict[str, tuple[SandboxIdentity, Leaf]] = {}
        self._offers = Offers(epoch=epoch, trust_bundle=trust_bundle)
        self._ledger = Ledger()
        self._streams: dict[str, Stream] = {}
        self._open_calls: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._attendance = Attendance()
        self.moves = 0
        """Grows whenever a supervisor may stand elsewhere."""
        self._published = asyncio.Condition()

    @property
    def encodings(self) -> int:
        """How many offers were serialized so far: as many as there were distinct ones, not as many as were sent."""
        return self._offers.encodings

    async def publish(self, generations: Mapping[str, Sealed]) -> None:
        """Make `generations` (by supervisor key) what every sandbox should run; others lose their stream."""
        wishes = self._offers.replace(generations)
        for key, wish in self._ledger.wish(wishes, at=self._now()):
            self._send(key, wish)
        for key in [k for k in self._streams if k not in wishes]:
            self._streams[key].close(_GONE)
            self._leave(key, self._streams[key])
        self._told = {key: digest for key, digest in self._told.items() if key in wishes}
        self._attendance.keep(wishes)
        self.moves += 1
        async with self._published:
            self._published.notify_all()

    def view(self, key: str, *, digest: str) -> View:
        """How a supervisor stands with a generation, published already or not."""
        return self._ledger.view(key, digest=digest)

    def standing(self, key: str) -> Standing:
        """All that is known of one supervisor."""
        return Standing(
            desired=self._ledger.wishes.get(key),
            record=self._ledger.records.get(key),
            visits=self._attendance.of(key),
        )

    def states(self) -> Mapping[str, int]:
        """How many supervisors are in which state."""
        views = (self.view(key, digest=wish.digest) for key, wish in self._ledger.wishes.items())
        return Counter(view.state.value if view.is_connected else "not_connected" for view in views)

    def revise(self) -> None:
        """End the streams of those whose certificate counts no more."""
        for key, guest in tuple(self._guests.items()):
            if reason := self._objection(*guest):
                _log.warning("a supervisor loses its stream", supervisor=key, reason=reason)
                self._streams[key].close(_NOT_OURS)
                self._leave(key, self._streams[key])

    def close(self) -> None:
        """End every stream: supervisors look for whoever leads next."""
        for stream in self._streams.values():
            stream.close(NOT_LEADING)

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """For `server.add_generic_rpc_handlers`: offers travel as bytes that are made once."""
        method = grpc.stream_stream_rpc_method_handler(self._watch)
        return grpc.method_handlers_generic_handler(SERVICE, {"Watch": method})

    def _move(self) -> None:
        self.moves += 1
        self._changed()

    async def _watch(self, reports: AsyncIterator[bytes], context: _Context) -> None:
        if not self._leads():
            await _abort(context, NOT_LEADING)
        identity, leaf = await self._identify(context)
        key = supervisor_key(identity)
        if self._open_calls[key] >= MAX_STREAMS:
            await _abort(context, _TOO_MANY)
        self._open_calls[key] += 1
        try:
            self._names[key] = f"Sandbox {identity.namespace}/{identity.sandbox}"
            await self._follow(key, (identity, leaf), reports, context)
        finally:
            self._open_calls[key] -= 1
            if not self._open_calls[key]:
                del self._open_calls[key]
                self._names.pop(key, None)

    async def _follow(
        self, key: str, guest: tuple[SandboxIdentity, Leaf], reports: AsyncIterator[bytes], context: _Context
    ) -> None:
        await self._await_sandbox(key, context)
        hello = await self._hello(reports, context)
        if key not in self._ledger.wishes:
            await _abort(context, _GONE)
        await self._require_counting(guest, context)  # again: it may have changed while we waited
        stream = self._open(key, hello, guest)
        reading = asyncio.create_task(self._read(key, stream, reports))
        try:
            end = await stream.serve(context.write, leads=self._leads)
        finally:
            reading.cancel()
            self._leave(key, stream)
        if end is not _HALF_CLOSED:
            await _abort(context, end)

    async def _identify(self, context: _Context) -> tuple[SandboxIdentity, Leaf]:
        # gRPC verified the chain; which sandbox it names is ours to read.
        certificate = b"".join(context.auth_context().get("x509_pem_cert", ()))
        try:
            guest = sandbox_identity(certificate, trust_domain=self._trust_domain), leaf_of(certificate)
        except Untrusted as error:
            _log.warning("refused a supervisor", reason=str(error))
            await _abort(context, _NOT_OURS)
        await self._require_counting(guest, context)
        return guest

    async def _require_counting(self, guest: tuple[SandboxIdentity, Leaf], context: _Context) -> None:
        if reason := self._objection(*guest):
            _log.warning("refused a supervisor", reason=reason)
            await _abort(context, _NOT_OURS)

    async def _await_sandbox(self, key: str, context: _Context) -> None:
        try:
            async with asyncio.timeout(self._patience.sandbox.total_seconds()), self._published:
                await self._published.wait_for(lambda: key in self._ledger.wishes)
        except TimeoutError:
            await _abort(context, End(grpc.StatusCode.PERMISSION_DENIED, "there is no such sandbox"))

    async def _hello(self, reports: AsyncIterator[bytes], context: _Context) -> pb.Hello:
        try:
            async with asyncio.timeout(self._patience.hello.total_seconds()):
                first = await anext(aiter(reports), None)
        except TimeoutError:
            await _abort(context, End(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello came in time"))
        report = None if first is None else parse_report(first)
        if report is None or report.WhichOneof("report") != "hello":
            await _abort(context, End(grpc.StatusCode.INVALID_ARGUMENT, "the first report must be hello"))
        return report.hello

    def _open(self, key: str, hello: pb.Hello, guest: tuple[SandboxIdentity, Leaf]) -> Stream:
        if key in self._streams:
            self._streams[key].close(_TAKEN_OVER)
        stream = self._streams[key] = Stream()
        now = self._now()
        record = replace(record_of(key, hello), connected_since=now, since=now)
        self._guests[key] = guest
        self._attendance.came(key, guest[1])
        wish = self._ledger.connected(record)
        if wish is not None:
            self._send(key, wish)
        else:
            stream.put(self._offers.greeting(record.trust_bundle))
        self._move()
        return stream

    def _leave(self, key: str, stream: Stream) -> None:
        if self._streams.get(key) is stream:
            del self._streams[key], self._guests[key]
            self._ledger.disconnected(key)
            self._attendance.left(key, at=self._now())
            self._move()

    async def _read(self, key: str, stream: Stream, reports: AsyncIterator[bytes]) -> None:
        end = _HALF_CLOSED
        try:
            async for data in reports:
                report = parse_report(data)
                if report is None:
                    end = _MALFORMED
                    return
                answer = answer_of(report)
                if answer is not None and self._streams.get(key) is stream:
                    self._take(key, answer)
        finally:
            stream.close(end)

    def _take(self, key: str, answer: Answer) -> None:
        before = self._ledger.records[key]
        wish = self._ledger.reported(
            key,
            answer.event,
            digest=answer.digest,
            services=answer.services,
            incapable=answer.incapable,
            reasons=answer.reasons,
            at=self._now(),
        )
        if wish is not None:
            self._send(key, wish)
        after = self._ledger.records[key]
        if answer.event is Event.REJECTED and answer.digest in after.rejected - before.rejected:
            self._report_rejection(key, answer)
        if after != before:
            self._move()

    def _report_rejection(self, key: str, answer: Answer) -> None:
        reasons = answer.reasons or ("unspecified",)
        _log.warning("a supervisor rejected a generation", supervisor=key, digest=answer.digest, reasons=reasons)
        if self._metrics is not None:
            for reason in reasons:
                self._metrics.rejections.labels(reason).inc()
        if self._told.get(key) != answer.digest:
            # One that comes back without a memory refuses anew; that is no news to anybody.
            self._told[key] = answer.digest
            reason = ",".join(reasons)
            self._audit(
                Changed(
                    kind=ChangeKind.GENERATION_REJECTED, subject=self._names[key], reason=reason, digest=answer.digest
                )
            )

    def _send(self, key: str, wish: Wish) -> None:
        stream = self._streams.get(key)
        if stream is not None:
            stream.put(self._offers.encode(wish))


async def _abort(context: _Context, end: End) -> NoReturn:
    await context.abort(end.code, end.details)
    raise Bug("abort returned")
