"""From revisions to what every sandbox runs: shared, remembered, and gone only after a grace."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.control.leaving import LEAVING_GRACE, Leaving
from supervisor_middleware.control.rollout import Composer, Rollout
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.model.settings import Unselected
from tests.builders import (
    NAMESPACE,
    NAMESPACES,
    NOW,
    a_baseline_revision,
    a_binding,
    a_manifest,
    a_revision,
    a_sandbox,
    an_accepted_registration,
    an_entry,
    some_settings,
)
from tests.control.worlds import World, worlds

BINDINGS = bind([an_accepted_registration()], some_settings().builtins)
OLDER, NEWER = NOW - timedelta(days=1), NOW


def a_composer(*, unselected: Unselected = Unselected.ALLOW) -> Composer:
    return Composer(some_settings(unselected=unselected))


def other_bindings() -> Bindings:
    return bind([an_accepted_registration(manifest=a_manifest(a_binding("acme/other")))], some_settings().builtins)


def test_sandboxes_of_equal_policies_share_one_generation() -> None:
    sandboxes = [a_sandbox(f"s{n}", labels={"app": "x", "n": str(n)}) for n in range(5)]
    rollout = a_composer().roll_out(
        sandboxes, [a_revision(labels={"app": "x"})], namespaces=NAMESPACES, bindings=BINDINGS
    )
    assert len(rollout.generations) == 5
    assert len({id(s) for s in rollout.generations.values()}) == 1


def test_a_tenants_conflicts_cost_the_same_however_many_sandboxes_have_them() -> None:
    """Else a namespace of many conflicting policies holds up the pass, and with it everybody's."""
    policies = [
        a_revision(*(an_entry(f"k{n}", order=n) for n in range(10)), name=f"p{i}", created_at=OLDER)
        for i in range(100)
    ]
    composer, took = a_composer(), dict[int, float]()
    for count in (1, 400):
        sandboxes = [a_sandbox(f"s{n}") for n in range(count)]
        composer.roll_out(sandboxes, policies, namespaces=NAMESPACES, bindings=BINDINGS)
        began = time.process_time()
        found = composer.roll_out(sandboxes, policies, namespaces=NAMESPACES, bindings=BINDINGS)
        took[count] = time.process_time() - began
        assert len(found.conflicts) == 99
        assert len(found.matched["uid-of-team-a-p7"]) == count
    assert took[400] < 60 * took[1]


def test_equal_content_of_two_policies_is_not_mixed_up() -> None:
    one = a_revision(name="one", labels={"app": "1"})
    two = a_revision(name="two", labels={"app": "2"})
    sandboxes = [a_sandbox("a", labels={"app": "1"}), a_sandbox("b", labels={"app": "2"})]
    rollout = a_composer().roll_out(sandboxes, [one, two], namespaces=NAMESPACES, bindings=BINDINGS)
    names = [rollout.generations[s.key].generation.stages[0].policy for s in sandboxes]
    assert names == ["team-a/one", "team-a/two"]
    assert rollout.matched["uid-of-team-a-one"] == ("uid-of-team-a-a",)
    assert rollout.matched["uid-of-team-a-two"] == ("uid-of-team-a-b",)


def test_what_was_composed_is_remembered_while_its_inputs_stay() -> None:
    composer, sandbox, revision = a_composer(), a_sandbox(), a_revision()
    first = composer.roll_out([sandbox], [revision], namespaces=NAMESPACES, bindings=BINDINGS).generations[
        sandbox.key
    ]
    again = composer.roll_out([sandbox], [revision], namespaces=NAMESPACES, bindings=BINDINGS).generations[
        sandbox.key
    ]
    moved = composer.roll_out([sandbox], [revision], namespaces=NAMESPACES, bindings=other_bindings()).generations[
        sandbox.key
    ]
    assert again is first
    assert moved.digest != first.digest


def test_memory_follows_the_cluster() -> None:
    composer = a_composer()
    composer.roll_out([a_sandbox()], [a_revision()], namespaces=NAMESPACES, bindings=BINDINGS)
    composer.roll_out([], [a_revision()], namespaces=NAMESPACES, bindings=BINDINGS)
    assert not composer._composed


