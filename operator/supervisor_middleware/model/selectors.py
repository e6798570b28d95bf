"""Kubernetes label selectors, evaluated. PURE. An empty selector selects everything."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


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
        return all(r.holds(labels) for r in self.requirements)
