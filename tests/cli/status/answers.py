"""Answers of an operator, as `smw status` gets them."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from supervisor_middleware.wire.gen import distribution_pb2 as distribution
from supervisor_middleware.wire.gen import inspection_pb2 as pb

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, TWO = (f"sha256:{digit * 64}" for digit in "12")

_STATES: Final = {name.removeprefix("SUPERVISOR_STATE_"): number for name, number in pb.SupervisorState.items()}


def a_supervisor(
    sandbox: str = "agent", state: str = "ACTIVE", *, age: timedelta | None = timedelta(seconds=90), **fields: Any
) -> pb.Supervisor:
    fields = {"desired": pb.Generation(digest=ONE, epoch=7, sequence=3), "active_digest": ONE, **fields}
    supervisor = pb.Supervisor(namespace="team-a", sandbox=sandbox, state=_STATES[state], **fields)
    if age is not None:
        supervisor.since.FromDatetime(NOW - age)
    return supervisor


def an_answer(*supervisors: pb.Supervisor, remaining: int = 0, at: datetime = NOW) -> pb.SupervisorList:
    active = [s for s in supervisors if s.state == pb.SUPERVISOR_STATE_ACTIVE]
    counts = {state: sum(s.state == state for s in supervisors) for state in _STATES.values()}
    answer = pb.SupervisorList(supervisors=supervisors, remaining=remaining)
    answer.totals.MergeFrom(
        pb.Totals(
            sandboxes=len(supervisors) + remaining,
            connected=len(supervisors),
            on_desired=len(active),
            states=[pb.StateCount(state=state, count=count) for state, count in counts.items() if count],
        )
    )
    answer.taken_at.FromDatetime(at)
    return answer


def a_service(name: str, state: str) -> distribution.ServiceStatus:
    return distribution.ServiceStatus(name=name, state=distribution.ServiceState.Value(f"SERVICE_STATE_{state}"))


WAITING: Final = a_supervisor(
    "waits",
    "WAITING",
    active_digest=TWO,
    services=[a_service("terms", "UNREACHABLE"), a_service("redactor", "INCAPABLE")],
)
REJECTED: Final = a_supervisor(
    "rejects",
    "REJECTED",
    active_digest=TWO,
    rejection_reasons=[distribution.REJECTION_REASON_DIGEST_MISMATCH, distribution.REJECTION_REASON_UNSUPPORTED],
    trust_bundle=pb.TRUST_BUNDLE_STATE_OUTDATED,
)
ABSENT: Final = a_supervisor("absent", "NOT_CONNECTED", age=None, active_digest="")
