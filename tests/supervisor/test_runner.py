import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from supervisor_middleware.audit.events import Bypassed, Invoked
from supervisor_middleware.model.evaluation import Evaluation, FailureCode, Result, StageFailed
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.supervisor.exchange import Allowed, Denied
from supervisor_middleware.supervisor.runner import StageCaller, run_chain
from tests.supervisor.builders import allow, fail_open, request, stage


class Clock:
    """Monotonic time that moves only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Caller:
    """A `StageCaller` that does what the test says."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self._answer = answer
        self.deadlines: list[timedelta] = []

    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        self.deadlines.append(deadline)
        result: Result = await self._answer()
        return result


def raising(error: BaseException) -> Caller:
    async def answer() -> Result:
        raise error

    return Caller(answer)


def answering(result: object) -> Caller:
    async def answer() -> object:
        return result

    return Caller(answer)


async def run(callers: Mapping[str, StageCaller], *stages: Stage, clock: Clock | None = None) -> Allowed | Denied:
    return await run_chain(
        stages or (stage(),),
        request(b"old"),
        caller_of=lambda s: callers.get(s.key),
        clock=clock or Clock(),
    )


async def test_answers_are_folded_in_order() -> None:
    callers = {"a": answering(allow(b"new")), "b": answering(allow(metadata={"k": "v"}))}
    outcome = await run(callers, stage("a"), stage("b"))
    assert isinstance(outcome, Allowed)
    assert (outcome.body, outcome.metadata) == (b"new", {"b": {"k": "v"}})


async def test_latency_is_the_clocks() -> None:
    clock = Clock()

    async def slowly() -> Result:
        clock.now += 0.25
        return allow()

    second = answering(allow())
    stages = (stage("a", timeout=timedelta(seconds=30)), stage("b", timeout=timedelta(seconds=30)))
    outcome = await run({"a": Caller(slowly), "b": second}, *stages, clock=clock)
    latencies = [e.latency for e in outcome.events if isinstance(e, Invoked)]
    assert latencies == [timedelta(milliseconds=250), timedelta(0)]
    assert second.deadlines == [timedelta(seconds=29.75)]


async def test_stage_without_a_caller_is_not_described() -> None:
    outcome = await run({})
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.BINDING_NOT_DESCRIBED


@pytest.mark.parametrize(
    ("caller", "code"),
    [
        (raising(StageFailed(FailureCode.INVALID_DECISION)), FailureCode.INVALID_DECISION),
        (raising(TimeoutError()), FailureCode.TIMEOUT),
        (raising(RuntimeError("text of the service")), FailureCode.SERVICE_ERROR),
        (raising(OSError()), FailureCode.SERVICE_ERROR),
        # gRPC's, when somebody closes the channel under a call: nobody cancelled us.
        (raising(asyncio.CancelledError()), FailureCode.SERVICE_ERROR),
        (answering(None), FailureCode.INVALID_DECISION),
        (answering("allow"), FailureCode.INVALID_DECISION),
    ],
)
async def test_whatever_a_caller_does_wrong_is_a_failure_of_its_stage(caller: Caller, code: FailureCode) -> None:
    denied = await run({"redact": caller})
    assert isinstance(denied, Denied)
    assert denied.code is code
    passed = await run({"trace": caller}, fail_open())
    assert isinstance(passed, Allowed)
    assert [e.code for e in passed.events if isinstance(e, Bypassed)] == [code]


async def test_failing_lookup_of_a_caller_is_a_failure_too() -> None:
    def caller_of(_: Stage) -> StageCaller:
        raise KeyError("gone")

    outcome = await run_chain((stage(),), request(), caller_of=caller_of, clock=Clock())
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.SERVICE_ERROR


async def test_caller_that_ignores_its_deadline_is_cut_off() -> None:
    outcome = await run({"redact": Caller(asyncio.Event().wait)}, stage(timeout=timedelta(milliseconds=10)))
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.TIMEOUT


async def test_answer_of_a_caller_that_swallowed_the_deadline_is_too_late() -> None:
    async def stubborn() -> Result:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return allow(b"late")
        raise AssertionError

    outcome = await run({"redact": Caller(stubborn)}, stage(timeout=timedelta(milliseconds=10)))
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.TIMEOUT


async def test_cancelling_the_request_cancels_the_stage_in_flight() -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> Result:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    running = asyncio.create_task(run({"trace": Caller(hang)}, fail_open(timeout=timedelta(seconds=30))))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled.is_set()
