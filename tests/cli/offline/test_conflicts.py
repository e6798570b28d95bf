"""Offline conflicts: what is certain is a violation, what is possible a warning, and nothing that can be is left out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.cli.offline import clashes, conflicts
from supervisor_middleware.model.limits import MAX_STAGES
from supervisor_middleware.model.revision import Entry, Revision, Skip
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, Sandbox
from supervisor_middleware.model.selectors import Operator, Requirement, Selector, implies, meet
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.violation import Report, Subject
from supervisor_middleware.sources.folder import UNDATED
from tests.builders import NAMESPACE, NOW, a_revision, a_sandbox, an_entry

KEYS, VALUES = ("app", "tier"), ("a", "b")


def found(
    *revisions: Revision,
    sandboxes: Sequence[Sandbox] = (),
    namespaces: Mapping[str, Mapping[str, str]] | None = None,
) -> Report:
    names = {r.policy.namespace for r in revisions if r.policy.namespace}
    labels = {n: {NAMESPACE_LABEL: n} for n in names}
    described = {n: {**given, NAMESPACE_LABEL: n} for n, given in (namespaces or {}).items()}
    snapshot = Snapshot(
        sandboxes=tuple(sandboxes), namespaces={**labels, **described}, described=frozenset(described)
    )
    return conflicts.conflicts(snapshot, revisions)


def a_policy_of(name: str, *entries: Entry, labels: Mapping[str, str] | None = None) -> Revision:
    return a_revision(*entries, name=name, labels=labels, created_at=UNDATED)


def a_baseline(name: str, *entries: Entry, labels: Mapping[str, str] | None = None) -> Revision:
    revision = a_policy_of(name, *entries, labels=labels)
    return replace(revision, policy=Subject(kind="ClusterSandboxPolicy", name=name))


def several(count: int, prefix: str, *, first: int = 0) -> list[Entry]:
    return [an_entry(f"{prefix}{n}", order=first + n) for n in range(count)]


def told(report: Report) -> set[tuple[str, str]]:
    return {(v.subject.name, v.path) for v in report.violations}


def warned(report: Report) -> set[tuple[str, str]]:
    return {(w.subject.name, w.path) for w in report.warnings}


# ------------------------------------------------------------------------------------------------------- any policies


@st.composite
def selectors(draw: st.DrawFn) -> Selector:
    asked = []
    for key in draw(st.sets(st.sampled_from(KEYS))):
        operator = draw(st.sampled_from(list(Operator)))
        values: tuple[str, ...] = ()
        if operator in {Operator.IN, Operator.NOT_IN}:
            values = tuple(sorted(draw(st.sets(st.sampled_from(VALUES), min_size=1))))
        asked.append(Requirement(key=key, operator=operator, values=values))
    return Selector(requirements=tuple(asked))


@st.composite
def policies(draw: st.DrawFn) -> list[Revision]:
    made = []
    for number in range(draw(st.integers(2, 5))):
        entries = [an_entry(f"k{number}", order=draw(st.integers(0, 3)))]
        made.append(replace(a_policy_of(f"p{number}", *entries), selector=draw(selectors())))
    return made


def every_label_set() -> list[dict[str, str]]:
    options = product((None, *VALUES, "other"), repeat=len(KEYS))
    return [{k: v for k, v in zip(KEYS, chosen, strict=True) if v is not None} for chosen in options]


@given(policies())
def test_whoever_could_conflict_hears_of_it_and_nobody_else(revisions: list[Revision]) -> None:
    report = found(*revisions)
    label_sets = every_label_set()
    for revision in revisions:
        order = revision.entries[0].order
        rivals = [r for r in revisions if r is not revision and r.entries[0].order == order]
        path = (revision.policy.name, f"spec.networkMiddlewares.{revision.entries[0].key}.order")
        meets = any(revision.selector.selects(i) and r.selector.selects(i) for r in rivals for i in label_sets)
        is_certain = any(
            implies(other.selector, revision.selector) and implies(other.selector, rival.selector)
            for rival in rivals
            for other in revisions
        )
        assert (path in told(report) | warned(report)) == meets
        assert (path in told(report)) == is_certain


@given(policies(), st.lists(st.sampled_from(every_label_set()), min_size=1, max_size=3))
def test_with_sandboxes_it_is_exact(revisions: list[Revision], labels: list[dict[str, str]]) -> None:
    sandboxes = [a_sandbox(f"s{n}", labels=given) for n, given in enumerate(labels)]
    report = found(*revisions, sandboxes=sandboxes)
    expected = {
        (r.policy.name, f"spec.networkMiddlewares.{r.entries[0].key}.order")
        for s in sandboxes
        for r, other in product(revisions, repeat=2)
        if r is not other and r.entries[0].order == other.entries[0].order
        if r.selector.selects(s.labels) and other.selector.selects(s.labels)
    }
    assert told(report) == expected
    assert not report.warnings


@st.composite
def large_policies(draw: st.DrawFn) -> list[Revision]:
    """That differ in every key and order, so that only their number of stages matters."""
    made = []
    for number in range(draw(st.integers(2, 4))):
        entries = several(draw(st.integers(1, 7)), f"k{number}-", first=100 * number)
        made.append(replace(a_policy_of(f"p{number}", *entries), selector=draw(selectors())))
    return made


@given(large_policies())
def test_who_is_told_of_too_many_stages_can_have_too_many(revisions: list[Revision]) -> None:
    report = found(*revisions)
    crowded: set[str] = set()
    for labels in every_label_set():
        chosen = [r for r in revisions if r.selector.selects(labels)]
        if sum(len(r.entries) for r in chosen) > MAX_STAGES:
            crowded |= {r.policy.name for r in chosen}
    heard = {name for name, _ in told(report) | warned(report)}
    assert heard <= crowded
    pairs = [
        (a, b)
        for a, b in product(revisions, repeat=2)
        if a is not b and meet(a.selector, b.selector) is not None and len(a.entries) + len(b.entries) > MAX_STAGES
    ]
    assert {a.policy.name for a, _ in pairs} <= heard


def test_where_others_leave_no_room_for_each_other_one_more_is_still_sought() -> None:
    labels = {"small": {"tier": "a"}, "large": {"app": "a"}}
    sizes = {"every": 6, "each": 5, "small": 4, "large": 7}
    made = [
        a_policy_of(name, *several(count, f"{name}-", first=100 * number), labels=labels.get(name))
        for number, (name, count) in enumerate(sizes.items())
    ]
    report = found(*made)
    assert "small" in {name for name, _ in told(report) | warned(report)}


# ------------------------------------------------------------------------------------------------------ what is told


def test_a_warning_shows_labels_that_satisfy_both() -> None:
    coders = a_policy_of("coders", an_entry("a"), labels={"app": "coder"})
    production = a_policy_of("production", an_entry("b"), labels={"tier": "prod"})
    first, second = found(coders, production).warnings
    assert first.message.startswith("would conflict for a sandbox with the labels app=coder,tier=prod: order 0")
    assert second.subject == production.policy


def test_two_values_of_one_label_never_meet() -> None:
    report = found(a_policy_of("a", labels={"app": "x"}), a_policy_of("b", labels={"app": "y"}))
    assert report == Report()


def test_only_the_newer_is_told_where_both_say_when_they_were_created() -> None:
    older = replace(a_policy_of("older", an_entry("a")), created_at=NOW)
    newer = replace(a_policy_of("newer", an_entry("b")), created_at=NOW + timedelta(seconds=1))
    assert {name for name, _ in told(found(older, newer))} == {"newer"}
    undated = replace(newer, created_at=UNDATED)
    assert {name for name, _ in told(found(older, undated))} == {"older", "newer"}


def test_three_that_are_too_many_together_are_all_told() -> None:
    three = [a_policy_of(p, *several(4, p, first=10 * n)) for n, p in enumerate("abc")]
    report = found(*three)
    assert told(report) == {(p, "spec.networkMiddlewares") for p in "abc"}
    assert "would have 12 stages, 10 at most" in report.violations[0].message


def test_three_that_could_be_too_many_together_are_warned() -> None:
    labels = [{"app": "x"}, {"tier": "y"}, {"zone": "z"}]
    three = [
        a_policy_of(p, *several(4, p, first=10 * n), labels=given)
        for n, (p, given) in enumerate(zip("abc", labels, strict=True))
    ]
    report = found(*three)
    assert report.is_valid
    assert warned(report) == {(p, "spec.networkMiddlewares") for p in "abc"}
    assert all("the labels app=x,tier=y,zone=z" in w.message for w in report.warnings)


def test_what_selects_everything_hears_of_two_that_may_meet_on_top_of_it() -> None:
    everything = a_policy_of("everything", *several(4, "e"))
    pair = [a_policy_of(p, *several(4, p, first=10 * n), labels={p: "x"}) for n, p in enumerate("ab", 1)]
    report = found(everything, *pair)
    assert report.is_valid
    assert {name for name, _ in warned(report)} == {"everything", "a", "b"}


def test_a_host_that_another_policy_skips_is_told_to_both() -> None:
    selecting = a_policy_of("selecting", an_entry("a", include=["*.example.com"]))
    skip = Skip(path="spec.networkPolicies.db.endpoints[0]", host="db.example.com")
    skipping = replace(a_policy_of("skipping", an_entry("b", order=1, include=["x.org"])), skips=(skip,))
    assert told(found(selecting, skipping)) == {
        ("selecting", "spec.networkMiddlewares.a.endpoints"),
        ("skipping", "spec.networkPolicies.db.endpoints[0].host"),
    }


# ------------------------------------------------------------------------------------------------------------ baseline


def test_baselines_that_select_the_same_namespaces_conflict() -> None:
    report = found(a_baseline("one", an_entry("a")), a_baseline("two", an_entry("b"), labels={"tier": "prod"}))
    assert {name for name, _ in told(report)} == {"one", "two"}


def test_with_namespaces_conflicts_of_baselines_are_exact() -> None:
    one = a_baseline("one", an_entry("a"), labels={"tier": "prod"})
    two = a_baseline("two", an_entry("b"), labels={"team": "x"})
    assert warned(found(one, two))
    assert found(one, two, namespaces={"a": {"tier": "prod"}, "b": {"team": "x"}}) == Report()
    assert not found(one, two, namespaces={"a": {"tier": "prod", "team": "x"}}).is_valid


@pytest.mark.parametrize("labels", [None, {NAMESPACE_LABEL: NAMESPACE}], ids=["every namespace", "its name"])
def test_a_tenant_gives_way_to_a_baseline_that_surely_selects_its_namespace(labels: Mapping[str, str] | None) -> None:
    tenant = a_policy_of("tenant", *several(10, "t"))
    report = found(tenant, a_baseline("guard", an_entry("g"), labels=labels))
    assert told(report) == {("tenant", "spec.networkMiddlewares")}


def test_a_baseline_that_may_select_a_namespace_is_a_warning() -> None:
    tenant = a_policy_of("tenant", *several(10, "t"))
    guard = a_baseline("guard", an_entry("g"), labels={"tier": "prod"})
    report = found(tenant, guard)
    assert report.is_valid
    assert warned(report) == {("tenant", "spec.networkMiddlewares")}
    assert "would conflict in a namespace with the labels tier=prod: " in report.warnings[0].message
    assert found(tenant, guard, namespaces={NAMESPACE: {"tier": "dev"}}) == Report()
    assert not found(tenant, guard, namespaces={NAMESPACE: {"tier": "prod"}}).is_valid


def test_baselines_that_no_namespace_can_have_at_once_are_looked_at_apart() -> None:
    tenant = a_policy_of("tenant", *several(6, "t"))
    pair = [a_baseline(t, *several(3, t, first=10), labels={"tier": t}) for t in ("dev", "prod")]
    assert found(tenant, *pair) == Report()
    five = [a_baseline(t, *several(5, t, first=10), labels={"tier": t}) for t in ("dev", "prod")]
    assert len(found(tenant, *five).warnings) == 2
    elsewhere = a_baseline("elsewhere", *several(5, "e"), labels={NAMESPACE_LABEL: "another"})
    assert found(tenant, elsewhere) == Report()


def test_a_baseline_may_be_too_many_for_sandboxes_that_are_known() -> None:
    both = [a_policy_of(p, *several(5, p, first=10 * n)) for n, p in enumerate("ab")]
    guard = a_baseline("guard", an_entry("g"), labels={"tier": "prod"})
    report = found(*both, guard, sandboxes=[a_sandbox()])
    assert warned(report) == {("a", "spec.networkMiddlewares"), ("b", "spec.networkMiddlewares")}


# -------------------------------------------------------------------------------------------------------- never silent


def test_what_was_not_compared_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "LOOKS", 0)
    monkeypatch.setattr(conflicts, "_LEAST_LOOKS", 1)
    apart = [a_policy_of(p, an_entry(p, order=n), labels={p: "x"}) for n, p in enumerate("abc")]
    (warning,) = found(*apart).warnings
    assert warning.path == "spec.sandboxSelector"
    assert warning.message.startswith(
        "3 policies were not compared with every other that may select the same in team-a"
    )


def test_many_that_skip_hosts_are_not_compared_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clashes, "MAX_SKIPPING", 1)
    skip = Skip(path="spec.networkPolicies.db.endpoints[0]", host="db.example.org")
    skipping = [replace(a_baseline(p, an_entry(p, order=n)), skips=(skip,)) for n, p in enumerate("abc")]
    (warning,) = found(*skipping).warnings
    assert warning.path == "spec.namespaceSelector"
    assert "Namespace documents beside them make it exact" in warning.message


def test_very_many_of_few_stages_are_not_passed_over_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clashes, "MAX_LAID", 2)
    many = [a_policy_of(f"p{n:02}", an_entry(f"k{n}", order=n)) for n in range(12)]
    (warning,) = found(*many).warnings
    assert warning.message.startswith("12 policies were not compared with every other")
