"""Which hosts a chain looks at, and the longest a request may wait: compared with trying every subset."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.inspection import (
    Extent,
    Reach,
    WorstCase,
    guarding,
    guards,
    meets,
    reach,
    worst_case,
)
from supervisor_middleware.compiler.skipped import UNDECIDED
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.host_sets import Budget, find_selected
from supervisor_middleware.model.hosts import HostPattern, HostSelector, parse_pattern, parse_patterns
from supervisor_middleware.model.revision import Unresolved
from tests.builders import a_stage

V6 = HostPattern(("[2001:db8::1]",))
PATTERNS = ("**", "*.a.com", "**.a.com", "a.com", "b.a.com", "*.b.*", "api-*.a.com", "10.0.0.*")


def a_selector(*include: str, exclude: Sequence[str] = ()) -> HostSelector:
    return HostSelector(include=parse_patterns(include), exclude=parse_patterns(exclude))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("unresolved", "on_error", "expected"),
    [
        (None, OnError.FAIL_OPEN, True),
        (None, OnError.FAIL_CLOSED, True),
        (Unresolved.CONFLICTED, OnError.FAIL_CLOSED, True),
        (Unresolved.CONFLICTED, OnError.FAIL_OPEN, False),
    ],
)
def test_a_stage_guards_if_nothing_passes_it_unseen(
    *, unresolved: Unresolved | None, on_error: OnError, expected: bool
) -> None:
    stage = a_stage(unresolved=unresolved, on_error=on_error)
    assert guards(stage) is expected
    assert guarding((stage,)) == ((stage.selector,) if expected else ())


@pytest.mark.parametrize(
    ("endpoint", "selectors", "expected"),
    [
        ("api.a.com", [a_selector("*.a.com")], Reach(extent=Extent.ALL)),
        ("*.a.com", [a_selector("*.a.com", exclude=["old.a.com"])], Reach(extent=Extent.PART, missed="old.a.com")),
        (
            "*.a.com",
            [a_selector("*.a.com", exclude=["old.a.com"]), a_selector("old.a.com")],
            Reach(extent=Extent.ALL),
        ),
        ("b.org", [a_selector("*.a.com")], Reach(extent=Extent.NONE, missed="b.org")),
        ("b.org", [], Reach(extent=Extent.NONE, missed="b.org")),
    ],
)
def test_reach_says_how_much_and_names_a_host_that_is_missed(
    endpoint: str, selectors: list[HostSelector], expected: Reach
) -> None:
    assert reach(selectors, parse_pattern(endpoint), budget=Budget()) == expected
    assert expected.is_whole is (expected.extent is Extent.ALL)


def test_an_address_literal_is_matched_as_it_is() -> None:
    assert reach([a_selector("**")], V6, budget=Budget()) == Reach(extent=Extent.ALL)
    assert reach([a_selector("**.com")], V6, budget=Budget()) == Reach(extent=Extent.NONE, missed=str(V6))
    assert meets(a_selector("**"), [V6], budget=Budget())
    assert not meets(a_selector("*.com"), [V6, parse_pattern("a.org")], budget=Budget())
    assert meets(a_selector("*.com"), [V6, parse_pattern("a.com")], budget=Budget())


def test_what_cannot_be_decided_counts_as_the_worse_case() -> None:
    hard = a_selector("**.a.*.*.*")
    assert reach([hard], parse_pattern("**.b.*.*"), budget=Budget(1)) == Reach(
        extent=Extent.UNDECIDED, missed=UNDECIDED
    )
    assert meets(hard, [parse_pattern("**.b.*")], budget=Budget(1))
    stages = (a_stage("a", include=["**.a.*"]), a_stage("b", include=["**.b.*"]))
    assert worst_case(stages, budget=Budget(1)) == WorstCase(time=seconds(1), host=UNDECIDED)


def test_the_longest_wait_is_of_stages_that_meet_in_one_host() -> None:
    stages = (
        a_stage("a", include=["*.a.com"], timeout=seconds(3)),
        a_stage("b", include=["b.com"], timeout=seconds(4)),
        a_stage("c", include=["*.com", "api.a.com"], timeout=seconds(2)),
        a_stage("gone", include=["**"], timeout=seconds(9), unresolved=Unresolved.REGISTRATION_MISSING),
    )
    assert worst_case(stages) == WorstCase(time=seconds(6), host="b.com")


def test_nobody_waits_where_nobody_is_asked() -> None:
    assert worst_case(()) == WorstCase()
    assert worst_case((a_stage(include=["a.com"], exclude=["a.com"]),)) == WorstCase()


def test_no_wait_is_longer_than_the_chain_may_take() -> None:
    stages = [a_stage(f"s{n}", include=["a.com"], timeout=seconds(20 + n)) for n in range(3)]
    assert worst_case(stages) == WorstCase(time=seconds(30), host="a.com")


@given(st.lists(st.tuples(st.sampled_from(PATTERNS), st.integers(1, 9)), max_size=6))
def test_the_longest_wait_is_the_longest_of_all_subsets(chosen: list[tuple[str, int]]) -> None:
    stages = [a_stage(str(n), include=[p], timeout=seconds(t)) for n, (p, t) in enumerate(chosen)]
    longest = max(
        sum((s.timeout for s in subset), seconds(0))
        for size in range(len(stages) + 1)
        for subset in combinations(stages, size)
        if not subset or find_selected(inside=[[s.selector] for s in subset]) is not None
    )
    found = worst_case(stages)
    assert found.time == min(longest, seconds(30))
    if found.host is not None:
        assert sum((s.timeout for s in stages if s.selector.selects(found.host)), seconds(0)) >= found.time
