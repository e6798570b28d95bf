"""The record by which one replica leads. PURE: what `coordination.k8s.io` calls a Lease, and no more of it."""

from dataclasses import dataclass
from typing import Final

LEASE_DURATION: Final = 10.0
"""Seconds for which a holder is respected after it was seen to renew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`renewed` is a mark, never read as a time; `holder` is empty after a clean exit."""

    holder: str
    renewed: str
    duration: float = LEASE_DURATION
    transitions: int = 0
    epoch: int = 0
