"""How a rotation is kept and read again: by the same process, by another, and after somebody put another root there."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.profiles import CLOCK_SKEW
from supervisor_middleware.pki.rotation import Cause, Facts, Rotation, Rules, advance
from supervisor_middleware.pki.rotation_record import (
    Changes,
    Kept,
    Knowledge,
    Reading,
    changes_to,
    read,
    stored_rotation,
)
from supervisor_middleware.pki.rotation_requests import Stage, new_request
from supervisor_middleware.pki.succession import Succession
from tests.pki.builders import DAY, TRUST_DOMAIN, an_authority
from tests.pki.foreign import a_foreign_root

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIFE = timedelta(hours=24)
FIRST, SECOND = an_authority(now=NOW - DAY), an_authority(now=NOW - DAY)
FOREIGN = a_foreign_root(now=NOW - DAY)
STEADY = Rotation(roots=Succession(current=FIRST), since=NOW - DAY)
GOOD = Facts(is_published=True, is_counted=True)
EMPTY = Kept(parts={})
_NUMBERS = itertools.count()


def onward(rotation: Rotation, *, now: datetime) -> Rotation:
    """One stage on, by force where nothing asks for it."""
    request = new_request(str(next(_NUMBERS)), force=rotation.stage)
    following = advance(rotation, GOOD, now=now, rules=Rules(), request=request)
    assert following is not None
    return following


PREPARED = onward(STEADY, now=NOW)
ACTIVATED = onward(PREPARED, now=NOW)
TAINTED = onward(ACTIVATED, now=NOW)
REVOKED = onward(TAINTED, now=NOW)
BEGUN_ANEW = onward(REVOKED, now=NOW)
DURING = replace(TAINTED, roots=TAINTED.roots.with_successor(now=NOW)).at(
    Stage.PREPARED, now=NOW, cause=Cause.SUPPLIED
)


def after(changes: Changes, kept: Kept = EMPTY) -> Kept:
    """What lies there then, as a merge patch has it."""
    parts = {**kept.parts, **{name: value for name, value in changes.parts.items() if value is not None}}
    gone = {name for name, value in changes.parts.items() if value is None}
    return Kept(parts={k: v for k, v in parts.items() if k not in gone}, notes={**kept.notes, **changes.notes})


def kept_of(rotation: Rotation) -> Kept:
    return after(changes_to(rotation))


def put(kept: Kept, root: Authority, *, key: Authority | None = None) -> Kept:
    """Somebody writes a root where the issuing one lay: what cert-manager does."""
    pair = {"tls.crt": root.certificate_pem, "tls.key": (key or root).private_key_pem.reveal()}
    return replace(kept, parts={**kept.parts, **pair, "ca.crt": root.certificate_pem})


def reading(
    kept: Kept,
    *,
    known: Rotation | None = None,
    published: tuple[bytes, ...] = (),
    now: datetime = NOW,
    longest: timedelta = LIFE,
) -> Reading:
    knowledge = Knowledge(trust_domain=TRUST_DOMAIN, now=now, longest=longest, rotation=known, published=published)
    return read(kept, knowledge)


# ----------------------------------------------------------------------------------------------------- kept by ourselves


@pytest.mark.parametrize("rotation", [STEADY, PREPARED, ACTIVATED, TAINTED, REVOKED, BEGUN_ANEW, DURING])
def test_every_stage_is_read_as_it_was_written_and_needs_no_write(rotation: Rotation) -> None:
    kept = kept_of(rotation)
    assert reading(kept) == Reading(rotation=rotation)
    assert not changes_to(rotation).over(kept)
    assert kept.parts["tls.crt"] == rotation.roots.current.certificate_pem


def test_a_step_writes_only_what_is_news() -> None:
    changes = changes_to(TAINTED).over(kept_of(ACTIVATED))
    assert changes.parts == {}
    assert changes.notes["stage"] == "tainted"
    promoted = changes_to(ACTIVATED).over(kept_of(PREPARED))
    assert set(promoted.parts) == {"tls.crt", "tls.key", "next.crt", "next.key", "retired.crt"}
    assert promoted.parts["next.key"] is None


def test_the_old_key_is_kept_nowhere_once_it_issues_no_more() -> None:
    key = FIRST.private_key_pem.reveal()
    assert key in kept_of(PREPARED).parts.values()
    for rotation in (ACTIVATED, TAINTED, REVOKED):
        assert key not in kept_of(rotation).parts.values()


def test_a_root_of_a_version_that_noted_nothing_is_steady_and_noted_then() -> None:
    old = Kept(parts=kept_of(STEADY).parts)
    for published in ((), (FIRST.certificate_pem,)):
        found = reading(old, published=published)
        assert found.rotation == replace(STEADY, since=NOW)
    assert set(changes_to(found.rotation).over(old).notes) == {
        "issuer",
        "follows",
        "stage",
        "since",
        "cause",
        "longest-leaf",
        "handled",
    }


def test_the_longest_life_of_a_leaf_is_remembered_when_the_setting_falls() -> None:
    kept = kept_of(replace(STEADY, longest=7 * DAY))
    assert reading(kept, longest=LIFE).rotation.longest == 7 * DAY
    assert reading(kept_of(STEADY), longest=7 * DAY).rotation.longest == 7 * DAY


def test_a_life_that_no_leaf_can_have_is_not_believed() -> None:
    kept = kept_of(PREPARED)
    noted = replace(kept, notes={**kept.notes, "longest-leaf": f"{10**12}s"})
    rotation = reading(noted, longest=LIFE).rotation
    assert (rotation.longest, rotation.deadline) == (LIFE, PREPARED.deadline)
    assert reading(Kept(parts=kept.parts), longest=7 * DAY, known=STEADY).rotation.longest == 7 * DAY


@pytest.mark.parametrize(
    "notes",
    [
        {"stage": "nonsense"},
        {"stage": "steady"},
        {"since": "yesterday"},
        {"since": "2026-03-01T12:00:00"},
        {"since": (NOW + CLOCK_SKEW + DAY).isoformat()},
        {"cause": ""},
        {"follows": ""},
    ],
)
def test_notes_that_do_not_fit_the_roots_count_for_nothing_and_the_stage_begins_anew(notes: dict[str, str]) -> None:
    kept = kept_of(PREPARED)
    found = reading(replace(kept, notes={**kept.notes, **notes}), now=NOW + timedelta(hours=1))
    assert (found.rotation.stage, found.rotation.since) == (Stage.PREPARED, NOW + timedelta(hours=1))
    assert found.rotation.roots == PREPARED.roots


def test_a_damaged_successor_is_as_good_as_none_and_a_damaged_retired_root_too() -> None:
    kept = kept_of(PREPARED)
    without = reading(replace(kept, parts={**kept.parts, "next.key": b"nonsense"})).rotation
    assert (without.stage, without.roots) == (Stage.STEADY, STEADY.roots)
    kept = kept_of(TAINTED)
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    found = reading(replace(kept, parts={**kept.parts, "retired.crt": broken + kept.parts["retired.crt"]})).rotation
    assert found.roots == TAINTED.roots


def test_a_retired_root_that_has_ended_is_trusted_no_more() -> None:
    brief = an_authority(now=NOW - DAY, lifetime=2 * DAY)
    rotation = replace(TAINTED, roots=replace(TAINTED.roots, retired=(brief.certificate_pem,)))
    assert reading(kept_of(rotation)).rotation.roots.retired == (brief.certificate_pem,)
    assert reading(kept_of(rotation), now=NOW + 2 * DAY).rotation.roots.retired == ()


# ------------------------------------------------------------------------------------------- somebody supplies another


@pytest.mark.parametrize("supplied", [FOREIGN, SECOND])
def test_a_root_put_in_the_place_of_ours_follows_it_in_stages(supplied: Authority) -> None:
    there = put(kept_of(STEADY), supplied)
    found = reading(there, known=STEADY)
    rotation = found.rotation
    assert (rotation.stage, rotation.cause, rotation.since) == (Stage.PREPARED, Cause.SUPPLIED, NOW)
    assert (rotation.roots.current, rotation.roots.successor) == (FIRST, supplied)
    # Ours is kept aside, and what was supplied is not touched.
    changes = changes_to(rotation).over(there)
    assert not any(name.startswith("tls.") for name in changes.parts)
    there = after(changes, there)
    assert there.parts["held.key"] == FIRST.private_key_pem.reveal()
    # Another process, which has only that, goes on.
    assert reading(there, now=NOW + DAY) == Reading(rotation=rotation)
    activated = onward(rotation, now=NOW + DAY)
    there = after(changes_to(activated).over(there), there)
    assert not {"held.crt", "held.key"} & set(there.parts)
    assert there.parts["tls.crt"] == supplied.certificate_pem
    assert reading(there, now=NOW + DAY).rotation == activated
    assert activated.is_supplied is (supplied is FOREIGN)
    assert activated.roots.retired == (FIRST.certificate_pem,)


def test_a_supplied_root_that_is_replaced_by_another_begins_its_stage_anew() -> None:
    there = put(kept_of(STEADY), FOREIGN)
    there = after(changes_to(reading(there, known=STEADY).rotation), there)
    later = NOW + timedelta(hours=5)
    another = a_foreign_root(now=NOW - DAY)
    for known in (None, reading(there).rotation):
        found = reading(put(there, another), known=known, now=later).rotation
        assert (found.stage, found.since, found.roots.successor) == (Stage.PREPARED, later, another)
        assert found.roots.current == FIRST


@pytest.mark.parametrize("rotation", [ACTIVATED, TAINTED])
def test_one_supplied_while_an_old_root_is_still_trusted_takes_that_along(rotation: Rotation) -> None:
    found = reading(put(kept_of(rotation), FOREIGN), known=rotation).rotation
    assert found.stage is Stage.PREPARED
    assert found.roots.roots == (*rotation.roots.roots, FOREIGN.certificate_pem)
    assert onward(found, now=NOW).roots.retired == rotation.roots.roots


@pytest.mark.parametrize("rotation", [STEADY, TAINTED])
def test_whoever_thinks_better_of_it_gets_back_what_was(rotation: Rotation) -> None:
    there = put(kept_of(rotation), FOREIGN)
    there = after(changes_to(reading(there, known=rotation).rotation), there)
    found = reading(put(there, rotation.roots.current), now=NOW + DAY).rotation
    assert (found.roots, found.is_displaced) == (rotation.roots, False)
    assert found.stage is (Stage.STEADY if rotation is STEADY else Stage.ACTIVATED)


def test_our_successor_gives_way_to_the_one_that_is_supplied() -> None:
    found = reading(put(kept_of(PREPARED), FOREIGN), known=PREPARED).rotation
    assert (found.roots.current, found.roots.successor) == (FIRST, FOREIGN)
    assert after(changes_to(found), put(kept_of(PREPARED), FOREIGN)).parts.get("next.key") is None


@pytest.mark.parametrize(
    ("there", "problem"),
    [
        (put(kept_of(STEADY), FOREIGN, key=SECOND), "another certificate"),
        (put(kept_of(STEADY), a_foreign_root(now=NOW - 400 * DAY)), "expired"),
        (put(kept_of(STEADY), an_authority(trust_domain="other.test")), "other.test"),
        (replace(kept_of(STEADY), parts={"tls.crt": b"nonsense", "tls.key": b""}), "no certificate"),
        (replace(kept_of(STEADY), parts={}), "needs tls.crt and tls.key"),
    ],
)
def test_a_supplied_root_that_cannot_serve_is_refused_and_ours_goes_on(there: Kept, problem: str) -> None:
    found = reading(there, known=STEADY)
    assert problem in found.problem
    assert (found.rotation.stage, found.rotation.roots) == (Stage.STEADY, STEADY.roots)
    # Ours is kept aside, so that a restart has it too.
    kept = after(changes_to(found.rotation).over(there), there)
    again = reading(kept)
    assert again.rotation.roots == STEADY.roots
    assert problem in again.problem
    assert "PRIVATE" not in again.problem
    with pytest.raises(InvalidInput, match=problem):
        reading(there)


def test_a_root_whose_key_was_exchanged_goes_on_with_its_own() -> None:
    there = put(kept_of(STEADY), FIRST, key=SECOND)
    found = reading(there, known=STEADY)
    assert found.problem
    assert found.rotation.roots.current == FIRST
    assert after(changes_to(found.rotation).over(there), there).parts["held.key"] == FIRST.private_key_pem.reveal()


def test_a_root_that_ended_where_it_lies_displaces_nothing() -> None:
    brief = an_authority(now=NOW - DAY, lifetime=2 * DAY)
    rotation = replace(STEADY, roots=Succession(current=brief))
    found = reading(kept_of(rotation), known=rotation, now=NOW + 3 * DAY)
    assert found.rotation == rotation
    assert "expired" in found.problem


def test_one_supplied_while_nobody_ran_issues_at_once_and_what_was_published_stays_trusted() -> None:
    other_domain = an_authority(trust_domain="other.test").certificate_pem
    published = (FIRST.certificate_pem, SECOND.certificate_pem, other_domain)
    there = put(kept_of(TAINTED), FOREIGN)
    for kept in (there, Kept(parts={k: v for k, v in there.parts.items() if k.startswith("tls")})):
        rotation = reading(kept, published=published).rotation
        assert (rotation.stage, rotation.cause, rotation.roots.current) == (Stage.ACTIVATED, Cause.SUPPLIED, FOREIGN)
        assert set(rotation.roots.retired) == {FIRST.certificate_pem, SECOND.certificate_pem}
        assert not rotation.is_displaced
        assert reading(after(changes_to(rotation).over(kept), kept)).rotation == rotation
    alone = reading(put(kept_of(STEADY), FOREIGN)).rotation
    assert (alone.stage, alone.roots) == (Stage.STEADY, Succession(current=FOREIGN))


def test_what_was_published_last_brings_no_root_back_that_was_revoked() -> None:
    # Killed after the stage was stored, before the bundle was published.
    published = TAINTED.roots.roots
    assert reading(kept_of(REVOKED), published=published).rotation == REVOKED


@pytest.mark.parametrize("rotation", [STEADY, PREPARED, TAINTED])
def test_a_secret_that_was_wholly_written_anew_takes_nothing_from_who_still_knows(rotation: Rotation) -> None:
    anew = Kept(parts=put(Kept(parts={}), FOREIGN).parts)
    found = reading(anew, known=rotation).rotation
    assert (found.stage, found.roots.current) == (Stage.PREPARED, rotation.roots.current)
    assert found.roots.successor == FOREIGN
    assert found.roots.retired == rotation.roots.retired
    same = Kept(parts={k: v for k, v in kept_of(rotation).parts.items() if k.startswith("tls")})
    assert reading(same, known=rotation).rotation == rotation


def test_a_follower_that_lags_takes_what_the_leader_wrote() -> None:
    assert reading(kept_of(REVOKED), known=STEADY).rotation == REVOKED


def test_what_is_stored_says_what_it_lacks_and_what_was_asked() -> None:
    knowledge = Knowledge(trust_domain=TRUST_DOMAIN, now=NOW, longest=LIFE)
    request = new_request("x")
    stored = stored_rotation(Kept(parts=kept_of(STEADY).parts), knowledge, version="7", request=request)
    assert (stored.version, stored.request, stored.problem) == ("7", request, "")
    assert stored.changes
    assert not stored_rotation(kept_of(STEADY), knowledge).changes


def test_nothing_that_is_kept_shows_a_key() -> None:
    for value in (kept_of(PREPARED), changes_to(PREPARED), PREPARED, reading(kept_of(PREPARED))):
        assert "PRIVATE" not in repr(value)
