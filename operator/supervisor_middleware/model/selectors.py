"""Kubernetes label selectors, evaluated and compared. PURE. An empty selector selects everything.

Requirements about different labels are independent, and there are more values than any selector names. So what a
selector asks of one label is a set that is finite or lacks finitely many values, and `meet` and `implies` are exact.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, count
from typing import Final, Self, assert_never

_ANY_VALUE: Final = "any"


class Operator(StrEnum):
    """How a requirement compares, as in `metav1.LabelSelectorRequirement`."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy it; `NotIn` also holds for an absent label, as in Kubernetes."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels
            case _:
                assert_never(self.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """All requirements must hold."""

    requirements: tuple[Requirement, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        # Asked for each sandbox and policy, and most policies require nothing.
        return not self.requirements or all(r.holds(labels) for r in self.requirements)


def meet(*selectors: Selector) -> dict[str, str] | None:
    """As few labels as satisfy all of the selectors; None if no labels do."""
    allowed = _allowed(r for s in selectors for r in s.requirements)
    if any(a.is_empty for a in allowed.values()):
        return None
    return {key: a.example for key, a in sorted(allowed.items()) if not a.absent}


def implies(a: Selector, b: Selector) -> bool:
    """Whether all labels that satisfy `a` satisfy `b`."""
    given, wanted = _allowed(a.requirements), _allowed(b.requirements)
    if any(g.is_empty for g in given.values()):
        return True
    return all(given.get(key, _ANYTHING).is_within(w) for key, w in wanted.items())


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What one label may be: absent if `absent`, and one of `values`, or with `is_inverse` any but these."""

    absent: bool
    values: frozenset[str]
    is_inverse: bool

    @classmethod
    def by(cls, requirement: Requirement) -> Self:
        values = frozenset(requirement.values)
        match requirement.operator:
            case Operator.IN:
                return cls(absent=False, values=values, is_inverse=False)
            case Operator.NOT_IN:
                return cls(absent=True, values=values, is_inverse=True)
            case Operator.EXISTS:
                return cls(absent=False, values=frozenset(), is_inverse=True)
            case Operator.DOES_NOT_EXIST:
                return cls(absent=True, values=frozenset(), is_inverse=False)
            case _:
                assert_never(requirement.operator)

    @property
    def is_empty(self) -> bool:
        return not (self.absent or self.values or self.is_inverse)

    @property
    def example(self) -> str:
        if not self.is_inverse:
            return min(self.values)
        return next(value for value in _new_values() if value not in self.values)

    def both(self, other: "_Allowed") -> "_Allowed":
        absent = self.absent and other.absent
        match self.is_inverse, other.is_inverse:
            case True, True:
                return _Allowed(absent, self.values | other.values, is_inverse=True)
            case True, False:
                return _Allowed(absent, other.values - self.values, is_inverse=False)
            case False, True:
                return _Allowed(absent, self.values - other.values, is_inverse=False)
            case _:
                return _Allowed(absent, self.values & other.values, is_inverse=False)

    def is_within(self, other: "_Allowed") -> bool:
        if self.absent and not other.absent:
            return False
        if other.is_inverse:
            return other.values <= self.values if self.is_inverse else self.values.isdisjoint(other.values)
        return not self.is_inverse and self.values <= other.values


_ANYTHING: Final = _Allowed(absent=True, values=frozenset(), is_inverse=True)


def _allowed(requirements: Iterable[Requirement]) -> dict[str, _Allowed]:
    allowed: dict[str, _Allowed] = {}
    for requirement in requirements:
        by = _Allowed.by(requirement)
        before = allowed.get(requirement.key)
        allowed[requirement.key] = by if before is None else before.both(by)
    return allowed


def _new_values() -> Iterator[str]:
    return chain((_ANY_VALUE,), (f"{_ANY_VALUE}-{n}" for n in count(2)))
