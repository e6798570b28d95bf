"""A runtime for the proxy edge that runs whatever it is told, and remembers what it was asked."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from supervisor_middleware.model.evaluation import FailureCode, OnError
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.hosts import HostSelector, parse_patterns
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.supervisor.exchange import Allowed, Outcome, Overflowed, Request, Unread
from supervisor_middleware.supervisor.unseen import pass_unseen, refuse_overflowed

EXAMPLE = "api.example.com"


def a_stage(
    key: str = "guard",
    *,
    include: tuple[str, ...] = (EXAMPLE,),
    on_error: OnError = OnError.FAIL_CLOSED,
    max_body_bytes: int = MAX_BODY_BYTES,
    unresolved: Unresolved | None = None,
) -> Stage:
    return Stage(
        key=key,
        label=key,
        policy="team/policy",
        binding="acme/guard",
        service="acme",
        config={},
        on_error=on_error,
        selector=HostSelector(include=parse_patterns(include)),
        max_body_bytes=max_body_bytes,
        timeout=timedelta(seconds=1),
        unresolved=unresolved,
    )


def allow(_: Request) -> Outcome:
    return Allowed()


@dataclass
class FakeRuntime:
    """Implements both `Runtime` and `Prepared`: one generation of `stages`, whose chain is the function `answer`.

    Bodies that no stage can be shown follow the chain's own rules. `stages` None: never configured.
    """

    stages: tuple[Stage, ...] | None = (a_stage(),)
    answer: Callable[[Request], Outcome] = allow
    requests: list[Request] = field(default_factory=list)
    pinned: int = 0
    gate: asyncio.Event | None = None
    """Set: an evaluation waits for it."""
    cancelled: int = 0

    def pin(self) -> AbstractContextManager["FakeRuntime"] | None:
        return None if self.stages is None else self._pinned()

    def chain_for(self, host: str) -> tuple[Stage, ...]:
        return tuple(s for s in self.stages or () if s.selector.selects(host))

    async def evaluate(self, stages: tuple[Stage, ...], request: Request) -> Outcome:
        self.requests.append(request)
        await self._wait()
        match request.body:
            case Unread():
                code = FailureCode.REQUEST_BODY_OVER_CAPACITY
                return pass_unseen(stages, request.context, request.target, code_of=lambda _: code)
            case Overflowed():
                return refuse_overflowed(stages, request.context, request.target)
            case _:
                return self.answer(request)

    async def _wait(self) -> None:
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @contextmanager
    def _pinned(self) -> Iterator["FakeRuntime"]:
        self.pinned += 1
        try:
            yield self
        finally:
            self.pinned -= 1
