"""Host patterns and hosts as automata that read a host from its end. PURE; only `model/host_sets.py` calls it.

Hosts are read backwards since patterns tell hosts apart at their end: `**.example.com` is settled for good after
twelve characters, and most patterns under other domains are dead after one.

All patterns run at once in one integer, a bit for each position in each pattern. A position is entered by reading one
character and may be kept while more are read (a wildcard), so there are no empty moves. The positions of a pattern
descend: reading on is a shift to the right.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from string import ascii_lowercase, digits
from typing import Final, NamedTuple

from supervisor_middleware.model.hosts import HostPattern

# In the order in which an arbitrary character is chosen: hosts should read well.
_CHARACTERS: Final = ascii_lowercase + digits + "-_"
_ALPHABET: Final = _CHARACTERS + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """One form of hosts, as a deterministic automaton; the states are places in `steps`, the first is 0.

    It knows characters and dots; the lengths of labels and hosts are for the caller to count.
    """

    steps: tuple[Mapping[str, int], ...]
    accepting: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Masks over the positions of some of the patterns."""

    states: int = 0
    """All of them."""
    finals: int = 0
    """The host as read so far matches."""
    sinks: int = 0
    """It also matches however it goes on."""

    def __or__(self, other: "Positions") -> "Positions":
        return Positions(
            states=self.states | other.states, finals=self.finals | other.finals, sinks=self.sinks | other.sinks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Runs of positions in which the last wildcard reached makes all earlier positions redundant."""

    wildcards: int
    firsts: int
    lasts: int

    def reduce(self, bits: int) -> int:
        # With a bit set in each block, subtracting the block's lowest bit changes all up to its lowest set bit: in
        # `reached` that is the last wildcard, or the first position where none is reached, and all after it.
        reached = bits & self.wildcards | self.firsts
        return bits & (reached ^ (reached - self.lasts))


class _Reading(NamedTuple):  # forty for each question: a dataclass would take most of its time
    """What one character does: `named` positions move for it by name, all of `moving` move, `staying` stay."""

    named: int
    moving: int
    staying: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Automaton:
    """All patterns of one question; a state is an integer of positions."""

    size: int
    """How many positions there are."""
    start: int
    readings: Mapping[str, _Reading]
    labels: _Blocks
    patterns: _Blocks

    def read(self, bits: int, steps: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
        """Each character that makes a difference, with the positions and the state of the grammar behind it."""
        arbitrary: set[int] = set()
        for character, following in steps.items():
            reading = self.readings[character]
            if not bits & reading.named:  # to the patterns like any other: one is enough for each state it leads to
                if following in arbitrary:
                    continue
                arbitrary.add(following)
            moved = (bits & reading.moving) >> 1 | bits & reading.staying
            # From an earlier position everything else must pass the wildcard, which reads whatever came before it.
            yield character, self.patterns.reduce(self.labels.reduce(moved)), following


class Builder:
    """Lays patterns side by side into one automaton."""

    def __init__(self) -> None:
        self._size = 0
        self._start = 0
        self._named = dict.fromkeys(_ALPHABET, 0)
        self._any_character = 0
        self._in_label = 0
        self._any_depth = 0
        self._label_firsts = 0
        self._label_lasts = 0
        self._pattern_lasts = 0

    def add(self, patterns: Iterable[HostPattern]) -> Positions:
        """Where these patterns are in the automaton."""
        return reduce(or_, map(self._add, patterns), Positions())

    def build(self) -> Automaton:
        """The automaton of everything added."""
        staying = self._in_label | self._any_depth
        readings = {
            character: _Reading(named=named, moving=named | self._any_character, staying=staying)
            for character, named in self._named.items()
        }
        readings["."] = _Reading(named=self._named["."], moving=self._named["."], staying=self._any_depth)
        return Automaton(
            size=self._size,
            start=self._start,
            readings=readings,
            labels=_Blocks(wildcards=staying, firsts=self._label_firsts, lasts=self._label_lasts),
            patterns=_Blocks(wildcards=self._any_depth, firsts=self._start, lasts=self._pattern_lasts),
        )

    def _add(self, pattern: HostPattern) -> Positions:
        lowest = 1 << self._size
        labels = pattern.labels[::-1]
        position = lowest << sum(map(_positions_of, labels)) - 1
        self._size += sum(map(_positions_of, labels))
        self._start |= position
        self._pattern_lasts |= lowest
        states = (position << 1) - lowest
        for label in labels[:-1]:
            position = self._add_label(label, position)
            self._named["."] |= position
            position >>= 1
        final = self._add_label(labels[-1], position)
        return Positions(states=states, finals=final, sinks=final & self._any_depth)

    def _add_label(self, label: str, position: int) -> int:
        self._label_firsts |= position
        if label in {"*", "**"}:
            self._any_character |= position
            position >>= 1
            if label == "*":
                self._in_label |= position
            else:
                self._any_depth |= position
        else:
            for character in reversed(label):
                if character == "*":
                    self._in_label |= position
                else:
                    self._named[character] |= position
                    position >>= 1
        self._label_lasts |= position
        return position


def _positions_of(label: str) -> int:
    return 2 if label in {"*", "**"} else len(label) - label.count("*") + 1


def _names() -> Grammar:
    # The last label, which is read first, is no number (`_NUMBER` of hosts.py): what it is as read so far.
    unread, decimal, hexadecimal, x, prefixed, other, dot, label = range(8)
    steps: list[dict[str, int]] = [{} for _ in range(8)]
    for character in _CHARACTERS:
        is_digit, is_hexadecimal = character in digits, character in digits + "abcdef"
        as_part = hexadecimal if is_hexadecimal else x if character == "x" else other
        steps[unread][character] = steps[decimal][character] = decimal if is_digit else as_part
        steps[hexadecimal][character] = as_part
        steps[x][character] = prefixed if character == "0" else other
        steps[prefixed][character] = steps[other][character] = other
        steps[dot][character] = steps[label][character] = label
    whole = frozenset({hexadecimal, x, other, label})
    for state in whole:
        steps[state]["."] = dot
    return Grammar(steps=tuple(steps), accepting=whole)


def _ipv4_addresses() -> Grammar:
    # A state is what may still be read of this octet, and how many octets there are before it.
    octets = frozenset(str(octet)[::-1] for octet in range(256))
    states = [(octets, 3)]
    steps: list[dict[str, int]] = []
    for rests, left in states:  # grows while it is walked
        following = {first: (frozenset(rest[1:] for rest in rests if rest[:1] == first), left) for first in digits}
        if "" in rests and left:
            following["."] = (octets, left - 1)
        reachable = {character: state for character, state in following.items() if state[0]}
        states.extend(state for state in dict.fromkeys(reachable.values()) if state not in states)
        steps.append({character: states.index(state) for character, state in reachable.items()})
    accepting = frozenset(place for place, (rests, left) in enumerate(states) if "" in rests and not left)
    return Grammar(steps=tuple(steps), accepting=accepting)


NAMES: Final = _names()
IPV4_ADDRESSES: Final = _ipv4_addresses()
