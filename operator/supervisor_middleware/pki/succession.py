"""Which root issues, which will and which did. PURE: and when the webhook's roots give way to the next.

A new root is trusted before anything is issued by it, and the old one until long after. For the webhook, whose one
peer is the API server, that is *steady*, then *prepared* (a successor is in the bundle and issues nothing), then
*retiring* (it issues, the old one is still in the bundle), then steady again; how long a stage has lasted is measured
by whoever asks, on its own clock. The roots of identities have many peers who must agree: `rotation` has their rules.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from supervisor_middleware.errors import Bug
from supervisor_middleware.pki.authority import Authority

ROOT_LIFETIME: Final = timedelta(days=365)
RETIREMENT: Final = 5
"""In overlaps: how long an old root stays trusted. Every replica has changed its certificate long before."""
MAX_RETIRED: Final = 3

_RENEWAL: Final = 2 / 3
_END: Final = b"-----END CERTIFICATE-----\n"


@dataclass(frozen=True, kw_only=True)
class Succession:
    """`current` issues; `successor` will; `retired` are roots (PEM) that did, the oldest first."""

    current: Authority
    successor: Authority | None = None
    retired: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def roots(self) -> tuple[bytes, ...]:
        """Everything to be trusted, PEM, in the order of time: a change of the issuer changes nothing here."""
        later = () if self.successor is None else (self.successor.certificate_pem,)
        return (*self.retired, self.current.certificate_pem, *later)

    @cached_property
    def bundle(self) -> bytes:
        """The same as one PEM text. Every offer to a supervisor asks for it, so it is written out once."""
        return b"".join(self.roots)

    def with_successor(self, *, now: datetime, lifetime: timedelta = ROOT_LIFETIME) -> "Succession":
        """Prepared for a change."""
        if self.successor is not None:
            return self
        made = Authority.create(trust_domain=self.current.trust_domain, now=now, lifetime=lifetime)
        return replace(self, successor=made)

    def is_due(self, now: datetime) -> bool:
        """Whether a third of the root's life is left: time for a successor."""
        current = self.current
        return now >= current.not_before + (current.expires_at - current.not_before) * _RENEWAL

    def promoted(self) -> "Succession":
        """The successor issues; what issued before is retired.

        Raises:
            Bug: there is no successor.
        """
        if self.successor is None:
            raise Bug("there is no root to issue next")
        retired = (*self.retired, self.current.certificate_pem)
        return Succession(current=self.successor, retired=retired)

    def next(self, *, now: datetime, settled: timedelta, overlap: timedelta) -> "Succession | None":
        """The next stage if it is time for it; `settled` is for how long this one is known to be trusted.

        A root that has ended can be trusted by nobody, so there is no use in waiting.
        """
        if self.successor is not None:
            if settled < overlap and now < self.current.expires_at:
                return None
            promoted = self.promoted()
            return replace(promoted, retired=promoted.retired[-MAX_RETIRED:])
        if self.is_due(now):
            return self.with_successor(now=now)
        if self.retired and settled >= RETIREMENT * overlap:
            return replace(self, retired=())
        return None


def split_roots(pem: bytes) -> tuple[bytes, ...]:
    """The certificates of a bundle that we wrote, each as it stands there."""
    blocks = pem.split(_END)[:-1]
    return tuple(block + _END for block in blocks)
