"""What supervisors say, as values the ledger takes. PURE: nothing a peer wrote passes but digests and plain names.

What is kept of one supervisor is bounded, whatever it says and however often.
"""

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from supervisor_middleware.distribution.ledger import MAX_REFUSALS, Answer, Event, Record
from supervisor_middleware.model.canonical import is_digest
from supervisor_middleware.model.identifiers import status_text
from supervisor_middleware.wire.gen import distribution_pb2 as pb


def parse_report(data: bytes) -> pb.SupervisorReport | None:
    """The report in `data`, if it is one."""
    try:
        return pb.SupervisorReport.FromString(data)
    except DecodeError:
        return None


def record_of(key: str, hello: pb.Hello) -> Record:
    """A supervisor as it introduces itself. Of many rejected digests the newest, which stand last, count."""
    return Record(
        key=key,
        version=status_text(hello.version),
        active=_digest(hello.active_digest),
        rejected=tuple(filter(None, map(_digest, hello.rejected_digests[-MAX_REFUSALS:]))),
        trust_bundle=_digest(hello.trust_bundle_digest),
        defect=_defect(hello.state_defect),
    )


def answer_of(report: pb.SupervisorReport, *, wished: str, services: frozenset[str]) -> Answer | None:
    """What a report says of which generation; None for one that says nothing we know.

    `services` are the names of the services that `wished`, the generation it should run, may speak of; no other name
    counts, and of other generations none.
    """
    match report.WhichOneof("report"):
        case "active":
            answer = _of_services(Event.ACTIVE, report.active, wished=wished, services=services)
        case "accepted":
            answer = Answer(event=Event.ACCEPTED, digest=_digest(report.accepted.digest))
        case "rejected":
            reasons = _reasons(report.rejected.reasons)
            answer = Answer(event=Event.REJECTED, digest=_digest(report.rejected.digest), reasons=reasons)
        case "not_ready":
            answer = _of_services(Event.NOT_READY, report.not_ready, wished=wished, services=services)
        case _:
            return None
    return answer if answer.digest else None


def _of_services(event: Event, said: pb.NotReady | pb.Active, *, wished: str, services: frozenset[str]) -> Answer:
    digest = said.digest
    if digest != wished:
        # Of what it should not run it has no service to tell of.
        return Answer(event=event, digest=_digest(digest))
    states = {s.name: s.state for s in said.services if s.name in services and s.state != pb.SERVICE_STATE_READY}
    if not states:
        return Answer(event=event, digest=digest)
    return Answer(
        event=event,
        digest=digest,
        services=tuple(states),
        incapable=tuple(name for name, state in states.items() if state == pb.SERVICE_STATE_INCAPABLE),
        refusing=tuple(name for name, state in states.items() if state == pb.SERVICE_STATE_REFUSING),
    )


def _reasons(numbers: Iterable[int]) -> tuple[str, ...]:
    known = pb.RejectionReason.values()
    names = (pb.RejectionReason.Name(n if n in known else 0) for n in numbers)  # type: ignore[arg-type]
    return tuple(dict.fromkeys(n.removeprefix("REJECTION_REASON_").lower() for n in names))


def _defect(number: int) -> str:
    """What is wrong as an enumeration names it; nothing for nothing, and for what this version does not know."""
    if not number or number not in pb.StateDefect.values():
        return ""
    return pb.StateDefect.Name(number).removeprefix("STATE_DEFECT_").lower()  # type: ignore[arg-type]


def _digest(text: str) -> str:
    return text if is_digest(text) else ""
