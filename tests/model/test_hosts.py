"""Host patterns: the published vectors, and the matcher against the plainest one that could be written."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.hosts import (
    PATTERN_SCHEMA,
    HostPattern,
    HostSelector,
    normalize_host,
    parse_pattern,
    parse_patterns,
)

VECTORS = yaml.safe_load((Path(__file__).parents[1] / "golden" / "hosts.yaml").read_text())

labels = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "*b", "*a*", "a*b*"])
patterns = st.lists(labels, min_size=1, max_size=4).map(lambda found: HostPattern(tuple(found)))
HOSTS = [".".join(host) for n in (1, 2, 3) for host in product(["a", "b", "ab", "ba"], repeat=n)]


def matches_by_brute_force(pattern: tuple[str, ...], host: tuple[str, ...]) -> bool:
    if not pattern:
        return not host
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return any(matches_by_brute_force(rest, host[n:]) for n in range(1, len(host) + 1))
    if not host:
        return False
    glob = "[^.]*".join(map(re.escape, first.split("*")))
    return re.fullmatch(glob, host[0]) is not None and matches_by_brute_force(rest, host[1:])


@given(patterns)
def test_matching_agrees_with_brute_force(pattern: HostPattern) -> None:
    for host in HOSTS:
        assert pattern.matches(host) == matches_by_brute_force(pattern.labels, tuple(host.split("."))), host


@pytest.mark.parametrize("vector", VECTORS["matching"], ids=lambda v: v["pattern"])
def test_published_vectors_hold(vector: dict[str, Any]) -> None:
    pattern = parse_pattern(vector["pattern"])
    for host in vector.get("matches", ()):
        assert pattern.matches(normalize_host(host)), host
    for host in vector.get("misses", ()):
        assert not pattern.matches(normalize_host(host)), host


@pytest.mark.parametrize("pattern", VECTORS["refused"])
def test_what_is_no_pattern_is_refused_without_repeating_it(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"label|character|ASCII|alone|port") as refusal:
        parse_pattern(pattern)
    assert len(pattern) < 10 or pattern not in str(refusal.value).removesuffix("(for example *.example.com)")


@given(st.text(max_size=300))
def test_parsing_never_raises_anything_but_value_error(text: str) -> None:
    try:
        pattern = parse_pattern(text)
    except ValueError:
        return
    assert str(pattern) == text.lower()
    assert parse_pattern(str(pattern)) == pattern
    assert re.fullmatch(PATTERN_SCHEMA, text), "the CRD must not refuse what the operator accepts"


def test_labels_of_63_characters_and_hosts_of_253_are_the_longest() -> None:
    parse_pattern("a" * 63)
    with pytest.raises(ValueError, match="longer than 63"):
        parse_pattern("a" * 64)
    parse_pattern(".".join(["a" * 63] * 3 + ["a" * 61]))
    with pytest.raises(ValueError, match="longer than 253"):
        parse_pattern(".".join(["a" * 63] * 3 + ["a" * 62]))


def test_a_pattern_full_of_wildcards_is_answered_at_once() -> None:
    host = ".".join(["a" * 60] * 4)
    assert not parse_pattern(".".join(["**", "*a" * 30, "**", "*a" * 30 + "b"])).matches(host)


def test_exclusion_wins_over_inclusion() -> None:
    selector = HostSelector(
        include=parse_patterns(["*.example.com", "other.test"]), exclude=parse_patterns(["trusted.example.com"])
    )
    assert selector.selects("api.example.com")
    assert selector.selects("other.test")
    assert not selector.selects("trusted.example.com")
    assert not selector.selects("example.com")


@pytest.mark.parametrize(("authority", "host"), [tuple(pair) for pair in VECTORS["authorities"].items()])
def test_an_authority_is_reduced_to_its_host(authority: str, host: str) -> None:
    assert normalize_host(authority) == host
    assert normalize_host(host) == host


@pytest.mark.parametrize("authority", VECTORS["no authority"])
def test_an_authority_without_a_host_that_can_be_matched_is_refused(authority: str) -> None:
    with pytest.raises(ValueError, match="not a valid"):
        normalize_host(authority)


@given(st.text(max_size=300))
def test_a_normalized_host_is_one_that_patterns_can_match(authority: str) -> None:
    try:
        host = normalize_host(authority)
    except ValueError:
        return
    assert host.isascii()
    assert host == host.lower()
    assert parse_pattern("**").matches(host)
    assert normalize_host(host) == host
