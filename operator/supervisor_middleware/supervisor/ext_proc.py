"""Traffic reaches the supervisor: Envoy's `ext_proc` filter asks here before a request leaves.

Owns the conversation about one request: its head is read, its chain selected, its body asked for only if a stage will
see it, and one final answer given. Never decides what a stage's answer means (`chain`) nor how an answer looks on the
wire (`ext_proc_replies`). `apps` starts it; the Envoy beside it, or a gateway's, calls it.

What makes it fail closed:
- Envoy goes on with a request whose stream ends *cleanly*, so a handler returns only after a final answer.
- Whatever goes wrong is answered with a refusal; where even that is impossible the stream ends with an error, and the
  filter's `failure_mode_allow: false` refuses.
- A request whose authority is no valid host is refused whatever is configured: no selector can tell that it does not
  apply, and what resolves such a name is not ours to guess.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeAlias, assert_never

import grpc
import structlog
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as rpc

from supervisor_middleware.audit.events import Event
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.evaluation import FailureCode, RequestContext
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.limits import MAX_BODY_BYTES, MIB
from supervisor_middleware.supervisor import ext_proc_replies as replies
from supervisor_middleware.supervisor.chain import body_cap, uninspectable
from supervisor_middleware.supervisor.envoy_config import BUFFER_BYTES, Address, TcpAddress
from supervisor_middleware.supervisor.exchange import (
    Allowed,
    Body,
    Cause,
    Denied,
    Outcome,
    Overflowed,
    Request,
    Whole,
)
from supervisor_middleware.supervisor.http_request import (
    Framing,
    RequestHead,
    UnmatchableHost,
    known_body,
    parse_head,
)
from supervisor_middleware.supervisor.permits import Exhausted, Permits
from supervisor_middleware.telemetry import where

_log = structlog.get_logger(__name__)

BODY_PATIENCE: Final = timedelta(seconds=60)
"""How long a permit is held for a body that does not come."""

_MAX_RECEIVE_BYTES: Final = 2 * BUFFER_BYTES
_MAX_SEND_BYTES: Final = MAX_BODY_BYTES + MIB
_RESPONSE_PHASES: Final = frozenset({"response_headers", "response_body", "response_trailers"})


class Prepared(Protocol):
    """A generation being served."""

    def chain_for(self, host: str) -> tuple[Stage, ...]:
        """The stages that apply to a host (as returned by `normalize_host`), in running order."""

    async def evaluate(self, stages: tuple[Stage, ...], request: Request) -> Outcome:
        """Run the chain. Recording the outcome's events is left to the caller."""


class Runtime(Protocol):
    """What the supervisor runs at the moment."""

    def pin(self) -> AbstractContextManager[Prepared] | None:
        """The generation being served, kept for the block even if another becomes active; None: never configured."""


class ListenFailed(Unavailable):
    """The address cannot be listened on."""


class UnexpectedMessage(Exception):  # noqa: N818 - says what happened
    """Envoy sent what does not belong here, or ended the conversation in the middle of a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIdentity:
    """What this supervisor puts into each request's context."""

    sandbox_id: str
    new_request_id: Callable[[], str]


