"""Sets of hosts: the published vectors, the laws of sets, and agreement with trying every host of a small alphabet."""

from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model import host_sets
from supervisor_middleware.model.host_automata import NAMES
from supervisor_middleware.model.host_questions import Question
from supervisor_middleware.model.host_sets import (
    SEARCH_STEPS,
    Budget,
    TooComplex,
    find_host,
    find_selected,
    lost_host,
)
from supervisor_middleware.model.hosts import HostPattern, HostSelector, normalize_host, parse_pattern, parse_patterns

VECTORS = yaml.safe_load((Path(__file__).parents[1] / "golden" / "hosts.yaml").read_text())

# The characters of the patterns below and one for all others, which no number has; all names of so many characters.
LABELS = [*"ab1c", *map("".join, product("ab1c", repeat=2))]
SHORT_NAMES = sorted(
    (
        name
        for count in (1, 2, 3)
        for name in map(".".join, product(LABELS, repeat=count))
        if len(name) <= 5 and not name.rpartition(".")[2].isdecimal()
    ),
    key=len,
)
ADDRESSES = [".".join(octets) for octets in product(["1", "11"], repeat=4)]
HOSTS = [*SHORT_NAMES, *ADDRESSES, "[::1]"]

labels = st.one_of(
    st.sampled_from(["*", "**"]),
    st.text("ab1*", min_size=1, max_size=4).filter(lambda label: "**" not in label),
)
patterns = st.lists(labels, min_size=1, max_size=4).map(lambda found: HostPattern(tuple(found)))
groups = st.lists(patterns, min_size=1, max_size=3).map(tuple)
selectors = st.builds(HostSelector, include=groups, exclude=st.lists(patterns, max_size=2).map(tuple))


def a_selector(include: Sequence[str] = ("**",), exclude: Sequence[str] = ()) -> HostSelector:
    return HostSelector(include=parse_patterns(include), exclude=parse_patterns(exclude))


def overlap(one: HostPattern, other: HostPattern, *, budget: Budget | None = None) -> str | None:
    return find_host(inside=[[one], [other]], budget=budget)


def selector_overlap(selector: HostSelector, pattern: HostPattern, *, budget: Budget | None = None) -> str | None:
    return find_selected(inside=[[selector], [HostSelector(include=(pattern,))]], budget=budget)


def example_of(selector: HostSelector, *, budget: Budget | None = None) -> str | None:
    return find_selected(inside=[[selector]], budget=budget)


def is_selected(host: str, inside: Sequence[Collection[HostSelector]], outside: Collection[HostSelector]) -> bool:
    return all(any(s.selects(host) for s in group) for group in inside) and not any(s.selects(host) for s in outside)


@pytest.mark.parametrize("vector", VECTORS["overlaps"], ids=lambda v: " ".join(v["patterns"]))
def test_published_overlaps_hold(vector: dict[str, Any]) -> None:
    one, other = parse_patterns(vector["patterns"])
    assert overlap(one, other) == overlap(other, one) == vector["host"]
    if vector["host"] is not None:
        assert normalize_host(vector["host"]) == vector["host"]
        assert one.matches(vector["host"])
        assert other.matches(vector["host"])


@pytest.mark.parametrize("vector", VECTORS["selections"], ids=str)
def test_published_selections_hold(vector: dict[str, Any]) -> None:
    selector, pattern = a_selector(vector["include"], vector["exclude"]), parse_pattern(vector["pattern"])
    assert selector_overlap(selector, pattern) == vector["host"]
    if vector["host"] is not None:
        assert selector.selects(vector["host"])
        assert pattern.matches(vector["host"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(selectors, min_size=1, max_size=2), min_size=1, max_size=2), st.lists(selectors, max_size=2))
def test_the_search_agrees_with_trying_every_host(
    inside: list[list[HostSelector]], outside: list[HostSelector]
) -> None:
    found = find_selected(inside=inside, outside=outside)
    tried = next((host for host in HOSTS if is_selected(host, inside, outside)), None)
    if found is None:
        assert tried is None
        return
    assert normalize_host(found) == found
    assert is_selected(found, inside, outside)


