"""Sets of hosts: whether selectors and patterns have a host in common, or one that others lack. PURE.

Every answer is exact, and a host to show for it: one that `normalize_host` returns, so a name, an IPv4 address or an
IPv6 literal. Names come first, then the shortest; the same question has the same answer.

The search goes through all hosts that the patterns tell apart. Hostile wildcards make them exponentially many, so a
`Budget` bounds it; callers fail closed on `TooComplex`: they assume that there is such a host.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import or_
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.host_automata import IPV4_ADDRESSES, NAMES, Automaton, Builder, Grammar, Positions
from supervisor_middleware.model.host_questions import Question, is_host
from supervisor_middleware.model.hosts import HostPattern, HostSelector
from supervisor_middleware.model.limits import MAX_HOST_LENGTH, MAX_LABEL_LENGTH

SEARCH_STEPS: Final = 40_000
"""Of one policy: a few tenths of a second, which a webhook can spend on it."""

# Measured: a step is some five microseconds.
_POSITIONS_LAID_OUT_PER_STEP: Final = 8
_POSITIONS_READ_PER_STEP: Final = 16_384
_SELECTIONS_PER_STEP: Final = 16
_COMPARISONS_PER_STEP: Final = 32


class TooComplex(InvalidInput):
    """The patterns have too many wildcards to be told apart within the budget: assume the worse answer."""


class Budget:
    """The steps that searches may still take; share one over all questions about one policy."""

    __slots__ = ("left",)

    def __init__(self, steps: int = SEARCH_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take so many steps.

        Raises:
            TooComplex: fewer are left.
        """
        self.left -= steps
        if self.left < 0:
            raise TooComplex("the host patterns are too complex to compare; use fewer wildcards")


def find_host(
    *,
    inside: Sequence[Collection[HostPattern]],
    outside: Collection[HostPattern] = (),
    budget: Budget | None = None,
) -> str | None:
    """A host that a pattern of each group in `inside` matches and none in `outside` does.

    Raises:
        TooComplex: not decided within the budget.
    """
    return find_selected(
        inside=[[HostSelector(include=tuple(group))] for group in inside],
        outside=[HostSelector(include=tuple(outside))],
        budget=budget,
    )


def find_selected(
    *,
    inside: Sequence[Collection[HostSelector]],
    outside: Collection[HostSelector] = (),
    budget: Budget | None = None,
) -> str | None:
    """A host that a selector of each group in `inside` selects and none in `outside` does.

    Raises:
        TooComplex: not decided within the budget.
    """
    whole = Question(inside=tuple(map(tuple, inside)), outside=tuple(outside))
    question = whole.simplified()
    hosts = question.literal_hosts()
    if hosts is not None:
        return next(filter(question.holds_for, hosts), None)
    search = _Search.of(question.named(), budget or Budget())
    name = search.first(NAMES)
    address = search.first(IPV4_ADDRESSES) if name is None or _resembles_address(name) else None
    if address is not None:
        return address
    if name is not None:
        return _without_hyphens_at_ends(name, question)
    return next(filter(whole.holds_for, whole.ipv6_hosts()), None)


def lost_host(
    *, before: Collection[HostSelector], after: Collection[HostSelector], budget: Budget | None = None
) -> str | None:
    """A host that some selector in `before` selects and none in `after` does.

    Raises:
        TooComplex: not decided within the budget.
    """
    budget = budget or Budget()
    # Selectors mostly change in one part, and the exclusions that stayed are what makes a search long.
    changed = [selector for selector in before if not any(_covers(other, selector, budget) for other in after)]
    return find_selected(inside=[changed], outside=after, budget=budget)


