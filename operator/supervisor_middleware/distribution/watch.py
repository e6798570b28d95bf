"""`GenerationDiscovery.Watch`: the state of the world on connect, then the newest offer at a time. A gRPC edge.

Identity comes from the client certificate alone, so a supervisor can only ever get its own generation. Nothing that
one of them does costs others more than its share: hellos are paced, reports rationed, who does not read is cut off.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NoReturn, TypeAlias

import grpc
import grpc.aio
import structlog

from supervisor_middleware.distribution.admission import RUSH, Admission, Refused, Rush
from supervisor_middleware.distribution.attendance import Leaf
from supervisor_middleware.distribution.complaints import Complaints
from supervisor_middleware.distribution.connections import cut
from supervisor_middleware.distribution.discovery import GONE, NOT_OURS, Discovery
from supervisor_middleware.distribution.endings import abort
from supervisor_middleware.distribution.guests import Guest, guest_of
from supervisor_middleware.distribution.outflow import FLOW, Flow, Outflow
from supervisor_middleware.distribution.reports import parse_report
from supervisor_middleware.distribution.streams import NOT_LEADING, End, Lifetime, SlowReader, Stream
from supervisor_middleware.errors import Untrusted
from supervisor_middleware.wire.gen import distribution_pb2 as pb

SERVICE: Final = "supervisor_middleware.distribution.v1alpha1.GenerationDiscovery"
MAX_STREAMS: Final = 16
"""Of one supervisor, also those that say no hello or take no byte, which cannot be ended at once. Two are usual."""
_PAUSE: Final = 60.0
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_HALF_CLOSED: Final = End(grpc.StatusCode.OK)
_MALFORMED: Final = End(grpc.StatusCode.INVALID_ARGUMENT, "a report cannot be read")
_NOISY: Final = End(grpc.StatusCode.RESOURCE_EXHAUSTED, "this supervisor reports too much", pause=_PAUSE)
_NO_HELLO: Final = End(grpc.StatusCode.INVALID_ARGUMENT, "the first report must be hello")
_SILENT: Final = End(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello came in time")
_TOO_MANY: Final = End(grpc.StatusCode.RESOURCE_EXHAUSTED, "this supervisor has too many streams", pause=_PAUSE)
_UNKNOWN: Final = End(grpc.StatusCode.PERMISSION_DENIED, "there is no such sandbox")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a supervisor may keep us waiting, and how long it may stay."""

    sandbox: timedelta = timedelta(seconds=5)
    """For our own watch: a Pod that has just enrolled may not have been seen yet."""
    hello: timedelta = timedelta(seconds=10)
    age: timedelta = timedelta(hours=1)
    """Of a stream, at most: identity is proven at its beginning. Each has its own, three quarters of it at least."""
    grace: timedelta = timedelta(seconds=30)
    """For the answer to an offer that is under way when a stream is old."""