@settings(deadline=None)
@given(patterns, patterns)
def test_overlap_is_symmetric_and_every_pattern_overlaps_itself(one: HostPattern, other: HostPattern) -> None:
    assert overlap(one, other) == overlap(other, one)
    assert overlap(one, one) == example_of(HostSelector(include=(one,)))


@settings(deadline=None)
@given(groups, groups, groups, patterns)
def test_more_inside_never_takes_hosts_and_more_outside_never_gives_any(
    one: tuple[HostPattern, ...], other: tuple[HostPattern, ...], outside: tuple[HostPattern, ...], more: HostPattern
) -> None:
    found = find_host(inside=[one, other], outside=outside)
    if found is None:
        assert find_host(inside=[one, other], outside=[*outside, more]) is None
        assert find_host(inside=[one, other, [more]], outside=outside) is None
    else:
        assert find_host(inside=[[*one, more], other], outside=outside) is not None
        assert find_host(inside=[one], outside=outside) is not None
        assert find_host(inside=[one, other], outside=outside[1:]) is not None


@settings(deadline=None)
@given(groups, groups)
def test_what_one_set_has_is_either_in_the_other_or_not(
    one: tuple[HostPattern, ...], other: tuple[HostPattern, ...]
) -> None:
    common, lacking = find_host(inside=[one, other]), find_host(inside=[one], outside=other)
    assert (common is None and lacking is None) == (find_host(inside=[one]) is None)
    assert find_host(inside=[one], outside=one) is None


@settings(deadline=None)
@given(st.lists(selectors, max_size=3), st.lists(selectors, max_size=3))
def test_a_lost_host_was_selected_and_is_no_more(before: list[HostSelector], after: list[HostSelector]) -> None:
    lost = lost_host(before=before, after=after)
    if lost is None:
        assert not any(is_selected(host, [before], after) for host in HOSTS)
    else:
        assert is_selected(lost, [before], after)
    assert lost_host(before=before, after=[*after, *before]) is None


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ([a_selector(["*.a.com"])], [a_selector(["**.a.com"])], None),
        ([a_selector(["**.a.com"])], [a_selector(["*.a.com"])], "a.a.a.com"),
        ([a_selector()], [a_selector(exclude=["*.test"]), a_selector(["b.test"])], "a.test"),
        ([a_selector()], [a_selector(exclude=["*.test"]), a_selector(["**.test"])], None),
        ([a_selector()], [a_selector(exclude=["*"]), a_selector(exclude=["**.a"])], None),
        ([a_selector()], [a_selector(exclude=["*"]), a_selector(exclude=["a"])], "a"),
        ([a_selector()], [a_selector(exclude=["b*"]), a_selector(exclude=["*c"])], "bc"),
        ([a_selector(exclude=["b"])], [a_selector(exclude=["b", "c*"])], "c"),
        ([a_selector()], [a_selector(exclude=["**.a*"]), a_selector(["**.a*"], ["**.*b"])], "a.ab"),
        ([], [a_selector()], None),
        ([a_selector(["*.test"])], [], "a.test"),
    ],
)
def test_hosts_that_lose_inspection_are_found(
    before: list[HostSelector], after: list[HostSelector], lost: str | None
) -> None:
    assert lost_host(before=before, after=after) == lost


def test_excludes_that_cover_all_includes_leave_no_host() -> None:
    assert example_of(a_selector(["*.a.com", "b.com"], ["**.a.com", "b.*"])) is None
    assert example_of(a_selector(["*.a.com", "b.com"], ["**.a.com", "c.*"])) == "b.com"


def test_no_group_is_every_host_and_an_empty_group_none() -> None:
    assert find_host(inside=[]) == "a"
    assert find_host(inside=[], outside=parse_patterns(["**"])) is None
    assert find_host(inside=[parse_patterns(["**"]), []]) is None


