"""The drills' judge: whoever breaks a rule is caught. Without this nobody knows what a drill that passes is worth."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.drills.accounting import Arrived, Record, Sent, Shown, Witnesses, account

GOOD = Sent(number=1, is_forbidden=False, began=1.0, ended=2.0, status=200, marks=("7", "7"))
DENIED = Sent(number=5, is_forbidden=True, began=1.0, ended=2.0, status=403, error="middleware_denied")
FIRST = Shown(number=1, request_id="a", stage="first", mark="7")
SECOND = replace(FIRST, stage="second")
ARRIVED = Arrived(number=1, marks=("7", "7"))


def decision(stage: str, *, disposition: str = "Allowed", failed: bool = False) -> Record:
    unmapped = {"request_id": "a", "middleware": stage, "failed": failed}
    return {"class_uid": 4002, "unmapped": unmapped, "disposition": disposition, "message": stage}


AUDITED = (decision("first"), decision("second"))
ALL = Witnesses(
    sent=(GOOD, DENIED), shown=(FIRST, SECOND), arrived=(ARRIVED,), audited=AUDITED, published=frozenset({"7"})
)


def test_one_generation_and_one_refusal_are_all_well() -> None:
    tally = account(ALL)
    assert tally.problems == ()
    assert (dict(tally.allowed), dict(tally.refused), tally.unanswered) == ({"7": 1}, {"middleware_denied": 1}, 0)


def _breaches() -> Iterator[tuple[str, Witnesses]]:
    yield "marked", replace(ALL, arrived=(replace(ARRIVED, marks=("7", "8")),))
    yield "marked", replace(ALL, arrived=(replace(ARRIVED, marks=()),))
    yield "nobody published", replace(ALL, published=frozenset({"8"}))
    yield "was shown", replace(ALL, shown=(FIRST,))
    yield "was shown", replace(ALL, shown=())
    yield "mixed generation", replace(ALL, shown=(FIRST, replace(SECOND, mark="8")))
    yield "evaluated twice", replace(ALL, shown=(FIRST, SECOND, SECOND))
    yield "audit file", replace(ALL, audited=AUDITED[:1])
    yield "audit file", replace(ALL, audited=(AUDITED[0], decision("second", disposition="Blocked")))
    yield "bypassed", replace(ALL, audited=(AUDITED[0], decision("second", failed=True)))
    yield "2 times", replace(ALL, arrived=(ARRIVED, ARRIVED))
    yield "forbidden and reached", replace(ALL, arrived=(ARRIVED, replace(ARRIVED, number=5)))
    yield "was refused", replace(ALL, sent=(replace(GOOD, status=403, error="middleware_failed"), DENIED))
    yield "the upstream saw", replace(ALL, arrived=())
    later = replace(GOOD, number=2, began=3.0, ended=4.0, marks=("6", "6"))
    yield "after 7 was served", replace(ALL, sent=(GOOD, later))


@pytest.mark.parametrize(("words", "seen"), list(_breaches()))
def test_a_breach_is_named(words: str, seen: Witnesses) -> None:
    assert any(words in problem for problem in account(seen).problems), account(seen).problems


def test_a_finding_of_a_bypass_is_a_breach() -> None:
    finding = {"class_uid": 2004, "is_alert": True, "disposition": "Allowed", "message": "bypassed: first"}
    assert account(replace(ALL, audited=(*AUDITED, finding))).problems


def test_another_life_of_a_supervisor_may_begin_with_what_was_saved_before() -> None:
    later = replace(GOOD, number=2, began=3.0, ended=4.0, marks=("6", "6"), process=1)
    problems = account(replace(ALL, sent=(GOOD, later), published=frozenset({"6", "7"}))).problems
    assert not any("was served" in problem for problem in problems)
