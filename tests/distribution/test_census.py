"""How many supervisors know which roots."""

from collections.abc import Container
from datetime import UTC, datetime

from supervisor_middleware.distribution.attendance import Leaf, Standing, Visits
from supervisor_middleware.distribution.census import Census, census_of
from supervisor_middleware.distribution.ledger import Record

_NOW = datetime(2026, 3, 1, tzinfo=UTC)


def standing(*, bundle: str | None, issuer: str | None = "new") -> Standing:
    """A supervisor that said it has `bundle` (None: it has no stream) and showed a leaf of `issuer` (None: never)."""
    record = None if bundle is None else Record(key="k", trust_bundle=bundle)
    leaf = None if issuer is None else Leaf(serial=1, begins_at=_NOW, expires_at=_NOW, issuer=issuer)
    return Standing(desired=None, record=record, visits=None if leaf is None else Visits(leaf=leaf))


def census(*standings: Standing, holding: Container[str] = "0123456789") -> Census:
    """`holding` are those (by number) that may hold a good certificate."""
    keyed = ((str(number), standing) for number, standing in enumerate(standings))
    return census_of(keyed, trust_bundle="both", issuer="new", may_hold=lambda key: key in holding)


def test_nobody_is_no_reason_to_wait() -> None:
    assert census() == Census()


def test_one_that_has_the_bundle_and_a_new_leaf_is_counted_nowhere() -> None:
    assert census(standing(bundle="both")) == Census()


def test_each_is_counted_for_what_it_lacks() -> None:
    found = census(
        standing(bundle="one"),
        standing(bundle="both", issuer="old"),
        standing(bundle="one", issuer="old"),
        standing(bundle="", issuer=None),
    )
    assert found == Census(unacknowledged=3, old=2)


def test_of_one_that_is_away_nothing_else_is_known() -> None:
    assert census(standing(bundle=None, issuer="old"), standing(bundle=None, issuer=None)) == Census(absent=2)


def test_one_that_is_away_without_a_good_certificate_is_counted_nowhere() -> None:
    away = standing(bundle=None, issuer="old")
    assert census(away, away, away, holding={"1"}) == Census(absent=1)
    # One that is connected is counted for what it lacks, whatever is known of its certificate.
    assert census(standing(bundle="one", issuer="old"), holding=()) == Census(unacknowledged=1, old=1)
