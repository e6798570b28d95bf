"""The chain, run: asks each stage the fold names and feeds its answer back. The thin async shell around `chain`.

Owns the promise that asking cannot hurt: whatever a caller does, the outcome is an answer or a stage failure, within
the deadline. Decides nothing about the request and knows no transport. Called by the proxy edge, once a request;
cancelling that call cancels the stage in flight and goes up.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeAlias

from supervisor_middleware.model.evaluation import Evaluation, FailureCode, Result, StageFailed
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.supervisor.chain import Answer, Ask, begin, resume
from supervisor_middleware.supervisor.exchange import Outcome, Request


class StageCaller(Protocol):
    """One way to put an evaluation to a stage."""

    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        """The stage's result, asked for once.

        Raises:
            StageFailed: there is none.
        """


CallerOf: TypeAlias = Callable[[Stage], StageCaller | None]
"""Who asks this stage; None: its binding is not there (RFC 0009: the stage follows its `on_error`)."""


async def run_chain(
    stages: tuple[Stage, ...], request: Request, *, caller_of: CallerOf, clock: Callable[[], float]
) -> Outcome:
    """What becomes of `request`. `clock` is monotonic, in seconds: latencies and the chain's deadline come of it."""
    step = begin(stages, request)
    while isinstance(step, Ask):
        asked_at = clock()
        answer = await _answer(step, caller_of)
        step = resume(step, answer, latency=timedelta(seconds=clock() - asked_at))
    return step


async def _answer(ask: Ask, caller_of: CallerOf) -> Answer:
    try:
        caller = caller_of(ask.stage)
        if caller is None:
            return FailureCode.BINDING_NOT_DESCRIBED
        return await _within_deadline(caller, ask)
    except StageFailed as failed:
        return failed.code
    except TimeoutError:
        return FailureCode.TIMEOUT
    except asyncio.CancelledError:
        # gRPC raises this too, when a channel closes under a call: only a cancellation of *this* task goes up.
        if _is_being_cancelled():
            raise
        return FailureCode.SERVICE_ERROR
    except Exception:  # noqa: BLE001 - whatever a caller does wrong is its stage's failure, never a pass or a crash
        return FailureCode.SERVICE_ERROR


async def _within_deadline(caller: StageCaller, ask: Ask) -> Answer:
    # The caller keeps the deadline itself; this is the backstop for one that does not.
    async with asyncio.timeout(ask.deadline.total_seconds()) as backstop:
        answer: object = await caller.evaluate(ask.stage, ask.evaluation, deadline=ask.deadline)
    if backstop.expired():
        return FailureCode.TIMEOUT
    return answer if isinstance(answer, Result) else FailureCode.INVALID_DECISION


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
