"""What applies of policies that were deleted a moment ago, or whose revision is gone. PURE: time is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.model.revision import Revision

LEAVING_GRACE: Final = timedelta(seconds=10)
"""How long a deleted policy still applies, so that `kubectl replace --force` opens no window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What applies, and policies among it that were deleted a moment ago. A value: an attempt may be given up."""

    accepted: Mapping[str, Revision] = field(default_factory=dict)
    fallbacks: Mapping[str, Revision] = field(default_factory=dict)
    gone: Mapping[str, tuple[Revision, datetime]] = field(default_factory=dict)

    def after(
        self, accepted: Mapping[str, Revision], fallbacks: Mapping[str, Revision], *, now: datetime
    ) -> "Leaving":
        """Take in the policies there are, by UID.

        What was accepted applies until something else is, also if nobody can read it any more: somebody deleted the
        revision, or the kind. A fallback is for a policy of which nothing applied.

        A policy that came back under the same name replaces what left once it is accepted. Until then, for the grace
        at most, what left applies instead of the newcomer's fallback: a replacement neither opens a window nor closes
        the hosts while services are asked.
        """
        there = accepted.keys() | fallbacks.keys()
        present = {**self.accepted, **self.fallbacks}
        leaving = {uid: (revision, now) for uid, revision in present.items() if uid not in there}
        accepted = {**{uid: self.accepted[uid] for uid in fallbacks if uid in self.accepted}, **accepted}
        replaced = {r.policy for r in accepted.values()}
        gone = {
            uid: (revision, since)
            for uid, (revision, since) in {**leaving, **self.gone}.items()
            if uid not in there and revision.policy not in replaced and since + LEAVING_GRACE > now
        }
        staying = {revision.policy for revision, _ in gone.values()}
        needed = {u: r for u, r in fallbacks.items() if u not in accepted and r.policy not in staying}
        return Leaving(accepted=accepted, fallbacks=needed, gone=gone)

    @property
    def applying(self) -> tuple[Revision, ...]:
        """Every revision that applies."""
        return (*self.accepted.values(), *self.fallbacks.values(), *(revision for revision, _ in self.gone.values()))

    def next_due(self) -> datetime | None:
        """When the next of them has left for good."""
        return min((since + LEAVING_GRACE for _, since in self.gone.values()), default=None)
