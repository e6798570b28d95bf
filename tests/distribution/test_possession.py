"""Who may hold a good certificate: what we know ends, what others issued lasts no longer than a life, newcomers have none."""

from datetime import datetime, timedelta

from supervisor_middleware.distribution.possession import Possession
from supervisor_middleware.pki.rotation import SKEW
from tests.pki.builders import NOW

LIFE = timedelta(hours=24)
SECOND = timedelta(seconds=1)


class World:
    """A term of leading, and what is known in it."""

    def __init__(self, *, joined: set[str] | None = None) -> None:
        self.time = NOW
        self.ends: dict[str, datetime] = {}
        self.possession = Possession(
            end_of=self.ends.get,
            now=lambda: self.time,
            has_joined=lambda key: joined is None or key in joined,
        )

    def may_hold(self, key: str) -> bool:
        return self.possession.may_hold(key, longest=LIFE)


def test_a_certificate_that_is_known_counts_until_it_has_ended_by_every_clock() -> None:
    world = World()
    world.possession.settle(())
    world.ends["a"] = NOW + LIFE
    for at, expected in ((NOW, True), (NOW + LIFE + SKEW - SECOND, True), (NOW + LIFE + SKEW, False)):
        world.time = at
        assert world.may_hold("a") is expected


def test_whoever_was_there_before_us_may_hold_what_an_earlier_leader_issued_and_no_longer_than_that_lives() -> None:
    world = World()
    world.possession.settle({"a"})
    for at, expected in ((NOW, True), (NOW + LIFE + SKEW - SECOND, True), (NOW + LIFE + SKEW, False)):
        world.time = at
        assert world.may_hold("a") is expected


def test_whoever_came_later_holds_nothing_until_we_issue_it() -> None:
    world = World()
    world.possession.settle({"a"})
    assert not world.may_hold("b")
    world.ends["b"] = NOW + LIFE
    assert world.may_hold("b")


def test_until_it_is_known_who_was_there_anybody_may_have_been() -> None:
    assert World().may_hold("a")


def test_where_joins_are_remembered_nobody_holds_anything_without_one() -> None:
    world = World(joined={"a"})
    world.ends |= {"a": NOW + LIFE, "b": NOW + LIFE}
    assert (world.may_hold("a"), world.may_hold("b"), world.may_hold("c")) == (True, False, False)