def test_an_address_is_found_where_no_name_is_left() -> None:
    inside = [parse_patterns(["*.*.*.7", "a.29"])]
    first_octets = [f"{digit}.**" for digit in range(10)]
    assert find_host(inside=inside) == "0.0.0.7"
    assert find_host(inside=inside, outside=parse_patterns(first_octets)) == "10.0.0.7"
    assert find_host(inside=inside, outside=parse_patterns([*first_octets, "*.0.**"])) == "10.1.0.7"
    assert find_host(inside=inside, outside=parse_patterns(["*.*.**.7"])) is None


def test_an_ipv6_literal_is_found_where_no_name_and_no_address_is_left() -> None:
    names = parse_patterns([f"*{character}" for character in "abcdefghijklmnopqrstuvwxyz_-0123456789"])
    assert find_host(inside=[parse_patterns(["**"])], outside=[*names, parse_pattern("*.**")]) == "[::1]"
    assert find_host(inside=[parse_patterns(["**"])], outside=parse_patterns(["*", "*.**"])) is None


def test_every_octet_is_an_octet() -> None:
    for octet in range(256):
        address = f"1.2.3.{octet}"
        assert overlap(parse_pattern("1.*.*.*"), parse_pattern(f"*.2.3.{octet}")) == address
    for number in ("256", "260", "300", "999", "00", "01", "007", "1000"):
        assert overlap(parse_pattern("1.*.*.*"), parse_pattern(f"*.2.3.{number}")) is None


@pytest.mark.parametrize(
    ("pattern", "host"),
    [
        ("0*", "0a"),
        ("0x*", "0xg"),
        ("0xa*b", "0xagb"),
        ("*0xab", "a0xab"),
        ("*1", "a1"),
        ("*x0", "x0"),
        ("*0x", "a0x"),
        ("*f", "f"),
        ("x*", "x"),
        ("0x*.a", "0x.a"),
        ("1*.a", "1.a"),
    ],
)
def test_a_last_label_is_no_number(pattern: str, host: str) -> None:
    assert example_of(a_selector([pattern])) == host
    assert normalize_host(host) == host


def test_hosts_of_253_characters_are_the_longest() -> None:
    full = "a" * 63
    assert overlap(parse_pattern(f"{full}.{full}.{full}.*"), parse_pattern("*.*.*." + "b" * 61)) is not None
    assert overlap(parse_pattern(f"{full}.{full}.{full}.*"), parse_pattern("*.*.*." + "b" * 62)) is None
    assert overlap(parse_pattern(f"{full}.{full}.{full}.**"), parse_pattern("**.c." + "b" * 59)) is not None
    assert overlap(parse_pattern(f"{full}.{full}.{full}.**"), parse_pattern("**.c." + "b" * 60)) is None


@settings(deadline=None)
@given(st.lists(st.lists(selectors, min_size=1, max_size=2), min_size=1, max_size=2), st.lists(selectors, max_size=2))
def test_within_smaller_limits_the_search_finds_exactly_what_there_is(
    inside: list[list[HostSelector]], outside: list[HostSelector]
) -> None:
    question = Question(inside=tuple(map(tuple, inside)), outside=tuple(outside))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sets, "MAX_LABEL_LENGTH", 2)
        patch.setattr(host_sets, "MAX_HOST_LENGTH", 5)
        found = host_sets._Search.of(question, Budget()).first(NAMES)
    tried = next(filter(question.holds_for, SHORT_NAMES), None)
    assert (found and len(found)) == (tried and len(tried))
    assert found is None or question.holds_for(found)


def test_hosts_read_well() -> None:
    assert example_of(a_selector(["db-*.example.com"])) == "db-a.example.com"
    assert example_of(a_selector(["*-api.example.com"])) == "a-api.example.com"
    assert example_of(a_selector(["db-*.example.com"], ["db-*a.**"])) == "db-.example.com"
    assert example_of(a_selector(["10.0.0.*"])) == "10.0.0.0"
    assert example_of(a_selector(["1.*.*.com"])) == "1.a.a.com"