class Processor(rpc.ExternalProcessorServicer):  # type: ignore[misc] # generated code has no types
    """One conversation a request. `record` takes an outcome's events before the request goes on."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        identity: RequestIdentity,
        record: Callable[[tuple[Event, ...]], None],
        permits: Permits | None = None,
        body_patience: timedelta = BODY_PATIENCE,
    ) -> None:
        self._runtime = runtime
        self._identity = identity
        self._record = record
        self._permits = permits or Permits()
        self._body_patience = body_patience

    async def Process(self, _: object, stream: "_Stream") -> None:  # noqa: N802 - the service's name for it
        """Answer Envoy about one request (the generated service's only method)."""
        while isinstance(message := await stream.read(), pb.ProcessingRequest):
            phase = message.WhichOneof("request")
            if phase not in _RESPONSE_PHASES:
                await stream.write(await self._judge(message, stream))
                return
            await stream.write(replies.proceed(phase))

    async def _judge(self, message: pb.ProcessingRequest, stream: "_Stream") -> pb.ProcessingResponse:
        """The final answer, whatever happens."""
        try:
            return await self._answer(message, stream)
        except Exhausted:
            return replies.refuse_busy()
        except UnmatchableHost:
            return replies.refuse(Denied(cause=Cause.FAILED, code=FailureCode.UNINSPECTABLE))
        except Exception as error:  # noqa: BLE001 - fail closed, whatever it is; its text may hold content
            _log.error("a request was refused after an error", error=where(error))
            return replies.refuse(Denied(cause=Cause.FAILED))

    async def _answer(self, message: pb.ProcessingRequest, stream: "_Stream") -> pb.ProcessingResponse:
        if message.WhichOneof("request") != "request_headers":
            raise UnexpectedMessage
        pinned = self._runtime.pin()
        if pinned is None:
            return replies.refuse(Denied(cause=Cause.UNCONFIGURED))
        with pinned as prepared:
            head = _head(message.request_headers)
            stages = prepared.chain_for(head.target.host)
            if not stages:
                return replies.untouched()
            return await self._inspect(prepared, stages, head=head, stream=stream)

    async def _inspect(
        self, prepared: Prepared, stages: tuple[Stage, ...], *, head: RequestHead, stream: "_Stream"
    ) -> pb.ProcessingResponse:
        context = RequestContext(request_id=self._identity.new_request_id(), sandbox_id=self._identity.sandbox_id)
        if head.framing is Framing.OPAQUE:
            outcome = uninspectable(stages, context=context, target=head.target)
            return self._settled(outcome, head, forward=replies.forward_head)
        cap = body_cap(stages)
        known = known_body(head, cap=cap)
        async with self._permits.permit():
            body = await self._read_body(head, stream, cap=cap) if known is None else known
            request = Request(context=context, target=head.target, headers=head.headers, body=body)
            outcome = await prepared.evaluate(stages, request)
        return self._settled(outcome, head, forward=replies.forward_body if known is None else replies.forward_head)

    async def _read_body(self, head: RequestHead, stream: "_Stream", *, cap: int) -> Body:
        await stream.write(replies.ask_for_body(head.framing))
        async with asyncio.timeout(self._body_patience.total_seconds()):
            message = await stream.read()
        if not isinstance(message, pb.ProcessingRequest) or message.WhichOneof("request") != "request_body":
            raise UnexpectedMessage
        received = message.request_body
        # Not the end although the buffer is full (or trailers follow, which no stage is shown): it cannot be resumed.
        if not received.end_of_stream or len(received.body) > cap:
            return Overflowed()
        return Whole(received.body)

    def _settled(self, outcome: Outcome, head: RequestHead, *, forward: "_Forward") -> pb.ProcessingResponse:
        match outcome:
            case Allowed():
                answer = forward(head, outcome)
            case Denied():
                answer = replies.refuse(outcome)
            case _:
                assert_never(outcome)
        self._record(outcome.events)
        return answer


class ExtProcServer:
    """The gRPC server Envoy calls. Bind it to loopback, or to a unix socket in a directory of our own: no TLS."""

    def __init__(self, processor: Processor, *, address: Address) -> None:
        self._processor = processor
        self._address = address
        self._server: grpc.aio.Server | None = None

    async def start(self) -> Address:
        """Listen; returns the address with the port the kernel chose where 0 was asked for.

        Raises:
            ListenFailed: the address is taken or not ours.
        """
        # A message is a body of at most what Envoy buffers, which may overshoot its limit by one read.
        options = (
            ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
            ("grpc.max_send_message_length", _MAX_SEND_BYTES),
            ("grpc.so_reuseport", 0),
        )
        server = grpc.aio.server(options=options)
        rpc.add_ExternalProcessorServicer_to_server(self._processor, server)
        try:
            port = server.add_insecure_port(str(self._address))
        except RuntimeError as error:
            raise ListenFailed(f"cannot listen on {self._address}") from error
        await server.start()
        self._server = server
        return TcpAddress(self._address.host, port) if isinstance(self._address, TcpAddress) else self._address

    async def stop(self, grace: timedelta) -> None:
        """No new requests; those in flight have `grace` to end, then they end with an error (and are refused)."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace.total_seconds())


class _Stream(Protocol):
    """The half of gRPC's context that a conversation needs. Reading past the end gives something else."""

    async def read(self) -> object: ...

    async def write(self, message: pb.ProcessingResponse, /) -> None: ...


_Forward: TypeAlias = Callable[[RequestHead, Allowed], pb.ProcessingResponse]


def _head(received: pb.HttpHeaders) -> RequestHead:
    lines = ((h.key, h.raw_value or h.value.encode()) for h in received.headers.headers)
    return parse_head(lines, end_of_stream=received.end_of_stream)
