"""How one root gives way to the next: trusted before it issues, and the old one until long after."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.succession import MAX_RETIRED, RETIREMENT, ROOT_LIFETIME, Succession, split_roots

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OVERLAP = timedelta(seconds=60)
DOMAIN = "webhook.example"


def a_root(*, now: datetime = NOW) -> Authority:
    return Authority.create(trust_domain=DOMAIN, now=now, lifetime=ROOT_LIFETIME)


FIRST = a_root()


def step(succession: Succession, *, now: datetime = NOW, settled: timedelta = timedelta()) -> Succession | None:
    return succession.next(now=now, settled=settled, overlap=OVERLAP)


def test_a_young_root_alone_stays() -> None:
    assert step(Succession(current=FIRST), settled=timedelta(days=30)) is None


def test_a_root_has_a_successor_when_a_third_of_its_life_is_left() -> None:
    steady = Succession(current=FIRST)
    assert step(steady, now=NOW + ROOT_LIFETIME * 0.66) is None
    prepared = step(steady, now=NOW + ROOT_LIFETIME * 0.67)
    assert prepared is not None
    assert prepared.current == FIRST
    assert prepared.successor is not None
    assert prepared.bundle == FIRST.certificate_pem + prepared.successor.certificate_pem


def test_a_successor_issues_only_after_it_was_trusted_for_the_overlap() -> None:
    prepared = Succession(current=FIRST).with_successor(now=NOW)
    assert step(prepared, settled=OVERLAP - timedelta(seconds=1)) is None
    changed = step(prepared, settled=OVERLAP)
    assert changed is not None
    assert changed.current == prepared.successor
    assert changed.successor is None
    assert changed.roots == prepared.roots


def test_an_old_root_is_trusted_for_several_overlaps_more() -> None:
    changed = step(Succession(current=FIRST).with_successor(now=NOW), settled=OVERLAP)
    assert changed is not None
    assert step(changed, settled=RETIREMENT * OVERLAP - timedelta(seconds=1)) is None
    steady = step(changed, settled=RETIREMENT * OVERLAP)
    assert steady is not None
    assert steady.roots == (changed.current.certificate_pem,)


def test_one_that_is_prepared_is_not_prepared_again() -> None:
    prepared = Succession(current=FIRST).with_successor(now=NOW)
    assert prepared.with_successor(now=NOW) is prepared


def test_nobody_waits_for_a_root_that_has_ended() -> None:
    prepared = Succession(current=FIRST).with_successor(now=NOW)
    changed = step(prepared, now=FIRST.expires_at)
    assert changed is not None
    assert changed.current == prepared.successor


def test_the_bundle_does_not_grow_without_end() -> None:
    succession = Succession(current=FIRST)
    for _ in range(MAX_RETIRED + 3):
        following = step(succession.with_successor(now=NOW), settled=OVERLAP)
        assert following is not None
        succession = following
    assert len(succession.roots) == MAX_RETIRED + 1


@pytest.mark.parametrize("text", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nabc"])
def test_what_is_no_bundle_has_no_roots(text: bytes) -> None:
    assert split_roots(text) == ()


def test_a_bundle_is_split_as_it_was_joined() -> None:
    prepared = Succession(current=FIRST).with_successor(now=NOW)
    assert split_roots(prepared.bundle) == prepared.roots


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=8))
def test_no_root_issues_that_was_not_trusted_in_the_stage_before(steps: list[tuple[int, int]]) -> None:
    succession, now = Succession(current=FIRST), NOW
    for days, seconds in steps:
        now += timedelta(days=days)
        following = succession.next(now=now, settled=timedelta(seconds=seconds), overlap=OVERLAP)
        if following is None:
            continue
        assert following.current.certificate_pem in succession.roots
        assert succession.current.certificate_pem in following.roots
        succession = following
