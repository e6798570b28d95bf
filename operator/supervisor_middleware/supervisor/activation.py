"""Whether an offered generation could be run, or is refused. PURE; `waiting` says when what could be run is run.

The rules (design, section 6 "Generations and last-known-good"; decision 14):

1. A pair `(epoch, sequence)` lower than the one held is refused: an operator that lost its lease may still talk.
2. Bytes that are not what their digest says, no generation, or one that this version does not know whole are refused
   for good: the digest is remembered and never tried again by this version.
"""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from supervisor_middleware.model.canonical import digest, is_digest
from supervisor_middleware.model.generation import SCHEMA_VERSION, Generation, Rank, Sealed, unseal
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES

MAX_REJECTIONS: Final = 64
"""How many refused digests are remembered; the oldest is forgotten first."""


class RejectionReason(StrEnum):
    """Why an offer is refused for good; as on the wire."""

    DIGEST_MISMATCH = "digest_mismatch"
    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    STALE = "stale"
    TRUST_BUNDLE_INVALID = "trust_bundle_invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A generation that could be run, and where it stands."""

    sealed: Sealed
    rank: Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A digest that is not run, and why. `digest` is empty if what was sent in its place is none."""

    digest: str
    reason: RejectionReason

    @property
    def is_about_content(self) -> bool:
        """Whether the digest itself is at fault, so that offering it again is pointless."""
        return self.digest != "" and self.reason not in {RejectionReason.STALE, RejectionReason.TRUST_BUNDLE_INVALID}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What new offers are measured by: the highest pair taken, and the digests refused before."""

    rank: Rank
    refusals: tuple[Refusal, ...] = ()

    def refused(self, refusal: Refusal) -> "Held":
        """The same, with `refusal` remembered if it is about content."""
        if not refusal.is_about_content or refusal in self.refusals:
            return self
        return Held(rank=self.rank, refusals=(*self.refusals, refusal)[-MAX_REJECTIONS:])


NOTHING_HELD: Final = Held(rank=Rank())
"""Of a new supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedGeneration:
    """What came over the wire, before anything is believed of it."""

    rank: Rank
    digest: str
    payload: bytes = field(repr=False)


def examine(offer: OfferedGeneration, *, held: Held) -> Candidate | Refusal:
    """Rules 1 and 2: what can be said of an offer before any service is asked."""
    if not is_digest(offer.digest):
        return Refusal(digest="", reason=RejectionReason.MALFORMED)
    if offer.rank < held.rank:
        return Refusal(digest=offer.digest, reason=RejectionReason.STALE)
    if remembered := next((r for r in held.refusals if r.digest == offer.digest), None):
        return remembered
    opened = open_payload(offer.payload, expected_digest=offer.digest)
    if isinstance(opened, RejectionReason):
        return Refusal(digest=offer.digest, reason=opened)
    return Candidate(sealed=opened, rank=offer.rank)


def open_payload(payload: bytes, *, expected_digest: str) -> Sealed | RejectionReason:
    """The generation in `payload`, or what is wrong with it (shared by offers and by the store)."""
    if digest(payload) != expected_digest:
        return RejectionReason.DIGEST_MISMATCH
    if len(payload) > MAX_STREAM_MESSAGE_BYTES:
        return RejectionReason.MALFORMED
    try:
        sealed = unseal(payload, expected_digest=expected_digest)
    except (ValueError, ArithmeticError):  # int() of JSON's 1e999 is an OverflowError
        return RejectionReason.UNSUPPORTED if _is_newer(payload) else RejectionReason.MALFORMED
    return sealed if _is_unambiguous(sealed.generation) else RejectionReason.MALFORMED


def _is_unambiguous(generation: Generation) -> bool:
    # A stage is called, and blamed, by its key; a service by its name.
    keys, names = {s.key for s in generation.stages}, {s.name for s in generation.services}
    return len(keys) == len(generation.stages) and len(names) == len(generation.services)


def _is_newer(payload: bytes) -> bool:
    try:
        version = json.loads(payload)["schemaVersion"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(version, int) and version > SCHEMA_VERSION
