"""A simulated request ends as it ends at the proxy: every golden case is also put to the real conversation with Envoy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor_middleware.cli.offline.scopes import Scope
from supervisor_middleware.cli.offline.world import World, gathered
from supervisor_middleware.cli.options import offline_options
from supervisor_middleware.cli.simulate.answers import Answers
from supervisor_middleware.cli.simulate.cases import Case, read_cases
from supervisor_middleware.cli.simulate.command import scope_of
from supervisor_middleware.cli.simulate.trace import Clock, Trace, trace
from supervisor_middleware.model.generation import Generation, Stage
from supervisor_middleware.supervisor.exchange import Denied, Outcome, Request
from supervisor_middleware.supervisor.runner import run_chain
from tests.cli.goldens import GOLDEN
from tests.fakes.ext_proc_runtime import FakeRuntime
from tests.supervisor.ext_proc_caller import a_body, a_head, asked, refusal

FOLDER = GOLDEN / "simulate"
CASES, _ = read_cases((FOLDER / "good.cases.yaml").read_bytes(), name="good.cases.yaml")
BODY_WANTED = {2, 3}
APPEND = 0


@dataclass
class Replayed(FakeRuntime):
    """Serves a generation whose services answer as a case says."""

    answers: Answers | None = None
    clock: Clock | None = None

    async def evaluate(self, stages: tuple[Stage, ...], request: Request) -> Outcome:
        assert self.answers is not None
        assert self.clock is not None
        answers = self.answers
        return await run_chain(stages, request, caller_of=lambda stage: answers(stage)[0], clock=self.clock)


@pytest.fixture(scope="module")
def world() -> World:
    return gathered(offline_options([FOLDER / "policies.yaml"], manifests=None, allow_loopback=False))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec.name)
async def test_it_ends_as_at_the_proxy(case: Case, world: World) -> None:
    scope = scope_of(case.spec.sandbox, world.scopes)
    assert isinstance(scope, Scope)
    generation = scope.generation
    simulated = await in_simulation(case, generation)
    answer = await at_the_proxy(case, generation)
    if isinstance(simulated.outcome, Denied):
        status, body = refusal(answer)
        assert (status, body["error"]) == (403, simulated.outcome.cause.value)
        assert body["middleware"] == simulated.outcome.key
        assert body.get("reason_code", "") == simulated.outcome.reason_code
    else:
        assert simulated.upstream is not None
        headers, replaced = forwarded(answer, lines_of(case))
        assert sorted((h.name, h.value.encode("latin-1")) for h in simulated.upstream.headers) == sorted(headers)
        assert simulated.upstream.body == ((case.content or b"") if replaced is None else replaced)


async def in_simulation(case: Case, generation: Generation) -> Trace:
    clock = Clock()
    return await trace(
        case.spec.request,
        generation,
        content=case.content,
        sandbox="here",
        sandbox_id="team-a/coder",
        choose=Answers(case.spec.answers, generation, services=None, clock=clock),
        clock=clock,
    )


async def at_the_proxy(case: Case, generation: Generation) -> Any:
    clock = Clock()
    answers = Answers(case.spec.answers, generation, services=None, clock=clock)
    content, spec = case.content, case.spec.request
    method = spec.method or ("GET" if content is None else "POST")
    is_upgrade = "upgrade" in {name.lower() for name in spec.headers}
    head = a_head(
        *lines_of(case),
        host=spec.host.encode(),
        method=method.encode(),
        end=content is None and not is_upgrade and method != "CONNECT",
    )
    async with asked(Replayed(stages=generation.stages, answers=answers, clock=clock)) as it:
        call = it.stub.Process()
        await call.write(head)
        answer = await it.answer(call)
        if answer.mode_override.request_body_mode in BODY_WANTED:
            await call.write(a_body(content or b""))
            answer = await it.answer(call)
        await call.done_writing()
    return answer


def lines_of(case: Case) -> list[tuple[str, bytes]]:
    """The request's header lines as Envoy would have them."""
    lines = [
        (name.lower(), value.encode("latin-1"))
        for name, values in case.spec.request.headers.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    if case.content is not None and "transfer-encoding" not in dict(lines):
        lines.append(("content-length", str(len(case.content)).encode()))
    return lines


def forwarded(answer: Any, lines: Sequence[tuple[str, bytes]]) -> tuple[list[tuple[str, bytes]], bytes | None]:
    """What Envoy sends on: it removes first, then sets; and the new body, if there is one."""
    common = getattr(answer, answer.WhichOneof("response")).response
    mutation = common.header_mutation
    kept = [line for line in lines if line[0] not in mutation.remove_headers]
    for option in mutation.set_headers:
        name = option.header.key
        if option.append_action != APPEND:
            kept = [line for line in kept if line[0] != name]
        kept.append((name, option.header.raw_value))
    return kept, common.body_mutation.body if common.HasField("body_mutation") else None


def test_there_are_cases() -> None:
    assert CASES
