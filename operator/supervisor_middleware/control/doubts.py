"""What to look at again before a review is refused. PURE.

A cache lags. A refusal for what another object is, or lacks, may be a refusal for what it was a moment ago.
"""

from dataclasses import dataclass
from typing import Final

from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.control.reviews import Decision, Review
from supervisor_middleware.model.identifiers import is_reserved
from supervisor_middleware.model.violation import Reason, Subject

MAX_LOOKED_AT: Final = 32
"""Policies; a sandbox has at most ten stages, so of more than that hardly any stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """Whether all registrations, and which policies, must be read as they are now."""

    registrations: bool = False
    policies: tuple[Subject, ...] = ()

    def __bool__(self) -> bool:
        return self.registrations or bool(self.policies)


def doubts(review: Review, decision: Decision) -> Doubts:
    """What a refusal rests on that may have changed since the cache was told."""
    reasons = {v.reason for v in decision.violations.violations}
    return Doubts(
        registrations=Reason.UNKNOWN_BINDING in reasons and _needs_registrations(review),
        policies=decision.met[:MAX_LOOKED_AT] if Reason.CONFLICTED in reasons else (),
    )


def _needs_registrations(review: Review) -> bool:
    """Not if it only misses built-ins: they are in every operator or in none."""
    draft, _ = draft_policy(review.stored)
    return any(not is_reserved(e.middleware or "") for e in draft.entries)