def test_what_is_spelled_out_needs_no_steps() -> None:
    nothing = Budget(0)
    assert overlap(parse_pattern("a.example.com"), parse_pattern("**.example.com"), budget=nothing) == "a.example.com"
    assert overlap(parse_pattern("*.example.com"), parse_pattern("*.example.net"), budget=nothing) is None
    assert lost_host(before=[a_selector()], after=[a_selector()], budget=nothing) is None
    hosts = a_selector(["1.2.3.4", "b.test", "1.2.3.400", "a.a.test", "a.test"])
    assert example_of(hosts, budget=nothing) == "a.test"
    assert selector_overlap(hosts, parse_pattern("*.*.*.*"), budget=nothing) == "1.2.3.4"


def test_a_budget_is_shared_and_then_spent() -> None:
    one, other, budget = parse_pattern("*.a.com"), parse_pattern("b.*.com"), Budget()
    overlap(one, other, budget=budget)
    each = SEARCH_STEPS - budget.left
    assert 0 < each < 200
    budget = Budget(2 * each)
    assert overlap(one, other, budget=budget) == overlap(one, other, budget=budget) == "b.a.com"
    for _ in range(2):
        with pytest.raises(TooComplex, match="use fewer wildcards"):
            overlap(one, other, budget=budget)


def test_hostile_patterns_are_given_up() -> None:
    everywhere = [parse_patterns([f"*{character}*.**"]) for character in "abcdefghijklmnopqrstuvwxyz012345"]
    with pytest.raises(InvalidInput, match="too complex"):
        find_host(inside=everywhere, outside=parse_patterns(["**.x"]))


def test_many_excludes_that_a_host_may_contain_are_decided() -> None:
    selector = a_selector(["*.example.com"], [f"*part{number}*.example.com" for number in range(30)])
    assert selector_overlap(selector, parse_pattern("*part3*.example.com")) is None
    assert selector_overlap(selector, parse_pattern("*part3*.**")) is None
    assert selector_overlap(selector, parse_pattern("*part*.example.com")) == "part.example.com"


def test_a_change_beside_many_excludes_is_decided() -> None:
    parts = [f"*part{number}*.**" for number in range(30)]
    before, wider = a_selector(["**.example.com"], parts), a_selector(["**.com"], parts)
    assert lost_host(before=[before], after=[wider]) is None
    assert lost_host(before=[before], after=[a_selector(["**.example.com"], parts[:-1])]) is None
    assert lost_host(before=[wider], after=[before]) == "a.com"
    assert lost_host(before=[before], after=[a_selector(["**.com"], [*parts, "*new*.**"])]) == "new.example.com"


def test_many_patterns_with_few_wildcards_are_decided() -> None:
    selector = a_selector(
        [f"*.svc{number}.example.com" for number in range(32)], [f"db{number}.**" for number in range(32)]
    )
    assert selector_overlap(selector, parse_pattern("db1.*.example.com")) is None
    assert selector_overlap(selector, parse_pattern("db32.*.example.com")) == "db32.svc0.example.com"


LITERAL, ANOTHER = HostPattern(("[::1]",)), HostPattern(("[fe80::1]",))


@pytest.mark.parametrize(
    ("inside", "outside", "host"),
    [
        ([[parse_pattern("*")], [LITERAL, parse_pattern("a.b")]], [], "[::1]"),
        ([[parse_pattern("*"), LITERAL], [parse_pattern("**")]], [parse_pattern("*.b"), LITERAL], "a"),
        ([[LITERAL, ANOTHER], [parse_pattern("**")]], [LITERAL], "[fe80::1]"),
        ([[LITERAL, parse_pattern("*.x")], [parse_pattern("*")]], [ANOTHER], "[::1]"),
        ([[parse_pattern("*.x"), LITERAL], [parse_pattern("**")]], [parse_pattern("**.x"), LITERAL], None),
        ([[LITERAL, parse_pattern("*.x")], [parse_pattern("*.y"), ANOTHER]], [], None),
    ],
)
def test_an_ipv6_literal_may_stand_beside_patterns(
    inside: list[list[HostPattern]], outside: list[HostPattern], host: str | None
) -> None:
    assert find_host(inside=inside, outside=outside) == host
