"""Reports and offers as they are on the wire. PURE; the only place of the supervisor that knows these messages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from supervisor_middleware.model.generation import Rank
from supervisor_middleware.supervisor.activation import OfferedGeneration, RejectionReason
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.record import Defect
from supervisor_middleware.supervisor.reports import (
    Accepted,
    Active,
    Hello,
    NotReady,
    Rejected,
    Report,
    ServiceReport,
)
from supervisor_middleware.wire.gen import distribution_pb2 as pb

_STATES: Final[Mapping[ServiceState, pb.ServiceState.ValueType]] = {
    ServiceState.READY: pb.SERVICE_STATE_READY,
    ServiceState.UNREACHABLE: pb.SERVICE_STATE_UNREACHABLE,
    ServiceState.INCAPABLE: pb.SERVICE_STATE_INCAPABLE,
    ServiceState.REFUSING: pb.SERVICE_STATE_REFUSING,
}
_REASONS: Final[Mapping[RejectionReason, pb.RejectionReason.ValueType]] = {
    RejectionReason.DIGEST_MISMATCH: pb.REJECTION_REASON_DIGEST_MISMATCH,
    RejectionReason.MALFORMED: pb.REJECTION_REASON_MALFORMED,
    RejectionReason.UNSUPPORTED: pb.REJECTION_REASON_UNSUPPORTED,
    RejectionReason.STALE: pb.REJECTION_REASON_STALE,
    RejectionReason.TRUST_BUNDLE_INVALID: pb.REJECTION_REASON_TRUST_BUNDLE_INVALID,
}
_DEFECTS: Final[Mapping[Defect, pb.StateDefect.ValueType]] = {
    Defect.TRUNCATED: pb.STATE_DEFECT_TRUNCATED,
    Defect.CORRUPT: pb.STATE_DEFECT_CORRUPT,
    Defect.FOREIGN: pb.STATE_DEFECT_FOREIGN,
    Defect.UNSUPPORTED: pb.STATE_DEFECT_UNSUPPORTED,
    Defect.UNREADABLE: pb.STATE_DEFECT_UNREADABLE,
    Defect.UNSAFE: pb.STATE_DEFECT_UNSAFE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedBundle:
    """A trust bundle, before anything is believed of it."""

    pem: bytes = field(repr=False)
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One message of the operator's: a generation, a trust bundle, or both."""

    rank: Rank
    generation: OfferedGeneration | None
    bundle: OfferedBundle | None


def decode_offer(message: pb.GenerationOffer) -> Offer:
    """What an offer holds. Digest and payload both empty: no generation (an empty one has a digest)."""
    rank = Rank(epoch=message.epoch, sequence=message.sequence)
    has_generation = bool(message.digest or message.payload)
    has_bundle = bool(message.trust_bundle_pem)
    return Offer(
        rank=rank,
        generation=OfferedGeneration(rank=rank, digest=message.digest, payload=message.payload)
        if has_generation
        else None,
        bundle=OfferedBundle(pem=message.trust_bundle_pem, digest=message.trust_bundle_digest)
        if has_bundle
        else None,
    )


def encode_report(report: Report) -> pb.SupervisorReport:
    """A report as a message."""
    match report:
        case Hello():
            return pb.SupervisorReport(hello=_hello(report))
        case Accepted(digest=digest):
            return pb.SupervisorReport(accepted=pb.Accepted(digest=digest))
        case Rejected(digest=digest, reason=reason):
            return pb.SupervisorReport(rejected=pb.Rejected(digest=digest, reasons=[_REASONS[reason]]))
        case NotReady(digest=digest, services=services):
            return pb.SupervisorReport(not_ready=pb.NotReady(digest=digest, services=_services(services)))
        case Active(digest=digest, services=services):
            return pb.SupervisorReport(active=pb.Active(digest=digest, services=_services(services)))
        case _:
            assert_never(report)


def _hello(hello: Hello) -> pb.Hello:
    return pb.Hello(
        active_digest=hello.active_digest,
        epoch=hello.rank.epoch,
        sequence=hello.rank.sequence,
        rejected_digests=hello.rejected_digests,
        trust_bundle_digest=hello.trust_bundle_digest,
        version=hello.version,
        state_defect=pb.STATE_DEFECT_UNSPECIFIED if hello.defect is None else _DEFECTS[hello.defect],
    )


def _services(services: Iterable[ServiceReport]) -> list[pb.ServiceStatus]:
    return [pb.ServiceStatus(name=s.name, state=_STATES[s.state]) for s in services]
