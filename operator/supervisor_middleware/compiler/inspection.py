"""Which hosts a chain looks at, and how long that may take. PURE: exact over every host there is, with an example.

What is too intricate to be told apart within the budget is told as the worse case.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from supervisor_middleware.compiler.skipped import UNDECIDED
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.host_sets import Budget, TooComplex, find_selected
from supervisor_middleware.model.hosts import HostPattern, HostSelector
from supervisor_middleware.model.limits import CHAIN_TIMEOUT

_NO_TIME: Final = timedelta(0)


class Extent(StrEnum):
    """How much of a set of hosts is selected."""

    ALL = "all"
    PART = "part"
    NONE = "none"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How much of an endpoint's hosts is selected; `missed` is a host that is not, `UNDECIDED` if nobody knows."""

    extent: Extent
    missed: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether no host is left out; also of an endpoint that no host can have."""
        return self.missed is None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The longest a request can wait for middleware, and a host where it can.

    Without a host nothing waits; `UNDECIDED`: at most so long, where is not known.
    """

    time: timedelta = _NO_TIME
    host: str | None = None


def guards(stage: Stage) -> bool:
    """Whether nothing passes `stage` unseen: it inspects, or it refuses."""
    return stage.unresolved is None or stage.on_error is OnError.FAIL_CLOSED


def guarding(stages: Iterable[Stage]) -> tuple[HostSelector, ...]:
    """The selectors of the stages that guard."""
    return tuple(s.selector for s in stages if guards(s))


def reach(selectors: Sequence[HostSelector], endpoint: HostPattern, *, budget: Budget) -> Reach:
    """How much of `endpoint`, a pattern or an IPv6 literal, the selectors together cover."""
    whole = [HostSelector(include=(endpoint,))]
    try:
        missed = find_selected(inside=[whole], outside=selectors, budget=budget)
        if missed is None:
            return Reach(extent=Extent.ALL)
        is_touched = find_selected(inside=[whole, selectors], budget=budget) is not None
    except TooComplex:
        return Reach(extent=Extent.UNDECIDED, missed=UNDECIDED)
    return Reach(extent=Extent.PART if is_touched else Extent.NONE, missed=missed)


def meets(selector: HostSelector, endpoints: Sequence[HostPattern], *, budget: Budget) -> bool:
    """Whether `selector` selects a host of one of the endpoints; it does if that cannot be decided."""
    try:
        return find_selected(inside=[[selector], [HostSelector(include=tuple(endpoints))]], budget=budget) is not None
    except TooComplex:
        return True


def worst_case(stages: Iterable[Stage], *, budget: Budget | None = None) -> WorstCase:
    """The host whose chain may take longest: the sum of its stages' timeouts, at most the chain's own."""
    times: dict[HostSelector, timedelta] = {}
    for stage in stages:
        if stage.unresolved is None:
            times[stage.selector] = times.get(stage.selector, _NO_TIME) + stage.timeout
    search = _Longest(budget=budget or Budget())
    slowest_first = sorted(times.items(), key=lambda item: -item[1])
    try:
        search.descend((), slowest_first, time=_NO_TIME, host=None)
    except TooComplex:
        return WorstCase(time=min(sum(times.values(), _NO_TIME), CHAIN_TIMEOUT), host=UNDECIDED)
    return WorstCase(time=min(search.time, CHAIN_TIMEOUT), host=search.host)


@dataclass(slots=True)
class _Longest:
    """Branch and bound over which selectors meet in one host."""

    budget: Budget
    time: timedelta = _NO_TIME
    host: str | None = None

    def descend(
        self,
        together: tuple[HostSelector, ...],
        rest: Sequence[tuple[HostSelector, timedelta]],
        *,
        time: timedelta,
        host: str | None,
    ) -> None:
        """Look for a longer one among the hosts that all of `together` select, of which `host` is one."""
        if min(sum((t for _, t in rest), time), CHAIN_TIMEOUT) <= self.time:
            return
        if not rest:
            self.time, self.host = time, host
            return
        (selector, more), *others = rest
        with_it = (*together, selector)
        met = find_selected(inside=[[s] for s in with_it], budget=self.budget)
        if met is not None:
            self.descend(with_it, others, time=time + more, host=met)
        self.descend(together, others, time=time, host=host)
