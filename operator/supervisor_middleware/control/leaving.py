"""Policies that were deleted a moment ago and still apply. PURE: time is an argument."""

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

    present: Mapping[str, Revision] = field(default_factory=dict)
    gone: Mapping[str, tuple[Revision, datetime]] = field(default_factory=dict)

    def after(
        self, accepted: Mapping[str, Revision], fallbacks: Mapping[str, Revision], *, now: datetime
    ) -> "Leaving":
        """Take in the policies there are, by UID.

        A policy that came back under the same name replaces what left once it is accepted. Until then, for the grace
        at most, what left applies instead of the newcomer's fallback: a replacement neither opens a window nor closes
        the hosts while services are asked.
        """
        there = accepted.keys() | fallbacks.keys()
        leaving = {uid: (revision, now) for uid, revision in self.present.items() if uid not in there}
        replaced = {r.policy for r in accepted.values()}
        gone = {
            uid: (revision, since)
            for uid, (revision, since) in {**leaving, **self.gone}.items()
            if uid not in there and revision.policy not in replaced and since + LEAVING_GRACE > now
        }
        staying = {revision.policy for revision, _ in gone.values()}
        present = {**accepted, **{u: r for u, r in fallbacks.items() if r.policy not in staying}}
        return Leaving(present=present, gone=gone)

    @property
    def applying(self) -> tuple[Revision, ...]:
        """Every revision that applies."""
        return (*self.present.values(), *(revision for revision, _ in self.gone.values()))

    def next_due(self) -> datetime | None:
        """When the next of them has left for good."""
        return min((since + LEAVING_GRACE for _, since in self.gone.values()), default=None)
