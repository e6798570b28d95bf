"""Example hosts of selectors, cheaply. PURE: what is plain from the patterns is not searched for.

Validation asks this of every policy, and most have selectors that are plainly apart or plainly alike; only what is
neither is decided exactly, within one budget.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, product
from typing import Final

from supervisor_middleware.compiler.skipped import selector_of
from supervisor_middleware.model.host_sets import Budget, find_selected
from supervisor_middleware.model.hosts import HostPattern, HostSelector, normalize_host

_SEARCH_STEPS: Final = 5_000
"""Some hundredths of a second: a warning is not worth more, and nobody is worse off without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A selector, and of its hosts those that anybody would think of: one for each pattern it includes."""

    selector: HostSelector
    likely: tuple[str, ...]


@dataclass(slots=True)
class Witnesses:
    """Answers about the selectors of one policy."""

    budget: Budget = field(default_factory=lambda: Budget(_SEARCH_STEPS))

    def shared(self, *selections: Selection) -> str | None:
        """A host that every one of `selections` selects; None if there is none.

        Raises:
            TooComplex: not decided within the budget.
        """
        selectors = [s.selector for s in selections]
        if not all(_may_meet(a, b) for a, b in combinations(selectors, 2)):
            return None
        for selection in selections:
            others = [s for s in selectors if s is not selection.selector]
            for host in selection.likely:
                if all(selector.selects(host) for selector in others):
                    return host
        return find_selected(inside=[[selector] for selector in selectors], budget=self.budget)


@lru_cache(maxsize=4096)
def selection_of(include: tuple[str, ...], exclude: tuple[str, ...] = ()) -> Selection:
    """Of patterns that are known to be valid."""
    return select(selector_of(include, exclude))


def select(selector: HostSelector) -> Selection:
    """Of a selector that is parsed."""
    return Selection(selector=selector, likely=tuple(_likely(selector)))


def _likely(selector: HostSelector) -> Iterator[str]:
    for pattern in selector.include:
        labels = ("a" if label == "**" else label.replace("*", "a") for label in pattern.labels)
        try:
            host = normalize_host(".".join(labels))
        except ValueError:  # such as a.1, which would be an address
            continue
        if not any(excluded.matches(host) for excluded in selector.exclude):
            yield host


def _may_meet(one: HostSelector, other: HostSelector) -> bool:
    """False where no host ends as both want it to."""
    return any(_end_alike(a, b) for a, b in product(one.include, other.include))


def _end_alike(one: HostPattern, other: HostPattern) -> bool:
    for a, b in zip(reversed(one.labels), reversed(other.labels), strict=False):
        if "*" in a or "*" in b:
            return True
        if a != b:
            return False
    return len(one.labels) == len(other.labels)