class Watch:
    """The servicer."""

    def __init__(
        self,
        discovery: Discovery,
        *,
        trust_domain: str,
        now: Callable[[], datetime],
        random: Callable[[], float],
        patience: Patience = Patience(),
        rush: Rush = RUSH,
        flow: Flow = FLOW,
    ) -> None:
        """`now` is the clock of certificates, `random` draws from [0, 1)."""
        self._discovery = discovery
        self._trust_domain = trust_domain
        self._now, self._random = now, random
        self._patience = patience
        self._admission = Admission(rush, clock=lambda: asyncio.get_running_loop().time())
        self._outflow = Outflow(flow)
        self._complaints = Complaints()
        self._open_calls: Counter[str] = Counter()

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """For `server.add_generic_rpc_handlers`: offers travel as bytes that are made once."""
        method = grpc.stream_stream_rpc_method_handler(self._watch)
        return grpc.method_handlers_generic_handler(SERVICE, {"Watch": method})

    async def _watch(self, reports: AsyncIterator[bytes], context: _Context) -> None:
        if not self._discovery.speaks():
            await abort(context, NOT_LEADING)
        guest = await self._identify(context)
        if self._open_calls[guest.key] >= MAX_STREAMS:
            await abort(context, _TOO_MANY)
        self._open_calls[guest.key] += 1
        try:
            await self._follow(guest, reports, context)
        except Refused as error:
            await abort(context, End(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), pause=error.pause))
        except SlowReader as error:
            _log.warning("a supervisor is cut off", supervisor=guest.key, reason=str(error))
            # It looks at every connection there is.
            await asyncio.to_thread(cut, context.peer())
            # No status can follow the write; gRPC cancels this when the connection has ended.
            await asyncio.Event().wait()
        finally:
            self._open_calls[guest.key] -= 1
            if not self._open_calls[guest.key]:
                del self._open_calls[guest.key]

    async def _follow(self, guest: Guest, reports: AsyncIterator[bytes], context: _Context) -> None:
        self._admission.come(guest.key)
        # Whoever keeps us waiting must not do so in a place that others wait for.
        await self._await_sandbox(guest, context)
        hello = await self._hello(reports, context)
        await self._admission.turn()
        if not self._discovery.is_placed(guest):
            await abort(context, GONE)
        await self._require_counting(guest, context)  # again: it may have changed while we waited
        if not self._discovery.speaks():
            await abort(context, NOT_LEADING)
        stream = self._discovery.open(guest, hello)
        reading = asyncio.create_task(self._read(stream, reports))
        try:
            end = await stream.serve(
                context.write,
                room=self._outflow.room,
                leads=self._discovery.leads,
                lifetime=self._lifetime(guest.leaf),
                is_busy=lambda: self._discovery.is_answering(stream),
            )
        finally:
            reading.cancel()
            self._discovery.left(stream)
        if end.code is not grpc.StatusCode.OK:
            await abort(context, end)

    async def _identify(self, context: _Context) -> Guest:
        # gRPC verified the chain; which sandbox it names is ours to read.
        certificate = b"".join(context.auth_context().get("x509_pem_cert", ()))
        try:
            guest = guest_of(certificate, trust_domain=self._trust_domain)
        except Untrusted as error:
            await self._turn_away(str(error), context)
        await self._require_counting(guest, context)
        return guest

    async def _require_counting(self, guest: Guest, context: _Context) -> None:
        if reason := self._discovery.objection(guest):
            await self._turn_away(reason, context)

    async def _turn_away(self, reason: str, context: _Context) -> NoReturn:
        # Whoever has any certificate of our CA may come here as often as it likes.
        self._complaints.tell(_log.warning, "refused a supervisor", reason=reason)
        await abort(context, NOT_OURS)

    async def _await_sandbox(self, guest: Guest, context: _Context) -> None:
        try:
            async with asyncio.timeout(self._patience.sandbox.total_seconds()):
                await self._discovery.until_placed(guest.key)
        except TimeoutError:
            await abort(context, _UNKNOWN)

    async def _hello(self, reports: AsyncIterator[bytes], context: _Context) -> pb.Hello:
        try:
            async with asyncio.timeout(self._patience.hello.total_seconds()):
                first = await anext(aiter(reports), None)
        except TimeoutError:
            await abort(context, _SILENT)
        report = None if first is None else parse_report(first)
        if report is None or report.WhichOneof("report") != "hello":
            await abort(context, _NO_HELLO)
        return report.hello

    def _lifetime(self, leaf: Leaf) -> Lifetime:
        age = self._patience.age.total_seconds() * (0.75 + self._random() / 4)
        # Established TLS outlives a certificate; a stream does not.
        rest = min(age, (leaf.expires_at - self._now()).total_seconds())
        return Lifetime(rest=max(rest, 0.0), grace=self._patience.grace.total_seconds())

    async def _read(self, stream: Stream, reports: AsyncIterator[bytes]) -> None:
        end, loop = _HALF_CLOSED, asyncio.get_running_loop()
        try:
            async for data in reports:
                report = parse_report(data)
                if report is None:
                    end = _MALFORMED
                    return
                if not stream.reports.take(loop.time()):
                    end = _NOISY
                    self._complaints.tell(_log.warning, "a supervisor reports too much", supervisor=stream.guest.key)
                    return
                self._discovery.hear(stream, report)
        finally:
            stream.close(end)
