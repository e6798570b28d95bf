"""What is asked of sets of hosts, and how far it is answered without a search. PURE.

Only `model/host_sets.py` calls it. In real policies most patterns differ in what they spell out at either end, and
most hosts are spelled out in full.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, takewhile
from typing import NamedTuple

from supervisor_middleware.model.hosts import HostPattern, HostSelector, normalize_host


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Is there a host that a selector of each group in `inside` selects, and none in `outside`?"""

    inside: tuple[tuple[HostSelector, ...], ...]
    outside: tuple[HostSelector, ...]

    def holds_for(self, host: str) -> bool:
        """Whether this is such a host."""
        return all(any(selector.selects(host) for selector in group) for group in self.inside) and not any(
            selector.selects(host) for selector in self.outside
        )

    def simplified(self) -> "Question":
        """The same question with fewer patterns."""
        # What did not change between two revisions of a policy needs no search.
        inside = [
            tuple(
                selector for selector in group if not any(_plainly_covers(other, selector) for other in self.outside)
            )
            for group in self.inside
        ]
        ends = list(map(_Ends.common, inside))
        return Question(
            inside=tuple(tuple(_relevant(group, ends)) for group in inside),
            outside=tuple(_relevant(self.outside, ends)),
        )

    def named(self) -> "Question":
        """The question about hosts that are no IPv6 literal: patterns of one literal match none of them."""
        return Question(
            inside=tuple(tuple(map(_named, group)) for group in self.inside), outside=tuple(map(_named, self.outside))
        )

    def ipv6_hosts(self) -> Iterator[str]:
        """IPv6 literals among which is one that answers, if any does: those spelled out, and one that is not."""
        selectors = (*(s for group in self.inside for s in group), *self.outside)
        spelled = {str(p) for s in selectors for p in (*s.include, *s.exclude) if _is_literal(p)}
        yield next(f"[::{number:x}]" for number in count(1) if f"[::{number:x}]" not in spelled)
        yield from sorted(spelled)

    def literal_hosts(self) -> list[str] | None:
        """Hosts among which is the answer, in the order of answers; None where only a search can tell."""
        for group in self.inside:
            texts = {str(pattern) for selector in group for pattern in selector.include}
            if not any("*" in text for text in texts):
                return sorted(filter(is_host, texts), key=lambda host: (_is_address(host), len(host), host))
        return None


def _named(selector: HostSelector) -> HostSelector:
    def kept(patterns: tuple[HostPattern, ...]) -> tuple[HostPattern, ...]:
        return tuple(p for p in patterns if not _is_literal(p)) if any(map(_is_literal, patterns)) else patterns

    return HostSelector(include=kept(selector.include), exclude=kept(selector.exclude))


def _is_literal(pattern: HostPattern) -> bool:
    """Whether it is one IPv6 address, as an endpoint may name it."""
    return pattern.labels[0].startswith("[")


def is_host(text: str) -> bool:
    """Whether `normalize_host` can return it."""
    try:
        return normalize_host(text) == text
    except ValueError:
        return False


class _Ends(NamedTuple):
    """How all hosts of something begin and end, character by character."""

    first: str
    last: str

    @classmethod
    def of(cls, pattern: HostPattern) -> "_Ends":
        text = str(pattern)
        return cls(text.partition("*")[0], text.rpartition("*")[2])

    @classmethod
    def common(cls, selectors: tuple[HostSelector, ...]) -> "_Ends":
        ends = [cls.of(pattern) for selector in selectors for pattern in selector.include]
        return cls(_common_start([end.first for end in ends]), _common_start([end.last[::-1] for end in ends])[::-1])

    def agree(self, other: "_Ends") -> bool:
        """Whether one host could have both."""
        return (self.first.startswith(other.first) or other.first.startswith(self.first)) and (
            self.last.endswith(other.last) or other.last.endswith(self.last)
        )


def _common_start(texts: list[str]) -> str:
    first, last = min(texts, default=""), max(texts, default="")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(character for character, _ in same)


def _relevant(selectors: tuple[HostSelector, ...], groups: list[_Ends]) -> Iterator[HostSelector]:
    def relevant(patterns: tuple[HostPattern, ...]) -> tuple[HostPattern, ...]:
        return tuple(pattern for pattern in patterns if all(map(_Ends.of(pattern).agree, groups)))

    for selector in selectors:
        include = relevant(selector.include)
        if include:
            yield HostSelector(include=include, exclude=relevant(selector.exclude))


def _plainly_covers(other: HostSelector, selector: HostSelector) -> bool:
    return set(selector.include) <= set(other.include) and set(other.exclude) <= set(selector.exclude)


def _is_address(host: str) -> bool:
    return host.rpartition(".")[2].isdecimal()