def test_an_unresolved_twin_is_another_input() -> None:
    composer, sandbox, revision = a_composer(), a_sandbox(), a_revision()
    closed = revision.as_unresolved(Unresolved.NEVER_ACCEPTED)
    composer.roll_out([sandbox], [closed], namespaces=NAMESPACES, bindings=BINDINGS)
    opened = composer.roll_out([sandbox], [revision], namespaces=NAMESPACES, bindings=BINDINGS).generations[
        sandbox.key
    ]
    assert opened.generation.stages[0].unresolved is None


def test_a_policy_selects_in_its_own_namespace_only() -> None:
    sandbox = a_sandbox(namespace="team-b")
    rollout = a_composer().roll_out([sandbox], [a_revision()], namespaces=NAMESPACES, bindings=BINDINGS)
    assert rollout.generations[sandbox.key].generation.stages == ()
    assert rollout.matched["uid-of-team-a-redaction"] == ()


def test_an_unselected_sandbox_is_open_or_closed_as_the_platform_says() -> None:
    sandbox = a_sandbox()
    closed = a_composer(unselected=Unselected.DENY).roll_out([sandbox], [], namespaces=NAMESPACES, bindings=BINDINGS)
    (stage,) = closed.generations[sandbox.key].generation.stages
    assert (stage.unresolved, stage.on_error) == (Unresolved.UNSELECTED, OnError.FAIL_CLOSED)
    opened = a_composer().roll_out([sandbox], [], namespaces=NAMESPACES, bindings=BINDINGS)
    assert opened.generations[sandbox.key].generation.stages == ()


def test_the_newer_of_two_that_conflict_is_told_once_however_many_sandboxes() -> None:
    older = a_revision(an_entry("a", order=5), name="older", created_at=OLDER)
    newer = a_revision(an_entry("b", order=5), name="newer", created_at=NEWER)
    sandboxes = [a_sandbox(f"s{n}") for n in range(3)]
    rollout = a_composer().roll_out(sandboxes, [newer, older], namespaces=NAMESPACES, bindings=BINDINGS)
    assert list(rollout.conflicts) == ["uid-of-team-a-newer"]
    assert len(rollout.conflicts["uid-of-team-a-newer"].violations) == 1
    stages = rollout.generations[sandboxes[0].key].generation.stages
    assert [(s.key, s.unresolved) for s in stages] == [("a", None), ("team-a/newer:b", Unresolved.CONFLICTED)]


def test_a_conflict_is_gone_with_the_sandbox_it_is_about() -> None:
    composer = a_composer()
    one = a_revision(an_entry("a", order=5), name="one", created_at=OLDER, labels={"app": "x"})
    two = a_revision(an_entry("b", order=5), name="two")
    shared, apart = a_sandbox("shared", labels={"app": "x"}), a_sandbox("apart")
    assert composer.roll_out([shared, apart], [one, two], namespaces=NAMESPACES, bindings=BINDINGS).conflicts
    assert not composer.roll_out([apart], [one, two], namespaces=NAMESPACES, bindings=BINDINGS).conflicts


# -------------------------------------------------------------------------------------------------- change by change


def rolled_out(composer: Composer, world: World) -> Rollout:
    return composer.roll_out(world.sandboxes, world.revisions, namespaces=world.namespaces, bindings=world.bindings)


@given(st.lists(worlds(), min_size=1, max_size=6))
def test_after_any_changes_it_is_what_a_new_composer_makes(sequence: list[World]) -> None:
    composer = a_composer()
    for world in sequence:
        found, fresh = rolled_out(composer, world), rolled_out(a_composer(), world)
        assert found.generations == fresh.generations
        assert found.conflicts == fresh.conflicts
        for revision in world.revisions:
            assert sorted(found.matched[revision.uid]) == sorted(fresh.matched[revision.uid])
        assert found.generations.keys() == {s.key for s in world.sandboxes if s.namespace in world.namespaces}


