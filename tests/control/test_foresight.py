"""What a review is told of a change is what the change then brings about, and only of sandboxes it concerns."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from supervisor_middleware.control.foresight import foresee
from supervisor_middleware.control.rollout import Composer
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.violation import Report
from tests.builders import NAMESPACES, a_baseline_revision, a_revision, a_sandbox, an_entry, some_settings
from tests.control.worlds import World, worlds


def conflicts(world: World) -> dict[str, Report]:
    rollout = Composer(some_settings()).roll_out(
        world.sandboxes, world.revisions, namespaces=world.namespaces, bindings=world.bindings
    )
    return dict(rollout.conflicts)


@given(worlds(), st.data())
def test_what_is_foreseen_comes_true(world: World, data: st.DataObject) -> None:
    assume(world.revisions)
    revision = data.draw(st.sampled_from(world.revisions))
    others = tuple(r for r in world.revisions if r is not revision)
    twin = replace(revision, entries=revision.entries[:1], skips=())
    before = data.draw(st.sampled_from((None, revision, twin)))
    snapshot = Snapshot(sandboxes=world.sandboxes, namespaces=world.namespaces)
    found = foresee(revision, before=before, others=others, snapshot=snapshot)
    later = conflicts(world)
    earlier = conflicts(replace(world, revisions=others if before is None else (*others, before)))
    assert found.own == later.get(revision.uid, Report())
    newly = {r.policy for r in others if r.uid in later and r.uid not in earlier}
    assert newly <= set(found.broken) <= {r.policy for r in others if r.uid in later}


def test_a_change_that_changes_nothing_breaks_nobody() -> None:
    baseline, tenant = a_baseline_revision(skips=["a.example.com"]), a_revision()
    snapshot = Snapshot(sandboxes=(a_sandbox(),), namespaces=NAMESPACES)
    assert foresee(baseline, before=None, others=[tenant], snapshot=snapshot).broken == (tenant.policy,)
    assert foresee(baseline, before=baseline, others=[tenant], snapshot=snapshot).broken == ()


def test_a_policy_that_selects_nobody_meets_nobody() -> None:
    one, two = a_revision(name="one"), a_revision(an_entry("other"), name="two")
    empty = Snapshot(namespaces=NAMESPACES)
    unknown = Snapshot(sandboxes=(a_sandbox(),))
    for snapshot in (empty, unknown):
        found = foresee(two, before=None, others=[one], snapshot=snapshot)
        assert (found.own, found.broken) == (Report(), ())
