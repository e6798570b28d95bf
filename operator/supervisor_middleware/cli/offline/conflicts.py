"""Which policies of a folder conflict. PURE.

With `kind: Sandbox` documents of a namespace that is exact, of baselines with `kind: Namespace` documents. Without
them selectors are compared: policies conflict for certain where one selects whatever another does, and perhaps (a
warning that shows the labels) where some labels satisfy both. `compiler.layers` decides what a conflict is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import groupby, islice
from typing import Final

from supervisor_middleware.cli.offline.clashes import MAX_LAID, Clashes
from supervisor_middleware.cli.offline.neighbours import Group, Neighbours, grouped
from supervisor_middleware.cli.offline.scopes import shown_labels
from supervisor_middleware.control.selection import Selection
from supervisor_middleware.model.limits import MAX_BASELINE_CONFIGS, MAX_STAGES
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, Sandbox
from supervisor_middleware.model.selectors import Operator, Requirement, Selector, implies, meet
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.violation import Advice, Report, report

LOOKS: Final = 1_000_000
"""Selectors that are compared, of all policies together: what they cost grows with the policies, not their square."""
_LEAST_LOOKS: Final = 100
_MAX_BESIDE: Final = 32
"""Policies beside those of one selector: eleven already have more stages than there is room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Baseline:
    """What the platform lays in a namespace: for certain, and perhaps, each with the labels it takes."""

    certain: tuple[Revision, ...] = ()
    possible: tuple[tuple[tuple[Revision, ...], Mapping[str, str]], ...] = ()


