"""Asking in parallel under one deadline."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.compiler.registration import draft_registration
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.registration import Connection, Registration
from supervisor_middleware.model.verdict import (
    Accepted,
    Described,
    Description,
    Outage,
    Rejected,
    Unreachable,
    Verdict,
)
from supervisor_middleware.registry.inquiry import RECONCILING, REVIEWING, Turns, ask_all, describe_all
from tests.builders import (
    REGEX,
    a_connection,
    a_manifest,
    a_policy,
    a_registration,
    an_accepted_registration,
    an_entry_spec,
    some_settings,
)
from tests.waiting import eventually


class FakeServices:
    """Answers after `delay`; counts how many calls were under way at once."""

    def __init__(self, *, delay: float = 0.0, verdict: Verdict | None = None) -> None:
        self.delay = delay
        self.verdict = verdict or Accepted()
        self.asked: list[timedelta] = []
        self.described: list[str] = []
        self.now = self.most = 0

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        self.described.append(registration_name)
        return Described(a_manifest())

    async def validate_config(
        self, connection: Connection, *, dialect: Dialect, binding: str, config: JsonObject, deadline: timedelta
    ) -> Verdict:
        self.asked.append(deadline)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.now -= 1
        return self.verdict


class FakeBuiltin:
    def __init__(self, judge: Callable[[], str | None]) -> None:
        self.judge = judge

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        return self.judge()


def some_questions(count: int = 1, *, middleware: str = "acme/redactor") -> tuple[Question, ...]:
    entries = {f"e{i}": an_entry_spec(middleware, order=i, config={"n": i}) for i in range(count)}
    draft, problems = draft_policy(a_policy(entries=entries))
    assert not problems
    return questions(draft, bind([an_accepted_registration()], some_settings().builtins))


async def test_every_question_gets_its_verdict() -> None:
    asked = some_questions(10)
    services = FakeServices(verdict=Rejected("no"))
    verdicts = await ask_all(asked, client=services, builtins={}, deadline=timedelta(seconds=8))
    assert verdicts == {q.key: Rejected("no") for q in asked}
    assert services.asked == [timedelta(milliseconds=500)] * 10


async def test_an_equal_question_is_asked_once() -> None:
    services = FakeServices()
    await ask_all(some_questions() * 3, client=services, builtins={}, deadline=timedelta(seconds=8))
    assert len(services.asked) == 1


async def test_one_review_leaves_a_service_to_others() -> None:
    services = FakeServices(delay=0.01)
    verdicts = await ask_all(some_questions(10), client=services, builtins={}, deadline=timedelta(seconds=8))
    assert services.most == 4
    assert set(verdicts.values()) == {Accepted()}


async def test_the_deadline_holds_and_the_late_are_unreachable() -> None:
    services = FakeServices(delay=60)
    began = time.monotonic()
    verdicts = await ask_all(some_questions(10), client=services, builtins={}, deadline=timedelta(seconds=0.05))
    assert time.monotonic() - began < 5
    assert set(verdicts.values()) == {Unreachable(Outage.DEADLINE_EXCEEDED)}
    assert services.now == 0


async def test_a_builtin_answers_in_process_and_its_reason_is_cut() -> None:
    asked = some_questions(middleware=REGEX)

    async def verdict_of(judge: Callable[[], str | None]) -> Verdict:
        answers = await ask_all(
            asked, client=FakeServices(), builtins={REGEX: FakeBuiltin(judge)}, deadline=timedelta(seconds=8)
        )
        return answers[asked[0].key]

    def broken() -> str | None:
        raise ZeroDivisionError

    assert await verdict_of(lambda: None) == Accepted()
    assert await verdict_of(lambda: "pattern:\n" + "x" * 500) == Rejected("pattern: " + "x" * 151)
    assert await verdict_of(broken) == Unreachable(Outage.CALL_FAILED)


async def test_a_builtin_nobody_carries_is_unreachable() -> None:
    asked = some_questions(middleware=REGEX)
    verdicts = await ask_all(asked, client=FakeServices(), builtins={}, deadline=timedelta(seconds=8))
    assert verdicts == {asked[0].key: Unreachable(Outage.NOT_IMPLEMENTED)}


async def test_no_question_needs_no_time() -> None:
    assert await ask_all([], client=FakeServices(), builtins={}, deadline=timedelta(seconds=8)) == {}


async def test_only_drafts_that_may_be_dialled_are_described() -> None:
    good, _ = draft_registration(a_registration("good"), bundles={}, settings=some_settings())
    bad, _ = draft_registration(a_registration("bad", grpcEndpoint="ftp://x"), bundles={}, settings=some_settings())
    services = FakeServices()
    assert await describe_all(services, [good, bad]) == {"uid-of-good": Described(a_manifest())}
    assert services.described == ["good"]


async def test_a_service_whose_queue_is_full_holds_back_nobody_who_asks_another() -> None:
    turns = Turns(at_once=1, waiting=1)
    slow, quick = FakeServices(delay=60), FakeServices()
    waiting = [asyncio.create_task(ask_one(n, client=slow, turns=turns)) for n in range(2)]
    await eventually(lambda: slow.asked)
    assert await ask_one(2, client=slow, turns=turns) == Unreachable(Outage.CROWDED)
    other = await ask_one(0, client=quick, turns=turns, endpoint="https://other.svc:443")
    assert other == Accepted()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await ask_one(3, client=quick, turns=turns) == Accepted(), "nothing is left of those who gave up"


async def test_waiting_for_a_turn_counts_against_the_reviews_deadline() -> None:
    turns = Turns(at_once=1)
    slow = FakeServices(delay=60)
    holder = asyncio.create_task(ask_one(0, client=slow, turns=turns))
    await eventually(lambda: slow.asked)
    late = await ask_one(1, client=slow, turns=turns, deadline=timedelta(seconds=0.05))
    assert late == Unreachable(Outage.DEADLINE_EXCEEDED)
    assert len(slow.asked) == 1
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)


async def test_reviews_and_the_reconciler_have_turns_of_their_own_and_leave_one_for_describe() -> None:
    assert REVIEWING + RECONCILING < 8  # registry.client allows eight


async def ask_one(
    number: int,
    *,
    client: FakeServices,
    turns: Turns,
    endpoint: str = "",
    deadline: timedelta = timedelta(seconds=30),
) -> Verdict:
    question = some_questions(number + 1)[number]
    if endpoint:
        question = replace(question, bound=replace(question.bound, registration=an_elsewhere(endpoint)))
    answers = await ask_all([question], client=client, builtins={}, deadline=deadline, turns=turns)
    return answers[question.key]


def an_elsewhere(endpoint: str) -> Registration:
    return an_accepted_registration(connection=a_connection(endpoint))
