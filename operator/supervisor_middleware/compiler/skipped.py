"""Whether a middleware config selects a `tls: skip` host. PURE.

RFC 0009 "Policy integration": a selector that overlaps such an endpoint is refused, since nobody looks inside.
Decided exactly over every host there is, with one as the example; what is too intricate to be decided in time counts
as an overlap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Final

from supervisor_middleware.model.host_sets import SEARCH_STEPS, Budget, TooComplex, find_selected
from supervisor_middleware.model.hosts import HostPattern, HostSelector, parse_patterns
from supervisor_middleware.model.revision import Skip

MAX_SHOWN: Final = 8
"""Overlaps of one selector that are told: whoever mends these finds the others."""
UNDECIDED: Final = ""
"""In place of a host: it could not be decided in time."""


@dataclass(slots=True)
class Overlaps:
    """Answers within one budget, so that no policy can cost more than its share however it is written.

    An answer counts the same whether it is found or remembered: who asked before makes no difference.
    """

    budget: Budget = field(default_factory=Budget)

    def hits(self, selector: HostSelector, skips: Sequence[Skip]) -> Iterator[tuple[Skip, str]]:
        """The skips that `selector` overlaps, each with a host: the first few, and none after an undecided one."""
        hosts = [pattern_of(skip.host) for skip in skips]
        # Mostly it overlaps none of them: one question then, instead of hundreds.
        if len(hosts) > 1 and self._common(selector, tuple(hosts)) is None:
            return
        found = ((skip, self._common(selector, (host,))) for skip, host in zip(skips, hosts, strict=True))
        for skip, host in islice((f for f in found if f[1] is not None), MAX_SHOWN):
            yield skip, host or UNDECIDED
            if not host:
                return

    def _common(self, selector: HostSelector, endpoints: tuple[HostPattern, ...]) -> str | None:
        """A host of any of them that the selector selects; None if there is none, `UNDECIDED` if nobody knows."""
        if self.budget.left < 0 and all(any("*" in str(p) for p in side) for side in (selector.include, endpoints)):
            return UNDECIDED  # only a search could tell; hosts that are spelled out cost nothing
        host, steps = _searched(selector, endpoints)
        self.budget.left -= steps
        return host if self.budget.left >= 0 or not steps else UNDECIDED


def for_example(host: str) -> str:
    """The end of a message: the counterexample, or that there is none to show."""
    return f", for example {host}" if host else "; use fewer wildcards, so that it can be decided"


@lru_cache(maxsize=4096)
def selector_of(include: tuple[str, ...], exclude: tuple[str, ...]) -> HostSelector:
    """Patterns that are known to be valid, parsed once."""
    return HostSelector(include=parse_patterns(include), exclude=parse_patterns(exclude))


@lru_cache(maxsize=4096)
def pattern_of(host: str) -> HostPattern:
    """A `tls: skip` host as a draft or a revision keeps it: a pattern, or an IPv6 literal in brackets."""
    return HostPattern((host,) if host.startswith("[") else tuple(host.split(".")))


@lru_cache(maxsize=16_384)
def _searched(selector: HostSelector, endpoints: tuple[HostPattern, ...]) -> tuple[str | None, int]:
    """The host and the steps to find it, which are the same each time.

    A tenant's policies meet anew for each of its sandboxes that differ in labels: they must not cost that each time.
    """
    budget = Budget()
    try:
        host = find_selected(inside=[[selector], [HostSelector(include=endpoints)]], budget=budget)
    except TooComplex:
        return UNDECIDED, SEARCH_STEPS + 1
    return host, SEARCH_STEPS - budget.left
