"""Allowances fill up by time, and never beyond a burst."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.distribution.pacing import Allowance, Pace

PACE = Pace(burst=3, rate=2)


def test_a_burst_and_then_a_rate() -> None:
    allowance = Allowance(PACE, now=0)
    assert [allowance.take(0) for _ in range(4)] == [True, True, True, False]
    assert allowance.until_next(0) == 0.5
    assert [allowance.take(0.5), allowance.take(0.5)] == [True, False]
    assert not allowance.is_full(1.9)
    assert allowance.is_full(2.0)


def test_what_is_granted_is_at_most_a_burst() -> None:
    allowance = Allowance(PACE, now=0)
    allowance.grant(100, now=0)
    assert [allowance.take(0) for _ in range(4)] == [True, True, True, False]
    allowance.grant(2, now=0)
    assert [allowance.take(0) for _ in range(3)] == [True, True, False]


@given(st.lists(st.floats(0, 5), max_size=200))
def test_nobody_gets_more_than_a_burst_and_the_rate(pauses: list[float]) -> None:
    allowance, now, taken = Allowance(PACE, now=0), 0.0, 0
    for pause in pauses:
        now += pause
        taken += allowance.take(now)
    assert taken <= PACE.burst + PACE.rate * now + 1e-6
