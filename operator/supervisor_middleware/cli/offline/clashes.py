"""What policies of one tier are told that select the same sandboxes, offline. PURE.

`compiler.layers` decides and words every conflict; here is only who is laid before whom. Nobody is older unless both
say when they were created, so of two that conflict both are told. Each field is told once, with one other policy that
it conflicts with: it is to be mended whoever else there is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from supervisor_middleware.compiler.layers import layer
from supervisor_middleware.model.limits import MAX_BASELINE_CONFIGS, MAX_STAGES
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.violation import Advice, Violation
from supervisor_middleware.sources.folder import UNDATED

CROWDED_PATH: Final = "spec.networkMiddlewares"
MAX_SKIPPING: Final = 32
"""Policies with tls: skip that one policy is compared with; the others are counted in `Clashes.unseen`."""
MAX_LAID: Final = 64
"""Policies of the same sandboxes among which those are sought that leave another one no room."""

Feature: TypeAlias = tuple[str, str | int]
"""Something of a policy that is told once: an order or a key that it has, or what its whole number of stages does."""
_CROWD: Final[Feature] = ("stages", 0)
_BENEATH: Final[Feature] = ("baseline", 0)


@dataclass(slots=True)
class Clashes:
    """Everything found so far, and what has been told to whom, so that nothing is told twice."""

    violations: list[Violation] = field(default_factory=list)
    warnings: list[Advice] = field(default_factory=list)
    unseen: dict[str, Revision] = field(default_factory=dict)
    _told: set[tuple[str, Feature]] = field(default_factory=set)
    _compared: set[tuple[str, str]] = field(default_factory=set)

    def surely(self, members: Sequence[Revision], *, beneath: Sequence[Revision] = ()) -> None:
        """`members` select one same sandbox, and the baselines `beneath` its namespace."""
        if len(members) < 2 and not beneath:
            return
        ordered = sorted(members, key=_age)
        for revision in ordered:
            self._violate(_BENEATH, revision, against_baseline(revision, beneath))
        for holders in _sharing(ordered).values():
            for n, revision in enumerate(holders):
                self._pair(revision, holders[0 if n else 1])
        self._skipping(ordered)
        total = sum(len(r.entries) for r in ordered)
        if total + _taken(beneath) > _room(ordered):
            for revision in ordered:
                self._violate(_CROWD, revision, crowding(revision, ordered[:MAX_LAID], beneath=beneath))
            if len(ordered) > MAX_LAID:
                heard = {uid for uid, _ in self._told}
                self.unseen.update((r.uid, r) for r in ordered if r.uid not in heard)

    def is_news(self, revision: Revision, other: Revision) -> bool:
        """Whether a policy would hear of something new were it compared with `other`."""
        if revision.skips or other.skips:
            return True
        return any((revision.uid, s) not in self._told for s in features(revision) & features(other))

    def perhaps(self, revision: Revision, other: Revision, *, where: str) -> None:
        """Both would select a sandbox as `where` describes."""
        self._told.update((revision.uid, s) for s in features(revision) & features(other))
        self._advise(revision, laid(revision, (other,)), where=where)

    def perhaps_crowded(
        self, revision: Revision, others: Sequence[Revision], *, beneath: Sequence[Revision], where: str
    ) -> None:
        """They would select a sandbox as `where` describes, on top of the baselines `beneath`."""
        if (revision.uid, _CROWD) not in self._told:
            self._advise(revision, crowding(revision, others, beneath=beneath), where=where)

    def perhaps_beneath(self, revision: Revision, beneath: Sequence[Revision], *, where: str) -> None:
        """The baselines would select the policy's namespace."""
        if (revision.uid, _BENEATH) not in self._told:
            self._advise(revision, against_baseline(revision, beneath), where=where)

    # ---------------------------------------------------------------------------------------------------- inside

    def _pair(self, revision: Revision, other: Revision) -> None:
        shared = features(revision) & features(other)
        if any((revision.uid, s) not in self._told for s in shared):
            self._told.update((revision.uid, s) for s in shared)
            self._compare(revision, other)

    def _skipping(self, ordered: Sequence[Revision]) -> None:
        skipping = [r for r in ordered if r.skips]
        for other in skipping[:MAX_SKIPPING]:
            for revision in ordered:
                if revision is not other:
                    self._compare(revision, other)
                    self._compare(other, revision)
        if len(skipping) > MAX_SKIPPING:
            self.unseen.update((r.uid, r) for r in ordered)

    def _compare(self, revision: Revision, other: Revision) -> None:
        if (revision.uid, other.uid) not in self._compared:
            self._compared.add((revision.uid, other.uid))
            if not _is_older(revision, other):
                self._violate(None, revision, laid(revision, (other,)))

    def _violate(self, feature: Feature | None, revision: Revision, found: Iterable[Violation]) -> None:
        if feature is not None and (revision.uid, feature) in self._told:
            return
        for violation in found:
            self.violations.append(violation)
            self._tell(feature, revision, violation.path)

    def _advise(self, revision: Revision, found: Iterable[Violation], *, where: str) -> None:
        for violation in found:
            message = f"would conflict {where}: {violation.message}"
            self.warnings.append(Advice(subject=revision.policy, path=violation.path, message=message))
            self._tell(None, revision, violation.path)

    def _tell(self, feature: Feature | None, revision: Revision, path: str) -> None:
        told = _CROWD if path == CROWDED_PATH else feature
        if told is not None:
            self._told.add((revision.uid, told))


