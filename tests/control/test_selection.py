"""Which policies select which sandboxes: kept up to date change by change, it is what counting anew would say."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.control.selection import Selection
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from tests.builders import NAMESPACES, a_baseline_revision, a_revision, a_sandbox
from tests.control.worlds import World, worlds


def updated(selection: Selection, world: World) -> set[str]:
    return selection.update(world.sandboxes, world.revisions, world.namespaces)


def selecting(selection: Selection, sandbox: Sandbox) -> dict[str, Revision] | None:
    found = selection.selecting(sandbox.key)
    return None if found is None else {r.uid: r for r in found}


@given(st.lists(worlds(), min_size=1, max_size=6))
def test_after_any_changes_it_is_what_every_selector_says(sequence: list[World]) -> None:
    selection = Selection()
    for world in sequence:
        updated(selection, world)
        for sandbox in world.sandboxes:
            assert selecting(selection, sandbox) == world.selecting(sandbox)
        for revision in world.revisions:
            found = selection.selected(revision.uid)
            assert len(found) == len(set(found))
            assert set(found) == world.selected(revision.uid)


@given(worlds(), worlds())
def test_a_change_concerns_those_for_whom_something_changed_and_no_others(before: World, after: World) -> None:
    selection = Selection()
    updated(selection, before)
    concerned = updated(selection, after)
    old = {s.key: (s, before.namespaces.get(s.namespace), before.selecting(s)) for s in before.sandboxes}
    new = {s.key: (s, after.namespaces.get(s.namespace), after.selecting(s)) for s in after.sandboxes}
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    # Where a namespace stays unknown nothing follows from a change, so it does not matter who is named.
    closed = {key for key in old.keys() & new.keys() if old[key][1] is None is new[key][1]}
    assert changed - closed <= concerned <= changed | closed


@given(worlds())
def test_what_is_as_it_was_concerns_nobody(world: World) -> None:
    selection = Selection()
    updated(selection, world)
    assert updated(selection, world) == set()


@given(st.lists(worlds(), min_size=1, max_size=3))
def test_it_remembers_nothing_of_what_is_gone(sequence: list[World]) -> None:
    selection = Selection()
    for world in sequence:
        updated(selection, world)
    selection.update((), (), {})
    assert selection == Selection()


def test_a_baseline_selects_by_the_labels_of_namespaces_and_a_tenant_by_those_of_sandboxes() -> None:
    ours, theirs = a_sandbox("ours"), a_sandbox("theirs", namespace="team-b", labels={"tier": "prod"})
    baseline, tenant = a_baseline_revision(labels={"tier": "prod"}), a_revision()
    selection = Selection()
    namespaces = {**NAMESPACES, "team-a": {"tier": "prod"}}
    selection.update((ours, theirs), (baseline, tenant), namespaces)
    assert selecting(selection, ours) == {baseline.uid: baseline, tenant.uid: tenant}
    assert selecting(selection, theirs) == {}


def test_nothing_is_known_of_a_sandbox_whose_namespace_is_unknown() -> None:
    sandbox, tenant = a_sandbox(), a_revision()
    selection = Selection()
    assert selection.update((sandbox,), (tenant,), {}) == {sandbox.key}
    assert selection.selecting(sandbox.key) is None
    assert selection.selected(tenant.uid) == ()
    assert selection.selecting("nobody") is None
    assert selection.update((sandbox,), (tenant,), NAMESPACES) == {sandbox.key}
    assert selecting(selection, sandbox) == {tenant.uid: tenant}


def test_labels_that_say_the_same_in_another_object_are_no_change() -> None:
    selection = Selection()
    selection.update((a := a_sandbox(),), (), {"team-a": {"tier": "prod"}})
    assert selection.update((a,), (), {"team-a": {"tier": "prod"}}) == set()
    assert selection.update((a,), (), {"team-a": {"tier": "test"}}) == {a.key}


def test_a_sandbox_that_moves_to_a_new_pod_takes_nothing_along() -> None:
    tenant = a_revision(labels={"app": "x"})
    old, new = a_sandbox(uid="1", labels={"app": "x"}), a_sandbox(uid="2", labels={"app": "y"})
    selection = Selection()
    selection.update((old,), (tenant,), NAMESPACES)
    assert selection.update((new,), (tenant,), NAMESPACES) == {"1", "2"}
    assert (selection.selecting("1"), selection.selecting("2")) == (None, ())