def test_an_attempt_that_breaks_off_half_way_leaves_nothing_behind() -> None:
    composer, sandboxes = a_composer(), [a_sandbox(f"s{n}", labels={"n": str(n)}) for n in range(3)]
    good = [a_revision(name="all"), a_revision(an_entry(order=1), name="one", labels={"n": "1"})]
    broken = a_revision(an_entry(include=("no..pattern",), order=1), name="one", labels={"n": "1"})
    composer.roll_out(sandboxes, good, namespaces=NAMESPACES, bindings=BINDINGS)
    with pytest.raises(ValueError, match="empty label"):
        composer.roll_out(sandboxes, [good[0], broken], namespaces=NAMESPACES, bindings=BINDINGS)
    for revisions in (good[:1], good):
        found = composer.roll_out(sandboxes, revisions, namespaces=NAMESPACES, bindings=BINDINGS)
        fresh = a_composer().roll_out(sandboxes, revisions, namespaces=NAMESPACES, bindings=BINDINGS)
        assert (found.generations, found.conflicts) == (fresh.generations, fresh.conflicts)


def test_the_age_of_a_policy_is_news_although_nothing_it_says_changed() -> None:
    composer, sandbox = a_composer(), a_sandbox()
    one, two = (a_revision(name=name, created_at=NEWER) for name in ("one", "two"))
    first = composer.roll_out([sandbox], [one, two], namespaces=NAMESPACES, bindings=BINDINGS)
    assert first.conflicts.keys() == {two.uid}
    older = replace(two, created_at=OLDER)
    then = composer.roll_out([sandbox], [one, older], namespaces=NAMESPACES, bindings=BINDINGS)
    assert then.conflicts.keys() == {one.uid}


@given(st.lists(worlds(), min_size=1, max_size=3))
def test_nothing_is_kept_of_worlds_that_are_gone(sequence: list[World]) -> None:
    composer = a_composer()
    for world in sequence:
        rolled_out(composer, world)
    empty = composer.roll_out((), (), namespaces={}, bindings=BINDINGS)
    assert not empty.generations
    assert not empty.conflicts
    assert not composer._composed
    assert not composer._running
    assert not +composer._users


@given(worlds(), st.data())
def test_a_change_of_one_policy_composes_for_the_sandboxes_it_selects_and_no_others(
    world: World, data: st.DataObject
) -> None:
    assume(world.revisions)
    composer = a_composer()
    before = dict(rolled_out(composer, world).generations)
    compositions = composer.compositions
    chosen = data.draw(st.sampled_from(world.revisions))
    edited = replace(chosen, generation=2, entries=(replace(chosen.entries[0], config={"edited": True}),))
    changed = replace(world, revisions=tuple(edited if r is chosen else r for r in world.revisions))
    selected = world.selected(chosen.uid)
    is_alone = data.draw(st.booleans())
    found = composer.replace(edited, bindings=world.bindings) if is_alone else rolled_out(composer, changed)
    assert found.generations == rolled_out(a_composer(), changed).generations
    assert all(found.generations[key] is before[key] for key in before.keys() - selected)
    # Once for all sandboxes of equal inputs.
    inputs = {tuple(sorted(changed.selecting(s) or ())) for s in world.sandboxes if s.key in selected}
    assert composer.compositions - compositions == len(inputs)


def test_a_namespace_that_is_not_known_yet_leaves_its_sandboxes_out() -> None:
    sandbox, tenant, baseline = a_sandbox(), a_revision(), a_baseline_revision(labels={"tier": "prod"})
    composer = a_composer()
    closed = composer.roll_out([sandbox], [tenant, baseline], namespaces={}, bindings=BINDINGS)
    assert not closed.generations
    assert closed.matched[tenant.uid] == ()
    known = {NAMESPACE: {"tier": "prod"}}
    opened = composer.roll_out([sandbox], [tenant, baseline], namespaces=known, bindings=BINDINGS)
    assert [s.key for s in opened.generations[sandbox.key].generation.stages] == ["platform:redact", "redact"]
    again = composer.roll_out([sandbox], [tenant, baseline], namespaces={}, bindings=BINDINGS)
    assert not again.generations


