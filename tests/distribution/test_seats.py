"""Places that last: who gets one, and who loses it."""

from contextlib import ExitStack

import pytest

from supervisor_middleware.distribution.seats import Seat, Seats
from supervisor_middleware.distribution.shares import Owner
from supervisor_middleware.distribution.turns import TooMany


def an_owner(name: str) -> Owner:
    """`a/jane`: jane, in group a."""
    group, _, member = name.partition("/")
    return Owner(group=group, member=member)


def take(seats: Seats, stack: ExitStack, *names: str) -> list[Seat]:
    return [stack.enter_context(seats.seat(an_owner(name))) for name in names]


def test_the_newest_of_a_member_takes_the_place_of_its_oldest_in_whatever_group() -> None:
    seats = Seats(8, of_one=2)
    with ExitStack() as stack:
        taken = take(seats, stack, "a/jane", "b/jane", "a/joe", "c/jane")
        assert [bool(s.lost) for s in taken] == [True, False, False, False]
        assert "one has 2 at once" in taken[0].lost
        assert seats._taken == taken[1:]
    assert not seats._taken


def test_when_all_are_taken_the_group_with_the_most_loses_its_oldest() -> None:
    seats = Seats(4, of_one=4)
    with ExitStack() as stack:
        taken = take(seats, stack, "b/joe", "a/jane", "a/jack", "a/jill", "b/june")
        assert [bool(s.lost) for s in taken] == [False, True, False, False, False]


def test_a_group_that_has_as_much_as_others_takes_from_itself() -> None:
    seats = Seats(4, of_one=4)
    with ExitStack() as stack:
        taken = take(seats, stack, "a/jane", "a/jack", "b/joe", "b/june", "b/jim")
        assert [bool(s.lost) for s in taken] == [False, False, True, False, False]


def test_where_all_have_as_little_a_newcomer_is_refused() -> None:
    seats = Seats(2, of_one=2)
    with ExitStack() as stack:
        taken = take(seats, stack, "a/jane", "b/joe")
        with pytest.raises(TooMany, match="all 2 places are taken") as caught:
            take(seats, stack, "c/june")
        assert caught.value.pause > 0
        assert not any(s.lost for s in taken)
        (again,) = take(seats, stack, "b/joe")
        assert [bool(s.lost) for s in (*taken, again)] == [False, True, False]


def test_who_leaves_gives_its_place_back() -> None:
    seats = Seats(1, of_one=1)
    for name in ("a/jane", "b/joe"):
        with seats.seat(an_owner(name)) as seat:
            assert not seat.lost
