"""What judging a policy depends on, in little memory: thousands are judged, and most are alike. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.compiler.drafts import PolicyDraft
from supervisor_middleware.compiler.questions import key_for, verdict_digest
from supervisor_middleware.model.snapshot import StoredRevision
from supervisor_middleware.model.verdict import Rejected, Verdict, VerdictKey

Asks: TypeAlias = tuple[tuple[str, str | None], ...]
"""For each entry the binding it selects, and the digest of its config if anybody can be asked about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What policies are judged in, computed once a pass; `version` is the catalog's."""

    bindings: Bindings
    pending: tuple[str, ...]
    is_incomplete: bool
    version: int

    def is_same(self, other: "Around") -> bool:
        """Whether nothing can have changed."""
        return self.bindings is other.bindings and (self.pending, self.is_incomplete, self.version) == (
            other.pending,
            other.is_incomplete,
            other.version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """Who serves each entry, and what they are to be asked: one object for all policies that ask the same."""

    asks: Asks
    bound: tuple[Bound | None, ...]
    keys: Mapping[VerdictKey, str]
    """With the digest under which a revision holds the answer."""

    def answers(self, verdicts: Mapping[VerdictKey, Verdict], *, held: frozenset[str]) -> tuple[Verdict | None, ...]:
        """What was answered; empty if nothing that counts was. Of an answer that is `held` only a no counts."""
        found = tuple(_counting(verdicts.get(k), is_held=digest in held) for k, digest in self.keys.items())
        return found if any(found) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything a compilation of one spec depends on besides the settings, which are fixed for a run.

    Who serves each entry is in `wants`; what else there is (`hints`) counts only where somebody is missing. Of an
    answer that `accepted` holds, only a no counts.
    """

    wants: Wants
    hints: tuple[Bindings, tuple[str, ...]] | None
    accepted: StoredRevision | None
    answers: tuple[Verdict | None, ...]

    def is_same(self, other: "Inputs") -> bool:
        """Whether the outcome must be the same. By identity where equality would cost what is to be saved."""
        return self.accepted is other.accepted and self._is_alike(other)

    def hold(self, before: "Inputs", *, digest: str) -> bool:
        """Whether all that is new since `before` is that the revision of `digest`, valid then, is accepted."""
        is_accepted = self.accepted is not None and self.accepted.digest == digest
        return is_accepted and not self.answers and self.wants.bound == before.wants.bound

    def _is_alike(self, other: "Inputs") -> bool:
        mine, others = (self.answers, self.hints), (other.answers, other.hints)
        return mine == others and (self.wants is other.wants or self.wants.bound == other.wants.bound)


def asks_of(draft: PolicyDraft) -> Asks:
    """What is asked for a policy."""
    return tuple((e.middleware or "", e.askable_digest) for e in draft.entries)


def wants_of(asks: Asks, bindings: Bindings) -> Wants:
    """Of whom."""
    bound = tuple(bindings.find(binding) for binding, _ in asks)
    keys = (
        key_for(of, config_digest)
        for of, (_, config_digest) in zip(bound, asks, strict=True)
        if of is not None and config_digest is not None
    )
    return Wants(asks=asks, bound=bound, keys={key: verdict_digest(key) for key in keys})


def _counting(verdict: Verdict | None, *, is_held: bool) -> Verdict | None:
    return None if is_held and not isinstance(verdict, Rejected) else verdict