def _covers(other: HostSelector, selector: HostSelector, budget: Budget) -> bool:
    """Whether `other` includes all that `selector` includes and excludes nothing else, so that it selects as much."""
    return (
        set(other.exclude) <= set(selector.exclude)
        and find_host(inside=[selector.include], outside=other.include, budget=budget) is None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """A selector over the positions of an automaton."""

    include: Positions
    exclude: Positions

    def selects(self, bits: int) -> bool:
        return bool(bits & self.include.finals) and not bits & self.exclude.finals

    def may_select(self, bits: int) -> bool:
        return bool(bits & self.include.states) and not bits & self.exclude.sinks

    def must_select(self, bits: int) -> bool:
        return bool(bits & self.include.sinks) and not bits & self.exclude.states


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    automaton: Automaton
    inside: tuple[tuple[_Selection, ...], ...]
    outside: tuple[_Selection, ...]
    budget: Budget
    wanted: int
    """The positions of which more is better; of all others, fewer."""
    cost: int
    """Of reading one character."""

    @classmethod
    def of(cls, question: Question, budget: Budget) -> "_Search":
        builder = Builder()

        def laid_out(selectors: tuple[HostSelector, ...]) -> tuple[_Selection, ...]:
            return tuple(
                _Selection(include=builder.add(selector.include), exclude=builder.add(selector.exclude))
                for selector in selectors
            )

        inside = tuple(map(laid_out, question.inside))
        outside = laid_out(question.outside)
        including = list(chain(*inside))
        wanted = [*(one.include.states for one in including), *(other.exclude.states for other in outside)]
        automaton = builder.build()
        budget.spend(automaton.size // _POSITIONS_LAID_OUT_PER_STEP)
        return cls(
            automaton=automaton,
            inside=inside,
            outside=outside,
            budget=budget,
            wanted=reduce(or_, wanted, 0),
            cost=1 + automaton.size // _POSITIONS_READ_PER_STEP + len(wanted) // _SELECTIONS_PER_STEP,
        )

    def first(self, grammar: Grammar) -> str | None:
        """The shortest host of this form."""
        visited = _Visited(wanted=self.wanted)
        frontier = [(self.automaton.start, 0, 0, "")]
        for _ in range(MAX_HOST_LENGTH):
            following = []
            for bits, state, label, text in frontier:
                self.budget.spend(self.cost)
                for character, next_bits, next_state in self.automaton.read(bits, grammar.steps[state]):
                    next_label = 0 if character == "." else label + 1
                    self.budget.spend(self.cost + visited.comparisons(next_bits, next_state) // _COMPARISONS_PER_STEP)
                    if next_label > MAX_LABEL_LENGTH or not visited.add(next_bits, next_state, next_label):
                        continue
                    if self._is_lost(next_bits):
                        continue
                    if next_state in grammar.accepting and self._is_found(next_bits):
                        return character + text
                    following.append((next_bits, next_state, next_label, character + text))
            frontier = following
        return None

    def _is_found(self, bits: int) -> bool:
        return all(any(selection.selects(bits) for selection in group) for group in self.inside) and not any(
            selection.selects(bits) for selection in self.outside
        )

    def _is_lost(self, bits: int) -> bool:
        return any(selection.must_select(bits) for selection in self.outside) or not all(
            any(selection.may_select(bits) for selection in group) for group in self.inside
        )


class _Visited:
    """What the search has come by, in the order of the lengths of hosts."""

    __slots__ = ("_seen", "_wanted")

    def __init__(self, *, wanted: int) -> None:
        self._wanted = wanted
        self._seen: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)

    def comparisons(self, bits: int, state: int) -> int:
        """How many it takes to add this."""
        return len(self._seen[bits & self._wanted, state])

    def add(self, bits: int, state: int, label: int) -> bool:
        """Whether this can go on in any way that nothing before it can, whose host is no longer.

        With a label no longer and nothing unwanted that is not here too, the other can go on as this one can.
        """
        alike, unwanted = self._seen[bits & self._wanted, state], bits & ~self._wanted
        if any(other & unwanted == other and other_label <= label for other, other_label in alike):
            return False
        alike.append((unwanted, label))
        return True


def _resembles_address(name: str) -> bool:
    """Whether it is `10.0.0.a`: whoever writes `10.0.0.*` thinks of addresses."""
    labels = name.split(".")
    return len(labels) == 4 and any(map(str.isdecimal, labels))


def _without_hyphens_at_ends(name: str, question: Question) -> str:
    """A `*` may stand for nothing, but `db-.example.com` is no host that anybody would expect."""
    labels = name.split(".")
    for place, label in enumerate(labels):
        fuller = f"{'a' * label.startswith('-')}{label}{'a' * label.endswith('-')}"
        attempt = ".".join([*labels[:place], fuller, *labels[place + 1 :]])
        if is_host(attempt) and question.holds_for(attempt):
            labels[place] = fuller
    return ".".join(labels)