def features(revision: Revision) -> frozenset[Feature]:
    """What no other policy of the same sandboxes may have too."""
    orders: Iterator[Feature] = (("order", e.order) for e in revision.entries)
    return frozenset(orders) | {("key", e.key) for e in revision.entries}


def laid(revision: Revision, others: Sequence[Revision], *, beneath: Sequence[Revision] = ()) -> Iterator[Violation]:
    """What a policy is told that comes after `others`."""
    dated = [_dated(r, number) for number, r in enumerate((*others, revision))]
    layers = layer([*beneath, *dated])
    yield from (v for v in layers.violations if v.subject == revision.policy)


def against_baseline(revision: Revision, beneath: Sequence[Revision]) -> Iterator[Violation]:
    """What a tenant's policy is told, were it alone on top of the platform's baseline."""
    if not beneath:
        return
    blind = revision.skips or any(b.skips for b in beneath)
    if blind or len(revision.entries) + _taken(beneath) > MAX_STAGES:
        yield from laid(revision, (), beneath=beneath)


def crowding(
    revision: Revision, others: Sequence[Revision], *, beneath: Sequence[Revision] = ()
) -> Iterator[Violation]:
    """What a policy is told that comes last, when there is no room left."""
    room = _room((revision,)) - _taken(beneath)
    found = laid(revision, list(_enough(revision, others, room=room)), beneath=beneath)
    yield from (v for v in found if v.path == CROWDED_PATH)


def _enough(revision: Revision, others: Sequence[Revision], *, room: int) -> Iterator[Revision]:
    """Others that stand together and leave no room, the largest first: what conflicts with them is left out."""
    taken, total = set(features(revision)), 0
    for other in sorted(others, key=lambda r: -len(r.entries)):
        mine, count = features(other), len(other.entries)
        if other is revision or _is_older(revision, other) or not taken.isdisjoint(mine) or total + count > room:
            continue
        yield other
        taken |= mine
        total += count
        if total + len(revision.entries) > room:
            return


def _sharing(ordered: Sequence[Revision]) -> dict[Feature, list[Revision]]:
    holders: dict[Feature, list[Revision]] = {}
    for revision in ordered:
        for feature in features(revision):
            holders.setdefault(feature, []).append(revision)
    return {feature: found for feature, found in holders.items() if len(found) > 1}


def _room(members: Sequence[Revision]) -> int:
    return MAX_BASELINE_CONFIGS if members and members[0].is_baseline else MAX_STAGES


def _taken(beneath: Sequence[Revision]) -> int:
    return min(sum(len(b.entries) for b in beneath), MAX_BASELINE_CONFIGS)


def _age(revision: Revision) -> tuple[datetime, str, str]:
    return revision.created_at, revision.policy.namespace or "", revision.policy.name


def _is_older(revision: Revision, other: Revision) -> bool:
    """Whether it stands and the other has to give way: only where both say since when they are there."""
    return UNDATED not in {revision.created_at, other.created_at} and _age(revision) < _age(other)


def _dated(revision: Revision, number: int) -> Revision:
    return replace(revision, created_at=UNDATED + timedelta(seconds=number))
