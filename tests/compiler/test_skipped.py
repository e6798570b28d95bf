"""`tls: skip` and selectors: exact over every host, with an example; what cannot be decided counts as an overlap."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler import skipped
from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.compiler.skipped import (
    MAX_SHOWN,
    UNDECIDED,
    Overlaps,
    for_example,
    pattern_of,
    selector_of,
)
from supervisor_middleware.model.host_sets import SEARCH_STEPS, Budget, find_selected
from supervisor_middleware.model.hosts import HostSelector
from supervisor_middleware.model.limits import MAX_SKIPS
from supervisor_middleware.model.revision import Skip
from supervisor_middleware.model.violation import Reason
from tests.builders import REGEX, a_builtin, a_policy, an_entry_spec, some_settings
from tests.compiler.world import EVERYONE_AGREES

BINDINGS = bind((), [a_builtin()])
INTRICATE = tuple(f"**.{a}*.*.*{b}.*.*{a}*.*.**.x" for a, b in ("ab", "cd", "ef", "gh"))
ALL_BUT = ("*.**.x", *(f"**.{a}*.**.{b}*.**.x" for a in "ab" for b in "abcdefg"))


def skips(*hosts: str) -> tuple[Skip, ...]:
    return tuple(Skip(path=f"spec.networkPolicies.p.endpoints[{n}]", host=host) for n, host in enumerate(hosts))


def hit(include: list[str], exclude: list[str], *hosts: str) -> dict[str, str]:
    found = Overlaps().hits(selector_of(tuple(include), tuple(exclude)), skips(*hosts))
    return {skip.host: host for skip, host in found}


@pytest.mark.parametrize(
    ("include", "exclude", "host", "example"),
    [
        (["**.example.com"], [], "db.example.com", "db.example.com"),
        (["**.example.com"], ["db.example.com"], "db.example.com", None),
        (["**.example.com"], ["*.example.com"], "*.example.com", None),
        (["**.example.com"], ["*.example.com"], "**.example.com", "a.a.example.com"),
        (["*.a.com"], [], "b.*.com", "b.a.com"),
        (["db-*.x.test"], [], "*-db.x.test", "db-db.x.test"),
        (["**"], [], "[2001:db8::1]", "[2001:db8::1]"),
        (["**.test"], [], "[2001:db8::1]", None),
        (["**"], ["*"], "[2001:db8::1]", None),
        (["10.*.*.*"], [], "10.1.2.3", "10.1.2.3"),
        (["*"], [], "**", "a"),
    ],
)
def test_an_overlap_is_exact_and_shown(
    include: list[str], exclude: list[str], host: str, example: str | None
) -> None:
    assert hit(include, exclude, host) == ({} if example is None else {host: example})


def test_of_many_overlaps_the_first_few_are_told() -> None:
    assert len(hit(["**"], [], *(f"h{n}.test" for n in range(20)))) == MAX_SHOWN


def test_what_cannot_be_decided_is_an_overlap_and_the_last_that_is_told() -> None:
    selector = selector_of(INTRICATE, ALL_BUT)
    found = list(Overlaps(budget=Budget(1000)).hits(selector, skips("**.x", "*.*.*.*.*.*.x", "[::1]")))
    assert [host for _, host in found] == [UNDECIDED]
    assert for_example(UNDECIDED) == "; use fewer wildcards, so that it can be decided"
    assert for_example("a.test") == ", for example a.test"


def test_many_that_cannot_be_decided_at_once_are_asked_about_one_by_one() -> None:
    selector = selector_of(INTRICATE, ALL_BUT)
    found = list(Overlaps(budget=Budget(1000)).hits(selector, skips("a.test", "**.x")))
    assert [(skip.host, host) for skip, host in found] == [("**.x", UNDECIDED)]


def test_an_answer_counts_the_same_whether_it_is_found_or_remembered() -> None:
    selector, endpoints = selector_of(("*.counted-once.test", "a*b.*.test"), ("x*.*.test",)), skips("**.test", "b.*")
    first, second = Overlaps(), Overlaps()
    assert list(first.hits(selector, endpoints)) == list(second.hits(selector, endpoints))
    assert first.budget.left == second.budget.left < SEARCH_STEPS


def test_what_is_dear_to_find_out_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = list[None]()

    def find(**question: Any) -> str | None:
        searches.append(None)
        return find_selected(**question)

    monkeypatch.setattr(skipped, "find_selected", find)
    selector = selector_of(INTRICATE, (*ALL_BUT, "**.found-out-once.x"))
    found = [list(Overlaps().hits(selector, skips("**.x"))) for _ in range(20)]
    assert found == [[(skips("**.x")[0], UNDECIDED)]] * 20
    assert len(searches) == 1


def test_where_the_budget_is_gone_nothing_is_searched_but_what_is_spelled_out_is_told() -> None:
    selector = selector_of(("*.never-searched.test", "**"), ("**.never-asked",))

    def told(host: str) -> list[str]:
        return [found for _, found in Overlaps(budget=Budget(-1)).hits(selector, skips(host))]

    assert told("a.never-searched.test") == ["a.never-searched.test"]
    assert told("[2001:db8::1]") == ["[2001:db8::1]"]
    assert told("a.never-asked") == []
    assert told("a*.never-searched.test") == [UNDECIDED]


def test_a_policy_too_intricate_to_be_compared_is_refused_with_a_way_out() -> None:
    spec = {
        "sandboxSelector": {},
        "networkMiddlewares": {
            "wild": {
                **an_entry_spec(REGEX),
                "endpoints": {"include": list(INTRICATE), "exclude": list(ALL_BUT)},
            }
        },
        "networkPolicies": {"p": {"endpoints": [{"host": "**.x", "tls": "skip"}]}},
    }
    found = compile_policy(
        a_policy(spec=spec), bindings=BINDINGS, verdicts=EVERYONE_AGREES, settings=some_settings()
    ).report.violations
    assert [v.reason for v in found] == [Reason.SELECTS_SKIPPED_HOST]
    assert "use fewer wildcards" in found[0].message


@pytest.mark.parametrize("count", [MAX_SKIPS, MAX_SKIPS + 1])
def test_as_many_endpoints_as_are_allowed_are_compared_and_more_are_refused(count: int) -> None:
    spec = {
        "sandboxSelector": {},
        "networkMiddlewares": {f"k{n}": an_entry_spec(REGEX, include=[f"**.{n}.test"], order=n) for n in range(10)},
        "networkPolicies": {
            f"p{m}": {"endpoints": [{"host": f"h{n}.skip.test", "tls": "skip"} for n in range(m, count, 2)]}
            for m in range(2)
        },
    }
    found = compile_policy(
        a_policy(spec=spec), bindings=BINDINGS, verdicts=EVERYONE_AGREES, settings=some_settings()
    ).report.violations
    assert [v.reason for v in found] == ([Reason.TOO_MANY] if count > MAX_SKIPS else [])


labels = st.sampled_from(["a", "b", "*", "**", "a*"])
patterns = st.lists(labels, min_size=1, max_size=3).map(".".join)


@given(st.lists(patterns, min_size=1, max_size=3), st.lists(patterns, max_size=2), st.lists(patterns, max_size=4))
def test_hits_are_those_of_one_question_each(include: list[str], exclude: list[str], hosts: list[str]) -> None:
    selector = selector_of(tuple(include), tuple(exclude))
    asked = {h: [[selector], [HostSelector(include=(pattern_of(h),))]] for h in hosts}
    expected = {h: found for h, inside in asked.items() if (found := find_selected(inside=inside)) is not None}
    assert hit(include, exclude, *hosts) == expected
