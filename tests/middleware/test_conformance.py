"""The conformance suite: silent about good services, in-process and remote, and exact about bad ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, TypeAlias

import grpc.aio
import pytest

from supervisor_middleware.middleware import (
    Decision,
    Dialect,
    Evaluation,
    Finding,
    JsonObject,
    Middleware,
    Result,
    http_binding,
    http_manifest,
)
from supervisor_middleware.middleware.builtins import BUILTINS
from supervisor_middleware.middleware.conformance import CHANNEL_OPTIONS, CHECKS, Problem, check, check_in_process
from supervisor_middleware.middleware.terms import Terms
from supervisor_middleware.wire import codec
from tests.middleware.builders import ALLOW, BINDING, Fake, plain_channel

RawMethod: TypeAlias = Callable[[bytes, object], Awaitable[bytes]]
TERMS_CONFIG: JsonObject = {"terms": ["falcon"], "action": "redact"}


@asynccontextmanager
async def raw_channel(methods: Mapping[str, RawMethod]) -> AsyncIterator[grpc.aio.Channel]:
    """To a server that is not ours: gRPC's own limits, whatever bytes it answers."""
    server = grpc.aio.server()
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(codec.SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            yield channel
    finally:
        await server.stop(None)


def found(problems: list[Problem]) -> set[tuple[str, str]]:
    return {(problem.check, problem.message) for problem in problems}


@pytest.mark.parametrize("middleware", BUILTINS.values(), ids=BUILTINS)
async def test_builtins_conform_in_process(middleware: Middleware) -> None:
    assert await check_in_process(middleware) == []


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_a_remote_service_conforms(dialect: Dialect) -> None:
    async with plain_channel(Terms(dialect=dialect)) as channel:
        assert await check(channel, config=TERMS_CONFIG) == []
    assert await check_in_process(Terms(dialect=dialect), config=TERMS_CONFIG) == []


async def test_a_service_that_needs_a_config_says_so() -> None:
    problems = await check_in_process(Terms())
    assert ("config_is_judged", "ValidateConfig refuses the suite's config: give it one it takes") in found(problems)
    assert {problem.binding for problem in problems} == {"acme/terms"}


class Bad(Fake):
    """Breaks one promise, chosen by the test."""

    def __init__(self, evaluate: Callable[[Evaluation], Any] = lambda _: ALLOW, *, reason: Any = None) -> None:
        super().__init__()
        self._evaluate = evaluate
        self._reason = reason

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        reason: str | None = self._reason() if callable(self._reason) else self._reason
        return reason

    async def evaluate(self, evaluation: Evaluation) -> Result:
        result: Result = self._evaluate(evaluation)
        return result


def echo_finding(evaluation: Evaluation) -> Result:
    text = evaluation.body[:100].decode()
    return replace(ALLOW, findings=(Finding(type="a", label=text),))


def deny_without_process(evaluation: Evaluation) -> Result:
    return ALLOW if evaluation.context.process else Result(decision=Decision.DENY)


def counting() -> Callable[[Evaluation], Result]:
    numbers = count()
    return lambda _: replace(ALLOW, metadata={"n": str(next(numbers))})


def a_new_reason_each_time() -> Callable[[], str]:
    numbers = count()
    return lambda: f"no, number {next(numbers)}"


def fail(_: Evaluation) -> Result:
    raise ValueError("s3cret")


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (Bad(counting()), {("answers_are_repeatable", "the same request_id was answered differently")}),
        (
            Bad(lambda _: replace(ALLOW, reason_code="Not A Code")),
            {("answers_are_repeatable", "the answer breaks the contract: response_reason_code_invalid")},
        ),
        (Bad(echo_finding), {("findings_hold_no_content", "a reason, finding or metadata entry repeats the body")}),
        (
            Bad(deny_without_process),
            {("process_data_is_optional", "a request is denied only because its process is unknown")},
        ),
        (Bad(reason=a_new_reason_each_time()), None),
        (
            Bad(reason=""),
            {
                ("config_is_judged", "ValidateConfig refused without a reason"),
                ("config_is_judged", "ValidateConfig refuses the suite's config: give it one it takes"),
            },
        ),
    ],
)
async def test_each_broken_promise_is_named(bad: Middleware, expected: set[tuple[str, str]] | None) -> None:
    problems = found(await check_in_process(bad))
    if expected is None:
        assert ("config_is_judged", "ValidateConfig answered differently the second time") in problems
    else:
        assert problems == expected


async def test_a_service_that_only_fails_is_reported_by_every_check_that_asks() -> None:
    problems = await check_in_process(Bad(fail))
    assert {p.check for p in problems} == {run.__name__ for run in CHECKS} - {"config_is_judged"}
    async with plain_channel(Bad(fail)) as channel:
        remote = await check(channel)
    assert {p.check for p in remote} == {p.check for p in problems}
    assert "s3cret" not in repr(problems) + repr(remote)


async def test_a_manifest_that_breaks_the_contract_ends_it() -> None:
    fake = Fake()
    fake.manifest = http_manifest(http_binding("/bad/", timeout="never"), name="bad", version="1")
    problems = await check_in_process(fake)
    assert {p.check for p in problems} == {"describe_is_well_formed"}
    assert len(problems) == 2


async def test_noise_is_no_manifest_and_no_verdict() -> None:
    async def noise(_: bytes, __: object) -> bytes:
        return b"\xff s3cret"

    async def describe(_: bytes, __: object) -> bytes:
        return codec.encode_manifest(Fake().manifest)

    methods = {"Describe": describe, "ValidateConfig": noise, "EvaluateHttpRequest": noise}
    async with raw_channel(methods) as channel:
        assert {p.check for p in await check(channel)} == {run.__name__ for run in CHECKS}
    async with raw_channel({"Describe": noise}) as channel:
        (problem,) = await check(channel)
    assert problem.check == "describe_is_well_formed"
    assert "s3cret" not in problem.message


async def test_a_service_that_hangs_is_reported() -> None:
    async def hang(_: Evaluation) -> Result:
        await asyncio.sleep(60)
        return ALLOW

    problems = await check_in_process(Fake(hang), deadline=timedelta(milliseconds=20))
    assert {p.message.rpartition(": ")[2] for p in problems} == {"middleware_timeout"}


async def test_what_is_no_service_is_said_to_be_none() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        (problem,) = await check(channel)
    assert problem == Problem(check="describe_is_well_formed", message="Describe gave no manifest: UNAVAILABLE")


async def test_a_server_with_grpcs_own_message_limit_is_found() -> None:
    manifest = codec.encode_manifest(Fake().manifest)

    async def describe(_: bytes, __: object) -> bytes:
        return manifest

    async def validate(_: bytes, __: object) -> bytes:
        return b"\x08\x01"

    async def evaluate(_: bytes, __: object) -> bytes:
        return codec.encode_result(Dialect.RFC0009, ALLOW)

    methods = {"Describe": describe, "ValidateConfig": validate, "EvaluateHttpRequest": evaluate}
    async with raw_channel(methods) as channel:
        problems = await check(channel)
    assert [(p.check, p.binding) for p in problems] == [("largest_messages_pass", BINDING)]
    assert "RESOURCE_EXHAUSTED" in problems[0].message


async def test_a_small_binding_may_refuse_a_large_body_but_takes_the_message() -> None:
    async with plain_channel(Fake(max_body_bytes=1)) as channel:
        assert await check(channel) == []