def conflicts(snapshot: Snapshot, revisions: Sequence[Revision]) -> Report:
    """Everything that policies are told about each other."""
    baselines = [r for r in revisions if r.is_baseline]
    tenants = sorted((r for r in revisions if not r.is_baseline), key=_namespace)
    looks = max(_LEAST_LOOKS, LOOKS // max(len(revisions), 1))
    clashes = Clashes()
    _baseline_tier(snapshot, baselines, clashes, looks=looks)
    sandboxes = _by_namespace(snapshot.sandboxes)
    for namespace, found in groupby(tenants, key=_namespace):
        baseline = _baseline(namespace, snapshot, baselines)
        policies = list(found)
        if namespace in sandboxes:
            _exactly(sandboxes[namespace], policies, clashes, baseline=baseline)
        else:
            _by_selectors(policies, clashes, baseline=baseline, looks=looks)
    return report(clashes.violations, (*clashes.warnings, *_unseen(clashes)))


def _baseline_tier(snapshot: Snapshot, baselines: Sequence[Revision], clashes: Clashes, *, looks: int) -> None:
    if not snapshot.described:
        _by_selectors(baselines, clashes, baseline=_Baseline(), looks=looks)
        return
    for name in snapshot.described:
        labels = snapshot.namespaces[name]
        clashes.surely([b for b in baselines if b.selector.selects(labels)])


def _baseline(namespace: str, snapshot: Snapshot, baselines: Sequence[Revision]) -> _Baseline:
    if not baselines:
        return _Baseline()
    if namespace in snapshot.described:
        labels = snapshot.namespaces[namespace]
        return _Baseline(certain=tuple(b for b in baselines if b.selector.selects(labels)))
    named = _named(namespace)
    certain = tuple(b for b in baselines if implies(named, b.selector))
    rest = [b for b in baselines if b not in certain]
    return _Baseline(certain=certain, possible=tuple(_together(rest, named)))


def _together(baselines: list[Revision], named: Selector) -> Iterator[tuple[tuple[Revision, ...], Mapping[str, str]]]:
    """Baselines that one namespace could have at once, as many as fit, then those that did not."""
    rest = baselines
    while rest:
        chosen: list[Revision] = []
        labels: dict[str, str] = {}
        for baseline in rest:
            found = meet(named, *(c.selector for c in chosen), baseline.selector)
            if found is not None:
                chosen.append(baseline)
                labels = found
        if not chosen:
            return
        yield tuple(chosen), labels
        rest = [b for b in rest if b not in chosen]


# -------------------------------------------------------------------------------------------- sandboxes are known


def _exactly(
    sandboxes: Sequence[Sandbox], policies: Sequence[Revision], clashes: Clashes, *, baseline: _Baseline
) -> None:
    selection = Selection()
    selection.update(sandboxes, policies, {s.namespace: {} for s in sandboxes})
    found = {tuple(r.uid for r in selected): selected for s in sandboxes if (selected := selection.selecting(s.key))}
    for selected in found.values():
        clashes.surely(selected, beneath=baseline.certain)
        _perhaps_beneath(selected, selected, clashes, baseline=baseline)


# ------------------------------------------------------------------------------------------- only selectors are known


def _by_selectors(policies: Sequence[Revision], clashes: Clashes, *, baseline: _Baseline, looks: int) -> None:
    groups = [g for g in grouped(policies) if meet(g.selector) is not None]
    if len(policies) < 2 and not (baseline.certain or baseline.possible):
        return
    neighbours = Neighbours(groups)
    beside: list[tuple[Group, list[Revision], list[Group]]] = []
    for group in groups:
        near = list(islice(neighbours.of(group), looks + 1))
        wider = [g for g in near if g.keys <= group.keys and implies(group.selector, g.selector)]
        others = [r for g in wider for r in g.policies]
        # What selects everything is met by everybody: who meets it finds it from the other side.
        if (len(near) > looks and group.keys) or len(others) > _MAX_BESIDE:
            clashes.unseen.update((r.uid, r) for r in group.policies)
        members = [*group.policies, *others[:_MAX_BESIDE]]
        clashes.surely(members, beneath=baseline.certain)
        surely = {id(g) for g in wider}
        beside.append((group, members, [g for g in near if id(g) not in surely]))
    for group, members, near in beside:
        _perhaps_beneath(group.policies, members, clashes, baseline=baseline)
        _perhaps_pairs(group, near, clashes)
        _perhaps_crowded(group, members, near, clashes=clashes, baseline=baseline)


def _perhaps_pairs(group: Group, near: Iterable[Group], clashes: Clashes) -> None:
    for other in near:
        pairs = [pair for pair in group.clashing(other) if clashes.is_news(*pair)]
        if not pairs or (group.keys <= other.keys and implies(other.selector, group.selector)):
            continue
        labels = meet(group.selector, other.selector)
        if labels is not None:
            for revision, clashing in pairs:
                clashes.perhaps(revision, clashing, where=_where(revision, labels))


def _perhaps_crowded(
    group: Group, members: Sequence[Revision], near: Sequence[Group], *, clashes: Clashes, baseline: _Baseline
) -> None:
    """The largest that fit: if they do not make it too many, hardly any do."""
    taken = min(sum(len(b.entries) for b in baseline.certain), MAX_BASELINE_CONFIGS)
    room = (MAX_BASELINE_CONFIGS if members[0].is_baseline else MAX_STAGES) - taken
    total = sum(len(r.entries) for r in members)
    largest = nlargest(_MAX_BESIDE, near, key=lambda g: g.stages)
    if total + sum(g.stages for g in largest) <= room:
        return
    chosen: list[Group] = []
    for other in largest:
        if not all(g.may_meet(other) for g in chosen):
            continue
        labels = meet(group.selector, *(g.selector for g in chosen), other.selector)
        if labels is None:
            continue
        chosen.append(other)
        total += other.stages
        if total > room:
            everyone = [*(r for g in chosen for r in g.policies[:MAX_LAID]), *members[:MAX_LAID]]
            for revision in group.policies:
                clashes.perhaps_crowded(revision, everyone, beneath=baseline.certain, where=_where(revision, labels))
            return


def _perhaps_beneath(
    policies: Iterable[Revision], members: Sequence[Revision], clashes: Clashes, *, baseline: _Baseline
) -> None:
    for possible, labels in baseline.possible:
        where, beneath = _in_namespace(labels), (*baseline.certain, *possible)
        is_crowded = sum(len(r.entries) for r in (*members, *beneath)) > MAX_STAGES
        for revision in policies:
            clashes.perhaps_beneath(revision, beneath, where=where)
            if is_crowded:
                clashes.perhaps_crowded(revision, members[:MAX_LAID], beneath=beneath, where=where)


# ------------------------------------------------------------------------------------------------------------ words


def _where(revision: Revision, labels: Mapping[str, str]) -> str:
    if revision.is_baseline:
        return _in_namespace(labels)
    return f"for a sandbox with the labels {shown_labels(labels)}" if labels else "for a sandbox without labels"


def _in_namespace(labels: Mapping[str, str]) -> str:
    told = {key: value for key, value in labels.items() if key != NAMESPACE_LABEL} or labels
    return f"in a namespace with the labels {shown_labels(told)}" if told else "in a namespace without labels"


def _unseen(clashes: Clashes) -> Iterator[Advice]:
    """Said, never silent: where there are too many to compare all of them."""
    ordered = sorted(clashes.unseen.values(), key=lambda r: (_namespace(r), r.policy.name))
    for namespace, found in groupby(ordered, key=_namespace):
        policies = list(found)
        field, documents = ("sandboxSelector", "Sandbox") if namespace else ("namespaceSelector", "Namespace")
        counted = "1 policy was" if len(policies) == 1 else f"{len(policies)} policies were"
        place = f" in {namespace}" if namespace else ""
        message = (
            f"{counted} not compared with every other that may select the same{place}, "
            f"there are too many; {documents} documents beside them make it exact"
        )
        yield Advice(subject=policies[0].policy, path=f"spec.{field}", message=message)


def _named(namespace: str) -> Selector:
    return Selector(requirements=(Requirement(key=NAMESPACE_LABEL, operator=Operator.IN, values=(namespace,)),))


def _namespace(revision: Revision) -> str:
    return revision.policy.namespace or ""


def _by_namespace(sandboxes: Iterable[Sandbox]) -> dict[str, list[Sandbox]]:
    found: dict[str, list[Sandbox]] = {}
    for sandbox in sandboxes:
        found.setdefault(sandbox.namespace, []).append(sandbox)
    return found
