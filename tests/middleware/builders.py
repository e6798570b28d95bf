"""Requests and services for the SDK's tests; each names only what matters."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc.aio

from supervisor_middleware.middleware import (
    Decision,
    Dialect,
    Evaluation,
    Header,
    JsonObject,
    Manifest,
    Middleware,
    Result,
    ServerTls,
    http_binding,
    http_manifest,
    serve,
)
from supervisor_middleware.middleware.conformance import CHANNEL_OPTIONS
from supervisor_middleware.middleware.tls import CallerRule, TlsSource
from supervisor_middleware.model.evaluation import RequestContext, Target
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.wire import codec

BINDING = "acme/test"
ALLOW = Result(decision=Decision.ALLOW)


def an_evaluation(*, body: bytes = b"", config: JsonObject | None = None, binding: str = BINDING) -> Evaluation:
    return Evaluation(
        binding=binding,
        context=RequestContext(request_id="r-1", sandbox_id="sandbox-1"),
        config=config or {},
        target=Target(scheme="https", host="api.example.com", port=443, method="POST", path="/v1", query="q=1"),
        headers=(Header("accept", "a"), Header("accept", "b")),
        body=body,
    )


class Fake(Middleware):
    """Answers with whatever the test hands in."""

    def __init__(
        self,
        answer: Callable[[Evaluation], Awaitable[Result]] | None = None,
        *,
        dialect: Dialect = Dialect.RFC0009,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        binding = http_binding(BINDING, max_body_bytes=max_body_bytes, timeout="1s")
        self.manifest: Manifest = http_manifest(binding, name="fake", version="1", dialect=dialect)
        self.answer = answer
        self.seen: list[Evaluation] = []

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        return f"{binding} does not know that key" if config else None

    async def evaluate(self, evaluation: Evaluation) -> Result:
        self.seen.append(evaluation)
        return ALLOW if self.answer is None else await self.answer(evaluation)


@asynccontextmanager
async def plain_channel(middleware: Middleware, *, rule: CallerRule | None = None) -> AsyncIterator[grpc.aio.Channel]:
    server = await serve(middleware, address="127.0.0.1:0", tls=None, allowed_callers=rule)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=CHANNEL_OPTIONS) as channel:
            yield channel
    finally:
        await server.stop(grace=0)


@asynccontextmanager
async def tls_server(
    middleware: Middleware, *, tls: ServerTls | TlsSource, rule: CallerRule | None = None
) -> AsyncIterator[int]:
    server = await serve(middleware, address="127.0.0.1:0", tls=tls, allowed_callers=rule)
    try:
        yield server.port
    finally:
        await server.stop(grace=0)


async def call(channel: grpc.aio.Channel, method: str, request: bytes = b"", *, timeout: float = 10) -> bytes:
    answer: bytes = await channel.unary_unary(method, request_serializer=None, response_deserializer=None)(
        request, timeout=timeout
    )
    return answer


async def evaluate(
    channel: grpc.aio.Channel, evaluation: Evaluation, *, dialect: Dialect = Dialect.RFC0009, timeout: float = 10
) -> Result:
    request = codec.encode_evaluation(dialect, evaluation)
    return codec.decode_result(
        dialect, await call(channel, codec.METHODS.evaluate_http_request, request, timeout=timeout)
    )
