"""The form of last-known-good on disk. PURE: a record to bytes, and bytes to a record or the reason why not.

    smw-last-known-good 1
    <SHA-256 of the rest, hex> <length of the rest>
    {"owner", "digest", "epoch", "sequence", "trustBundleDigest", "version", "refusals": [{"digest", "reason"}]}
    <payload: the generation's canonical JSON>

The outer checksum covers what the generation's own digest does not: a flipped bit in the epoch must not survive
either. It is no signature: who can write the directory can write a checksum (the directory is ours alone, 0700).
"""

import hashlib
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from supervisor_middleware.model.canonical import ParsedJson, canonical
from supervisor_middleware.model.generation import Rank, Sealed
from supervisor_middleware.supervisor.activation import (
    NOTHING_HELD,
    Held,
    Refusal,
    RejectionReason,
    open_payload,
)

FORMAT: Final = 1

_MAGIC: Final = re.compile(rb"smw-last-known-good ([0-9]{1,9})\n")
_CHECK: Final = re.compile(rb"([0-9a-f]{64}) ([0-9]{1,12})\n")


class Defect(StrEnum):
    """Why what is on disk is not used."""

    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    """It belongs to another sandbox."""
    UNSUPPORTED = "unsupported"
    """Another version wrote it, in a form that this one does not know."""
    UNREADABLE = "unreadable"
    """The disk or its permissions do not let us read it."""
    UNSAFE = "unsafe"
    """Others could have put it there: a link, no regular file, or one that everybody may write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a supervisor must know to go on without the operator.

    `sealed` None: never configured, and yet there may be refusals worth remembering. `version` is the software's that
    refused them: another version may be able to run what this one could not.
    """

    sealed: Sealed | None = None
    held: Held = NOTHING_HELD
    trust_bundle_digest: str = ""
    version: str = ""


def encode(record: Record, *, owner: str) -> bytes:
    """The file's content; `owner` is the SPIFFE ID of the supervisor that may use it."""
    header = canonical(
        {
            "owner": owner,
            "digest": "" if record.sealed is None else record.sealed.digest,
            # Text, since JSON numbers end at 2^53 and these are uint64.
            "epoch": str(record.held.rank.epoch),
            "sequence": str(record.held.rank.sequence),
            "trustBundleDigest": record.trust_bundle_digest,
            "version": record.version,
            "refusals": [{"digest": r.digest, "reason": r.reason.value} for r in record.held.refusals],
        }
    )
    rest = header + b"\n" + (b"" if record.sealed is None else record.sealed.payload)
    check = f"{hashlib.sha256(rest).hexdigest()} {len(rest)}\n"
    return f"smw-last-known-good {FORMAT}\n{check}".encode() + rest


def decode(content: bytes, *, owner: str) -> Record | Defect:
    """What `encode` wrote for this `owner`, whole, or what is wrong with it. Never raises, whatever the bytes."""
    magic = _MAGIC.match(content)
    if magic is None:
        return _cut_or_corrupt(content, lines=1)
    if int(magic[1]) != FORMAT:
        return Defect.UNSUPPORTED
    check = _CHECK.match(content, magic.end())
    if check is None:
        return _cut_or_corrupt(content, lines=2)
    rest = content[check.end() :]
    if len(rest) < int(check[2]):
        return Defect.TRUNCATED
    if len(rest) != int(check[2]) or hashlib.sha256(rest).hexdigest().encode() != check[1]:
        return Defect.CORRUPT
    return _decode_checked(rest, owner=owner)


def _cut_or_corrupt(content: bytes, *, lines: int) -> Defect:
    return Defect.CORRUPT if content.count(b"\n") >= lines else Defect.TRUNCATED


def _decode_checked(rest: bytes, *, owner: str) -> Record | Defect:
    header, _, payload = rest.partition(b"\n")
    try:
        fields = json.loads(header)
        if fields["owner"] != owner:
            return Defect.FOREIGN
        record = _record(fields)
        digest = str(fields["digest"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Defect.CORRUPT
    return _with_generation(record, payload, digest=digest)


def _record(fields: ParsedJson) -> Record:
    refusals = tuple(
        Refusal(digest=str(r["digest"]), reason=RejectionReason(str(r["reason"]))) for r in fields["refusals"]
    )
    rank = Rank(epoch=_uint64(fields["epoch"]), sequence=_uint64(fields["sequence"]))
    return Record(
        held=Held(rank=rank, refusals=refusals),
        trust_bundle_digest=str(fields["trustBundleDigest"]),
        version=str(fields["version"]),
    )


def _uint64(text: ParsedJson) -> int:
    """What the operator could have sent, and can be told."""
    if (number := int(str(text))) not in range(2**64):  # as text: a JSON number may be infinite
        raise ValueError("not a uint64")
    return number


def _with_generation(record: Record, payload: bytes, *, digest: str) -> Record | Defect:
    if not digest:
        return record if not payload else Defect.CORRUPT
    match open_payload(payload, expected_digest=digest):
        case RejectionReason.UNSUPPORTED:
            return Defect.UNSUPPORTED
        case RejectionReason():
            return Defect.CORRUPT
        case sealed:
            return Record(
                sealed=sealed,
                held=record.held,
                trust_bundle_digest=record.trust_bundle_digest,
                version=record.version,
            )
