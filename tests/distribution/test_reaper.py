"""Which connections without a call end: the old ones, and of too many those of whoever has the most."""

from supervisor_middleware.distribution.connections import Address
from supervisor_middleware.distribution.reaper import Bounds, Idle

BOUNDS = Bounds(patience=30, of_one=100, of_all=100)


def of(host: str, *ports: int) -> list[Address]:
    return [(host, port) for port in ports]


def test_one_that_carries_no_call_for_long_ends_and_one_that_does_not() -> None:
    idle, both = Idle(BOUNDS), of("10.0.0.1", 1, 2)
    carrying = set(of("10.0.0.1", 2))
    assert idle.surplus(both, carrying=carrying, now=0) == set()
    assert idle.surplus(both, carrying=carrying, now=29) == set()
    assert idle.surplus(both, carrying=carrying, now=30) == set(of("10.0.0.1", 1))


def test_a_call_that_is_worked_on_begins_the_time_anew_and_one_in_between_two_looks_does_not() -> None:
    idle, one = Idle(BOUNDS), of("10.0.0.1", 1)
    idle.surplus(one, carrying=(), now=0)
    idle.surplus(one, carrying=one, now=20)
    assert idle.surplus(one, carrying=(), now=40) == set()
    assert idle.surplus(one, carrying=(), now=69) == set()
    assert idle.surplus(one, carrying=(), now=70) == set(one)


def test_one_that_ended_is_forgotten() -> None:
    idle = Idle(BOUNDS)
    idle.surplus(of("10.0.0.1", 1), carrying=(), now=0)
    idle.surplus((), carrying=(), now=10)
    assert idle.surplus(of("10.0.0.1", 1), carrying=(), now=31) == set()


def test_one_host_has_so_many_and_its_oldest_end() -> None:
    idle = Idle(Bounds(of_one=2, of_all=100))
    idle.surplus(of("10.0.0.1", 1), carrying=(), now=0)
    connected = of("10.0.0.1", 3, 2, 1) + of("10.0.0.2", 1, 2)
    assert idle.surplus(connected, carrying=(), now=1) == set(of("10.0.0.1", 1))


def test_of_too_many_those_of_the_network_and_host_with_the_most_end() -> None:
    idle = Idle(Bounds(of_one=100, of_all=4))
    honest = of("10.0.1.1", 1) + of("10.0.2.1", 1)
    connected = of("10.0.9.1", 1, 2, 3) + of("10.0.9.2", 1) + honest
    ends = idle.surplus(connected, carrying=(), now=0)
    assert ends == set(of("10.0.9.1", 1, 2))


def test_those_that_carry_a_call_are_none_of_the_too_many() -> None:
    idle, connected = Idle(Bounds(of_one=1, of_all=1)), of("10.0.0.1", 1, 2, 3)
    assert idle.surplus(connected, carrying=set(connected[:2]), now=0) == set()