def test_a_relabelled_namespace_moves_its_own_sandboxes_only() -> None:
    ours, theirs = a_sandbox(), a_sandbox(namespace="team-b")
    revisions = [a_revision(), a_revision(namespace="team-b"), a_baseline_revision(labels={"tier": "prod"})]
    composer = a_composer()
    before = composer.roll_out([ours, theirs], revisions, namespaces=NAMESPACES, bindings=BINDINGS)
    relabelled = {**NAMESPACES, NAMESPACE: {"tier": "prod"}}
    after = composer.roll_out([ours, theirs], revisions, namespaces=relabelled, bindings=BINDINGS)
    assert len(after.generations[ours.key].generation.stages) == 2
    assert after.generations[theirs.key] is before.generations[theirs.key]
    assert after.matched["uid-of-platform"] == (ours.key,)


# --------------------------------------------------------------------------------------------------------------- grace


def test_a_deleted_policy_applies_for_a_grace() -> None:
    revision = a_revision()
    there = Leaving().after({"1": revision}, {}, now=NOW)
    assert (there.applying, there.next_due()) == ((revision,), None)
    left = there.after({}, {}, now=NOW)
    assert (left.applying, left.next_due()) == ((revision,), NOW + LEAVING_GRACE)
    still = left.after({}, {}, now=NOW + LEAVING_GRACE - timedelta(milliseconds=1))
    assert (still.applying, still.next_due()) == ((revision,), NOW + LEAVING_GRACE)
    gone = still.after({}, {}, now=NOW + LEAVING_GRACE)
    assert (gone.applying, gone.next_due()) == ((), None)


def test_one_that_came_back_has_not_left() -> None:
    revision = a_revision()
    left = Leaving().after({"1": revision}, {}, now=NOW).after({}, {}, now=NOW)
    back = left.after({"1": revision}, {}, now=NOW)
    assert (back.applying, back.next_due()) == ((revision,), None)


def test_what_applied_stays_if_nobody_can_read_it_any_more_and_a_fallback_is_for_those_of_whom_nothing_did() -> None:
    kept, new = a_revision(uid="1"), a_revision(uid="2")
    fallbacks = {r.uid: r.as_unresolved(Unresolved.NEVER_ACCEPTED) for r in (kept, new)}
    unread = Leaving().after({"1": kept}, {}, now=NOW).after({}, fallbacks, now=NOW)
    assert unread.applying == (kept, fallbacks["2"])
    still = unread.after({}, fallbacks, now=NOW + 2 * LEAVING_GRACE)
    assert still.applying == (kept, fallbacks["2"])
    newest = a_revision(an_entry("new"), uid="1")
    assert still.after({"1": newest, "2": new}, {}, now=NOW).applying == (newest, new)
    assert still.after({}, {}, now=NOW + 3 * LEAVING_GRACE).next_due() is not None


def test_a_successor_takes_over_once_it_is_accepted() -> None:
    old, new = a_revision(uid="1"), a_revision(uid="2")
    there = Leaving().after({"1": old}, {}, now=NOW)
    fallback = new.as_unresolved(Unresolved.NEVER_ACCEPTED)
    waiting = there.after({}, {"2": fallback}, now=NOW)
    assert waiting.applying == (old,)
    assert waiting.after({"2": new}, {}, now=NOW).applying == (new,)
    assert waiting.after({}, {"2": fallback}, now=NOW + LEAVING_GRACE).applying == (fallback,)


def test_an_attempt_that_is_given_up_changes_nothing() -> None:
    old, new = a_revision(uid="1"), a_revision(uid="2")
    left = Leaving().after({"1": old}, {}, now=NOW).after({}, {}, now=NOW)
    left.after({"2": new}, {}, now=NOW)
    assert left.applying == (old,)


def test_the_last_revision_that_applied_is_the_one_that_stays() -> None:
    newest = a_revision(an_entry("new"))
    there = Leaving().after({"1": a_revision()}, {}, now=NOW).after({"1": newest}, {}, now=NOW)
    assert there.after({}, {}, now=NOW).applying == (newest,)
