"""Both ways to ask a stage; the service is a real gRPC server on loopback."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import grpc
import grpc.aio
import pytest

from supervisor_middleware.model.evaluation import (
    Decision,
    Evaluation,
    ExistingHeader,
    FailureCode,
    Finding,
    Header,
    Result,
    StageFailed,
    WriteHeader,
)
from supervisor_middleware.model.limits import MAX_BODY_BYTES, MAX_GRPC_MESSAGE_BYTES
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.supervisor.exchange import Denied
from supervisor_middleware.supervisor.runner import run_chain
from supervisor_middleware.supervisor.stages import INLINE_BODY_BYTES, BuiltinCaller, ServiceCaller
from supervisor_middleware.wire.channels import OPTIONS
from supervisor_middleware.wire.codec import METHODS, SERVICE, decode_evaluation, encode_result
from tests.supervisor.builders import CONTEXT, allow, deny, request, stage, target

SOON = timedelta(seconds=5)
Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[bytes, Context], Awaitable[bytes]]

EVALUATION = Evaluation(
    binding="acme/redact",
    context=CONTEXT,
    config={"mode": "redact", "limit": 3},
    target=target(query="q=1"),
    headers=(Header("accept", "a"), Header("accept", "b")),
    body=b"hello",
)
RESULT = Result(
    decision=Decision.ALLOW,
    reason="for the log of nobody",
    body=b"new",
    mutations=(WriteHeader(name="x-openshell-middleware-a", value="v", on_existing=ExistingHeader.SKIP),),
    findings=(Finding(type="t", label="l", count=2, confidence="c", severity="high"),),
    metadata={"k": "v"},
)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a service whose EvaluateHttpRequest is `handler`."""
    server = grpc.aio.server(options=(("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)))
    method = METHODS.evaluate_http_request.rpartition("/")[2]
    handlers = {method: grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            yield channel
    finally:
        await server.stop(grace=None)


async def ask(
    channel: grpc.aio.Channel,
    evaluation: Evaluation = EVALUATION,
    *,
    deadline: timedelta = SOON,
    dialect: Dialect = Dialect.RFC0009,
) -> Result:
    caller = ServiceCaller(channel, dialect=dialect, config=evaluation.config)
    return await caller.evaluate(stage(), evaluation, deadline=deadline)


async def failure(answer: Awaitable[Result]) -> FailureCode:
    with pytest.raises(StageFailed) as failed:
        await answer
    # The cause would carry the service's text into whatever logs the exception.
    assert failed.value.__suppress_context__ or failed.value.__context__ is None
    return failed.value.code


@pytest.mark.parametrize("dialect", Dialect)
async def test_service_is_asked_and_answers_in_its_dialect(dialect: Dialect) -> None:
    asked: list[Evaluation] = []

    async def handler(data: bytes, _: Context) -> bytes:
        asked.append(decode_evaluation(dialect, data))
        return encode_result(dialect, RESULT)

    async with serving(handler) as channel:
        assert await ask(channel, dialect=dialect) == RESULT
    assert asked == [EVALUATION]


async def test_deny_is_final_however_malformed_the_rest_of_the_answer_is() -> None:
    answer = deny(findings=(Finding(type="t"),) * 33, body=b"x")

    async def handler(_: bytes, __: Context) -> bytes:
        return encode_result(Dialect.RELEASED, answer)

    async with serving(handler) as channel:
        assert (await ask(channel, dialect=Dialect.RELEASED)).decision is Decision.DENY


async def test_channel_closed_under_a_call_is_the_stages_failure() -> None:
    asked = asyncio.Event()

    async def hang(_: bytes, __: Context) -> bytes:
        asked.set()
        await asyncio.sleep(30)
        return b""

    async with serving(hang) as channel:
        caller = ServiceCaller(channel, dialect=Dialect.RFC0009, config={})
        stages = (stage(timeout=SOON),)
        running = asyncio.create_task(run_chain(stages, request(), caller_of=lambda _: caller, clock=time.monotonic))
        await asked.wait()
        await channel.close(grace=None)
        outcome = await running
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.SERVICE_ERROR


async def test_largest_body_passes_both_ways() -> None:
    body = b"x" * MAX_BODY_BYTES

    async def echo(data: bytes, _: Context) -> bytes:
        return encode_result(Dialect.RFC0009, allow(decode_evaluation(Dialect.RFC0009, data).body))

    async with serving(echo) as channel:
        assert (await ask(channel, replace(EVALUATION, body=body))).body == body


async def test_slow_service_times_out_at_the_deadline() -> None:
    async def slow(_: bytes, __: Context) -> bytes:
        await asyncio.sleep(30)
        return b""

    async with serving(slow) as channel:
        started = time.monotonic()
        assert await failure(ask(channel, deadline=timedelta(milliseconds=100))) is FailureCode.TIMEOUT
        assert time.monotonic() - started < 2


async def test_crashing_service_is_a_service_error_and_is_asked_once() -> None:
    calls = 0

    async def crash(_: bytes, context: Context) -> bytes:
        nonlocal calls
        calls += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "secret detail")
        raise AssertionError

    async with serving(crash) as channel:
        assert await failure(ask(channel)) is FailureCode.SERVICE_ERROR
    assert calls == 1


async def test_service_that_claims_exhaustion_did_not_answer_too_much() -> None:
    async def exhausted(_: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too busy")
        raise AssertionError

    async with serving(exhausted) as channel:
        assert await failure(ask(channel)) is FailureCode.SERVICE_ERROR


async def test_oversized_answer_is_over_capacity() -> None:
    async def oversized(_: bytes, __: Context) -> bytes:
        return b"x" * (MAX_GRPC_MESSAGE_BYTES + 1)

    async with serving(oversized) as channel:
        assert await failure(ask(channel)) is FailureCode.RESPONSE_OVER_CAPACITY


@pytest.mark.parametrize(
    ("answer", "code"),
    [(b"\xff\xff\xff\xff", FailureCode.SERVICE_ERROR), (b"", FailureCode.INVALID_DECISION)],
)
async def test_garbage_is_a_failure(answer: bytes, code: FailureCode) -> None:
    async def garbage(_: bytes, __: Context) -> bytes:
        return answer

    async with serving(garbage) as channel:
        assert await failure(ask(channel)) is code


async def test_service_that_is_not_there_fails_at_once() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1", options=OPTIONS) as channel:
        assert await failure(ask(channel)) is FailureCode.SERVICE_ERROR


async def test_deadline_covers_connecting() -> None:
    # The kernel accepts for it, and nobody ever speaks HTTP/2.
    with socket.create_server(("127.0.0.1", 0)) as mute:
        started = time.monotonic()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{mute.getsockname()[1]}", options=OPTIONS) as channel:
            assert await failure(ask(channel, deadline=timedelta(milliseconds=50))) is FailureCode.TIMEOUT
        assert time.monotonic() - started < 3


async def test_request_that_no_message_holds_is_not_sent() -> None:
    async def never(_: bytes, __: Context) -> bytes:
        raise AssertionError

    evaluation = replace(EVALUATION, headers=(Header("x-odd", "\udc80"),))
    async with serving(never) as channel:
        assert await failure(ask(channel, evaluation)) is FailureCode.UNINSPECTABLE


# --- built-ins ---


class Ordinary:
    """A built-in with an ordinary method; remembers where it ran."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def evaluate(self, evaluation: Evaluation) -> Result:
        self.thread = threading.current_thread()
        return allow(evaluation.body.upper())


class Asynchronous(Ordinary):
    async def evaluate(self, evaluation: Evaluation) -> Result:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().evaluate(evaluation)


@pytest.mark.parametrize("make", [Ordinary, Asynchronous])
async def test_builtin_runs_on_the_loop_for_a_small_body_and_in_a_thread_for_a_large_one(
    make: type[Ordinary],
) -> None:
    builtin = make()
    caller = BuiltinCaller(builtin)
    small = replace(EVALUATION, body=b"x" * INLINE_BODY_BYTES)
    assert (await caller.evaluate(stage(), small, deadline=SOON)).body == b"X" * INLINE_BODY_BYTES
    assert builtin.thread is threading.current_thread()
    large = replace(EVALUATION, body=b"x" * (INLINE_BODY_BYTES + 1))
    assert (await caller.evaluate(stage(), large, deadline=SOON)).body == b"X" * (INLINE_BODY_BYTES + 1)
    assert builtin.thread is not threading.current_thread()


class Blocking:
    """Holds its thread until the test lets go."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def evaluate(self, evaluation: Evaluation) -> Result:
        self.released.wait(10)
        return allow()


async def test_builtin_that_is_too_slow_times_out_while_others_run() -> None:
    builtin = Blocking()
    large = replace(EVALUATION, body=b"x" * (INLINE_BODY_BYTES + 1))
    slow = asyncio.create_task(
        failure(BuiltinCaller(builtin).evaluate(stage(), large, deadline=timedelta(milliseconds=100)))
    )
    await asyncio.sleep(0)
    other = await BuiltinCaller(Ordinary()).evaluate(stage(), EVALUATION, deadline=SOON)
    assert (other.body, slow.done()) == (b"HELLO", False)
    assert await slow is FailureCode.TIMEOUT
    builtin.released.set()


class Refusing:
    def evaluate(self, evaluation: Evaluation) -> Result:
        raise StageFailed(FailureCode.INVALID_DECISION)


@pytest.mark.parametrize("size", [0, INLINE_BODY_BYTES + 1])
async def test_builtins_own_failure_passes_through(size: int) -> None:
    evaluation = replace(EVALUATION, body=b"x" * size)
    code = await failure(BuiltinCaller(Refusing()).evaluate(stage(), evaluation, deadline=SOON))
    assert code is FailureCode.INVALID_DECISION
