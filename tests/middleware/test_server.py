"""The SDK's server over real gRPC on loopback, without TLS."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware import (
    Caller,
    Decision,
    Dialect,
    Evaluation,
    FailureCode,
    Finding,
    JsonObject,
    Result,
    StageFailed,
    current_caller,
    http_binding,
    http_manifest,
    serve,
)
from supervisor_middleware.model.limits import MAX_BODY_BYTES, MAX_GRPC_MESSAGE_BYTES
from supervisor_middleware.model.manifest import Operation
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.wire import codec
from tests.middleware.builders import ALLOW, BINDING, Fake, an_evaluation, call, evaluate, plain_channel

SECRET = "the-secret-of-the-body"
DIALECTS = list(Dialect)


def failing(error: Exception) -> Callable[[Evaluation], Awaitable[Result]]:
    async def answer(_: Evaluation) -> Result:
        raise error

    return answer


def answering(result: Result) -> Callable[[Evaluation], Awaitable[Result]]:
    async def answer(_: Evaluation) -> Result:
        return result

    return answer


async def refusal(awaitable: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_describe_says_the_manifest_in_its_dialect(dialect: Dialect) -> None:
    fake = Fake(dialect=dialect)
    async with plain_channel(fake) as channel:
        answer = await call(channel, codec.METHODS.describe)
    assert codec.decode_manifest(answer, registration_name=BINDING) == fake.manifest


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_config_is_judged_by_the_author(dialect: Dialect) -> None:
    async with plain_channel(Fake(dialect=dialect)) as channel:
        configs: tuple[JsonObject, ...] = ({}, {"key": 1})
        requests = [codec.encode_validate_config(dialect, binding=BINDING, config=config) for config in configs]
        answers = [await call(channel, codec.METHODS.validate_config, request) for request in requests]
    verdicts = [codec.decode_verdict(dialect, answer) for answer in answers]
    assert verdicts == [Accepted(), Rejected("acme/test does not know that key")]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_evaluation_reaches_the_author_and_its_result_the_caller(dialect: Dialect) -> None:
    result = Result(
        decision=Decision.ALLOW, body=b"", findings=(Finding(type="a.b", count=3),), metadata={"key": "value"}
    )
    fake = Fake(answering(result), dialect=dialect)
    asked = an_evaluation(body=b"\x00body\xff", config={"list": [1, "two", None], "deep": {"on": True}})
    async with plain_channel(fake) as channel:
        assert await evaluate(channel, asked, dialect=dialect) == result
    assert fake.seen == [asked]


async def test_four_mebibytes_pass_both_ways() -> None:
    async def echo(evaluation: Evaluation) -> Result:
        return Result(decision=Decision.ALLOW, body=evaluation.body[::-1])

    body = b"0123456789abcdef" * (MAX_BODY_BYTES // 16)
    async with plain_channel(Fake(echo)) as channel:
        assert (await evaluate(channel, an_evaluation(body=body))).body == body[::-1]


async def test_messages_pass_up_to_the_limit_and_not_beyond() -> None:
    request = codec.encode_evaluation(Dialect.RFC0009, an_evaluation())
    options = [("grpc.max_send_message_length", -1)]
    fake = Fake()
    server = await serve(fake, address="127.0.0.1:0", tls=None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        method = codec.METHODS.evaluate_http_request
        # Unknown field 15, length-delimited: ignored by every parser, counted by every transport.
        room = MAX_GRPC_MESSAGE_BYTES - len(request) - 5
        length = bytes((room & 0x7F | 0x80, room >> 7 & 0x7F | 0x80, room >> 14 & 0x7F | 0x80, room >> 21))
        fits = request + b"\x7a" + length + bytes(room)
        assert len(fits) == MAX_GRPC_MESSAGE_BYTES
        await call(channel, method, fits)
        refused = await refusal(call(channel, method, fits + b"\x7a\x00"))
    await server.stop(0)
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    "error", [ValueError(SECRET), RuntimeError(SECRET), TimeoutError(SECRET), StageFailed(FailureCode.SERVICE_ERROR)]
)
async def test_an_exception_is_internal_and_its_text_stays_here(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with plain_channel(Fake(failing(error))) as channel:
            refused = await refusal(evaluate(channel, an_evaluation(body=SECRET.encode())))
    assert (refused.code(), refused.details()) == (grpc.StatusCode.INTERNAL, "the service failed")
    assert type(error).__name__ in caplog.text
    assert SECRET not in caplog.text + str(refused)


async def test_an_answer_that_is_no_result_is_internal() -> None:
    async with plain_channel(Fake(answering(None))) as channel:  # type: ignore[arg-type]
        assert (await refusal(evaluate(channel, an_evaluation()))).code() is grpc.StatusCode.INTERNAL


async def test_a_result_over_a_limit_is_not_sent_and_the_log_names_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = Result(decision=Decision.ALLOW, body=SECRET.encode() * 100, reason=SECRET * 1000)
    async with plain_channel(Fake(answering(result), max_body_bytes=1000)) as channel:
        refused = await refusal(evaluate(channel, an_evaluation()))
    assert (refused.code(), refused.details()) == (grpc.StatusCode.INTERNAL, "the service gave no valid result")
    assert "response_body_over_capacity, response_reason_over_capacity" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_body_over_the_bindings_limit_never_reaches_the_author(dialect: Dialect) -> None:
    fake = Fake(dialect=dialect, max_body_bytes=10)
    async with plain_channel(fake) as channel:
        await evaluate(channel, an_evaluation(body=b"0123456789"), dialect=dialect)
        refused = await refusal(evaluate(channel, an_evaluation(body=b"0123456789a"), dialect=dialect))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(fake.seen) == 1


async def test_a_foreign_binding_is_refused() -> None:
    fake = Fake()
    async with plain_channel(fake) as channel:
        asked = codec.encode_validate_config(Dialect.RFC0009, binding="acme/other", config={})
        about_config = await refusal(call(channel, codec.METHODS.validate_config, asked))
        about_request = await refusal(evaluate(channel, an_evaluation(binding="acme/other")))
    assert about_config.code() is about_request.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not fake.seen


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_other_dialect_and_noise_are_refused(dialect: Dialect) -> None:
    fake = Fake(dialect=dialect)
    (other,) = set(Dialect) - {dialect}
    async with plain_channel(fake) as channel:
        for request in (codec.encode_evaluation(other, an_evaluation()), b"\xff\xff noise", b""):
            refused = await refusal(call(channel, codec.METHODS.evaluate_http_request, request))
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not fake.seen


async def test_the_deadline_ends_the_authors_work() -> None:
    ended = asyncio.Event()

    async def slow(_: Evaluation) -> Result:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ALLOW

    async with plain_channel(Fake(slow)) as channel:
        refused = await refusal(evaluate(channel, an_evaluation(), timeout=0.2))
        await asyncio.wait_for(ended.wait(), 5)
    assert refused.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_stopping_lets_running_calls_end() -> None:
    running, finish = asyncio.Event(), asyncio.Event()

    async def slow(_: Evaluation) -> Result:
        running.set()
        await finish.wait()
        return ALLOW

    server = await serve(Fake(slow), address="127.0.0.1:0", tls=None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        pending = asyncio.create_task(evaluate(channel, an_evaluation()))
        await running.wait()
        stopping = asyncio.create_task(server.stop(grace=10))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        finish.set()
        assert await pending == ALLOW
        await stopping
    await server.wait()


async def test_a_rule_decides_over_plaintext_too() -> None:
    seen: list[Caller] = []

    def nobody(caller: Caller) -> bool:
        seen.append(caller)
        return False

    async with plain_channel(Fake(), rule=nobody) as channel:
        refused = await refusal(evaluate(channel, an_evaluation()))
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    assert seen == [Caller()]


async def test_there_is_no_caller_outside_a_call() -> None:
    assert current_caller() == Caller(spiffe_id=None)


async def test_an_address_is_used_once() -> None:
    server = await serve(Fake(), address="127.0.0.1:0", tls=None)
    with pytest.raises(InvalidInput, match="cannot listen on"):
        await serve(Fake(), address=f"127.0.0.1:{server.port}", tls=None)
    await server.stop(0)


async def test_a_manifest_that_breaks_the_contract_is_not_served() -> None:
    fake = Fake(max_body_bytes=0)
    with pytest.raises(InvalidInput, match="advertises 0 body bytes"):
        await serve(fake, address="127.0.0.1:0", tls=None)
    fake.manifest = http_manifest(name="empty", version="1")
    with pytest.raises(InvalidInput, match="1 to 64 bindings are needed"):
        await serve(fake, address="127.0.0.1:0", tls=None)
    socket = replace(http_binding(BINDING), operation=Operation.WEBSOCKET_MESSAGE)
    fake.manifest = http_manifest(http_binding(BINDING), socket, name="s", version="1", dialect=Dialect.RELEASED)
    with pytest.raises(InvalidInput, match="only HTTP_REQUEST bindings are served here"):
        await serve(fake, address="127.0.0.1:0", tls=None)
