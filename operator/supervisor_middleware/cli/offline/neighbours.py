"""Which policies of a tier could select what another one selects, without looking at every pair. PURE."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from supervisor_middleware.cli.offline.clashes import Feature, features
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.selectors import Operator, Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Policies of one selector. `keys` are the labels it speaks of, `asked` the values it asks for.

    `features` are what no other policy may have where they meet, of each policy and of all; `stages` of all.
    """

    selector: Selector
    policies: Sequence[Revision]
    keys: frozenset[str]
    asked: Mapping[str, tuple[str, ...]]
    features: Sequence[frozenset[Feature]]
    every_feature: frozenset[Feature]
    is_skipping: bool
    stages: int

    def may_meet(self, other: "Group") -> bool:
        """Whether they ask for no values that differ: quick, and no more than a first look."""
        return all(
            key not in other.asked or not frozenset(values).isdisjoint(other.asked[key])
            for key, values in self.asked.items()
        )

    def clashing(self, other: "Group") -> Iterator[tuple[Revision, Revision]]:
        """One of each that would conflict where they meet, were it not only for the number of their stages."""
        is_skipping = self.is_skipping or other.is_skipping
        if not is_skipping and self.every_feature.isdisjoint(other.every_feature):
            return
        for mine, of_mine in zip(self.policies, self.features, strict=True):
            for theirs, of_theirs in zip(other.policies, other.features, strict=True):
                if mine.skips or theirs.skips or not of_mine.isdisjoint(of_theirs):
                    yield mine, theirs


class Neighbours:
    """Groups by a value that they ask for, of the label that most of them speak of."""

    def __init__(self, groups: Sequence[Group]) -> None:
        counts = Counter(key for g in groups for key in g.asked)
        self._anywhere: list[Group] = []
        self._at: dict[str, dict[str, list[Group]]] = {}
        self._all: dict[str, list[Group]] = {}
        for group in groups:
            if not group.asked:
                self._anywhere.append(group)
                continue
            label = min(group.asked, key=lambda key: (-counts[key], key))
            self._all.setdefault(label, []).append(group)
            for value in group.asked[label]:
                self._at.setdefault(label, {}).setdefault(value, []).append(group)

    def of(self, group: Group) -> Iterator[Group]:
        """Every other group that may select the same, each once."""
        yield from (g for g in self._anywhere if g is not group)
        for label, everyone in self._all.items():
            values = group.asked.get(label)
            if values is None:
                yield from (g for g in everyone if g is not group)
                continue
            at = self._at[label]
            found = {id(g): g for value in values for g in at.get(value, ())}
            yield from (g for g in found.values() if g is not group)


def grouped(revisions: Sequence[Revision]) -> list[Group]:
    """The policies by selector, in their order."""
    of: dict[Selector, list[Revision]] = {}
    for revision in revisions:
        of.setdefault(revision.selector, []).append(revision)
    return [_group(selector, policies) for selector, policies in of.items()]


def _group(selector: Selector, policies: Sequence[Revision]) -> Group:
    asked = {r.key: r.values for r in selector.requirements if r.operator is Operator.IN}
    keys = frozenset(r.key for r in selector.requirements)
    of_each = [features(r) for r in policies]
    return Group(
        selector=selector,
        policies=policies,
        keys=keys,
        asked=asked,
        features=of_each,
        every_feature=frozenset[Feature]().union(*of_each),
        is_skipping=any(r.skips for r in policies),
        stages=sum(len(r.entries) for r in policies),
    )
