"""Asks a server of ours as Envoy asks, message by message, over real gRPC."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as rpc

from supervisor_middleware.audit.events import Event
from supervisor_middleware.supervisor.envoy_config import Address, TcpAddress
from supervisor_middleware.supervisor.ext_proc import ExtProcServer, Processor, RequestIdentity
from supervisor_middleware.supervisor.permits import Permits
from tests.fakes.ext_proc_runtime import FakeRuntime

NO_GRACE = timedelta(0)


@dataclass
class Asked:
    """A server of ours, asked as Envoy asks."""

    stub: rpc.ExternalProcessorStub
    server: ExtProcServer
    address: Address
    runtime: FakeRuntime
    events: list[Event] = field(default_factory=list)

    async def converse(self, *messages: Any) -> list[Any]:
        """All answers to these messages; each is sent after the answer to the one before."""
        call = self.stub.Process()
        answers = []
        for message in messages:
            await call.write(message)
            answers.append(await self.answer(call))
        await call.done_writing()
        assert not isinstance(await call.read(), pb.ProcessingResponse)
        return answers

    async def answer(self, call: Any) -> Any:
        async with asyncio.timeout(5):
            return await call.read()


@asynccontextmanager
async def asked(
    runtime: FakeRuntime,
    *,
    permits: Permits | None = None,
    record: Callable[[tuple[Event, ...]], None] | None = None,
    body_patience: timedelta = timedelta(seconds=5),
) -> AsyncIterator[Asked]:
    events = list[Event]()
    ids = iter(f"request-{n}" for n in range(1000))
    processor = Processor(
        runtime,
        identity=RequestIdentity(sandbox_id="team/agent", new_request_id=lambda: next(ids)),
        record=record or events.extend,
        permits=permits,
        body_patience=body_patience,
    )
    server = ExtProcServer(processor, address=TcpAddress("127.0.0.1", 0))
    address = await server.start()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield Asked(rpc.ExternalProcessorStub(channel), server, address, runtime, events)
    finally:
        await server.stop(NO_GRACE)


def a_head(
    *lines: tuple[str, bytes], host: bytes = b"api.example.com", end: bool = False, method: bytes = b"POST"
) -> Any:
    message = pb.ProcessingRequest()
    headers = message.request_headers.headers.headers
    pseudo = ((":authority", host), (":method", method), (":path", b"/x?secret=1"), (":scheme", b"http"))
    for key, value in (*pseudo, *lines):
        headers.add(key=key, raw_value=value)
    message.request_headers.end_of_stream = end
    return message


def a_body(data: bytes = b"abc", *, end: bool = True) -> Any:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end))


def declared(length: int, **more: Any) -> Any:
    return a_head(("content-length", str(length).encode()), **more)


def is_untouched(answer: Any) -> bool:
    common = answer.request_headers.response
    mode = answer.mode_override.request_body_mode
    return bool(answer.WhichOneof("response") == "request_headers" and common == pb.CommonResponse() and mode == 0)


def refusal(answer: Any) -> tuple[int, dict[str, str]]:
    assert answer.WhichOneof("response") == "immediate_response"
    return answer.immediate_response.status.code, json.loads(answer.immediate_response.body)
