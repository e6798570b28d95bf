"""How many supervisors know which roots, and which prove themselves by one that issues no more. PURE."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from supervisor_middleware.distribution.attendance import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Of those that should be there: `absent` have no stream and may hold a good certificate.

    `unacknowledged` said that they have another bundle, `old` showed a certificate of another root.
    """

    absent: int = 0
    unacknowledged: int = 0
    old: int = 0


def census_of(
    standings: Iterable[tuple[str, Standing]], *, trust_bundle: str, issuer: str, may_hold: Callable[[str], bool]
) -> Census:
    """Who (by key) has the bundle of this digest, and a certificate of the root with this key identifier.

    Whoever holds no good certificate has nothing that could be missed: it gets the bundle when it enrols.
    """
    absent = unacknowledged = old = 0
    for key, standing in standings:
        if standing.record is None:
            absent += may_hold(key)
            continue
        unacknowledged += standing.record.trust_bundle != trust_bundle
        old += is_old(standing, issuer=issuer)
    return Census(absent=absent, unacknowledged=unacknowledged, old=old)


def is_old(standing: Standing, *, issuer: str) -> bool:
    """Whether one that is connected showed a certificate of another root."""
    is_connected = standing.record is not None
    return is_connected and standing.visits is not None and standing.visits.leaf.issuer != issuer
