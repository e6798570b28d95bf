"""Which certificate of a supervisor counts: the newest, also when clocks and leaders differ and answers are lost."""

from dataclasses import replace
from datetime import datetime, timedelta

from supervisor_middleware.distribution.attendance import Leaf, leaf_of
from supervisor_middleware.distribution.holders import _ROOM, Holders
from tests.pki.builders import NOW, an_authority, supervisor_credentials

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time


def a_certificate(serial: int, begins: datetime = NOW) -> Leaf:
    return Leaf(serial=serial, begins_at=begins, expires_at=begins + timedelta(hours=1), issuer="")


OLD, NEW, NEWEST = (a_certificate(serial, NOW + serial * MINUTE) for serial in (1, 2, 3))


def test_a_certificate_is_what_its_leaf_says() -> None:
    credentials = supervisor_credentials(an_authority())
    certificate = leaf_of(credentials.certificate_chain_pem)
    assert certificate.serial == credentials.leaf.serial_number
    assert (certificate.begins_at, certificate.expires_at) == (credentials.not_before, credentials.expires_at)


def test_the_first_that_is_shown_counts_and_an_older_one_no_more() -> None:
    holders = Holders(now=Clock())
    assert holders.shown("a", NEW)
    assert not holders.shown("a", OLD)
    assert holders.shown("a", NEW)
    assert holders.shown("b", OLD)


def test_a_later_one_takes_over_and_of_two_that_begin_alike_either() -> None:
    holders = Holders(now=Clock())
    assert holders.shown("a", OLD)
    assert holders.shown("a", NEW)
    assert not holders.shown("a", OLD)
    alike = a_certificate(9, NEW.begins_at)
    assert [holders.shown("a", one) for one in (alike, NEW, alike)] == [True] * 3


def test_what_a_token_bought_ends_all_others_at_once() -> None:
    holders = Holders(now=Clock())
    assert holders.shown("a", OLD)
    holders.issued("a", NEW, asked_with=None)
    assert not holders.shown("a", OLD)
    assert holders.shown("a", NEW)


def test_whoever_asked_for_a_successor_counts_until_it_is_shown() -> None:
    holders = Holders(now=Clock())
    holders.issued("a", NEW, asked_with=OLD)
    assert holders.shown("a", OLD)
    # The answer was lost, so it asks again.
    holders.issued("a", NEWEST, asked_with=OLD)
    assert holders.shown("a", OLD)
    assert not holders.shown("a", NEW)
    assert holders.shown("a", NEWEST)
    assert not holders.shown("a", OLD)


def test_a_leader_whose_clock_was_ahead_does_not_outlive_us() -> None:
    ahead = a_certificate(1, NOW + 5 * MINUTE)
    holders = Holders(now=Clock())
    assert holders.shown("a", ahead)
    holders.issued("a", NEW, asked_with=ahead)
    assert holders.shown("a", NEW)
    assert not holders.shown("a", ahead)


def test_supervisors_of_long_ago_take_no_room() -> None:
    clock = Clock()
    holders = Holders(now=clock)
    for number in range(_ROOM):
        holders.issued(str(number), a_certificate(number), asked_with=None)
    clock.time = NOW + timedelta(minutes=59)
    holders.issued("kept", a_certificate(5), asked_with=None)
    assert len(holders._newest) == _ROOM + 1
    clock.time = NOW + timedelta(hours=2)
    for number in range(_ROOM):
        holders.issued(f"new-{number}", a_certificate(number, clock.time), asked_with=None)
    assert len(holders._newest) == _ROOM


def test_a_supervisors_last_certificate_ends_when_the_later_of_those_that_count_does() -> None:
    holders = Holders(now=Clock())
    assert holders.end_of("a") is None
    assert holders.shown("a", OLD)
    assert holders.end_of("a") == OLD.expires_at
    shorter = replace(NEW, expires_at=NEW.begins_at + SECOND)
    holders.issued("a", shorter, asked_with=OLD)
    assert holders.end_of("a") == OLD.expires_at
    assert holders.shown("a", shorter)
    assert holders.end_of("a") == shorter.expires_at
