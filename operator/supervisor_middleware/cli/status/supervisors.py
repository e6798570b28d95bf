"""Who runs what, in words: of the operator's messages, for people and for machines. PURE."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from supervisor_middleware.wire.gen import distribution_pb2 as distribution
from supervisor_middleware.wire.gen import inspection_pb2 as pb

KIND: Final = "Supervisor"
TOTALS_KIND: Final = "Supervisors"
GONE: Final = "Gone"
"""The state of a sandbox that was there before; no operator says it."""

_OUTDATED: Final = "old trust bundle"


def state_of(supervisor: pb.Supervisor) -> str:
    """Its state, in one word."""
    return _camel(pb.SupervisorState.Name(supervisor.state), "SUPERVISOR_STATE_")


def title_of(supervisor: pb.Supervisor) -> str:
    """Its sandbox."""
    return f"{supervisor.namespace}/{supervisor.sandbox}"


def why(supervisor: pb.Supervisor) -> str:
    """What people should know besides the state; empty if nothing."""
    services = (f"{s.name} {_service_state(s).lower()}" for s in supervisor.services)
    outdated = (_OUTDATED,) if supervisor.trust_bundle == pb.TRUST_BUNDLE_STATE_OUTDATED else ()
    defect = _defect(supervisor)
    state = () if defect is None else (f"started without last-known-good ({defect})",)
    return ", ".join((*_reasons(supervisor), *services, *outdated, *state))


def is_good(answer: pb.SupervisorList) -> bool:
    """Whether every supervisor serves what it should."""
    return answer.totals.on_desired == answer.totals.sandboxes


def summary_of(totals: pb.Totals) -> str:
    """In one line: `3/4 on desired, 1 NotConnected`."""
    others = (
        f"{s.count} {_camel(pb.SupervisorState.Name(s.state), 'SUPERVISOR_STATE_')}"
        for s in totals.states
        if s.state != pb.SUPERVISOR_STATE_ACTIVE
    )
    return ", ".join((f"{totals.on_desired}/{totals.sandboxes} on desired", *others))


def joined(pages: Iterable[pb.SupervisorList]) -> pb.SupervisorList:
    """All pages as one answer; the totals are the last one's."""
    whole = pb.SupervisorList()
    for page in pages:
        whole.supervisors.extend(page.supervisors)
        whole.totals.CopyFrom(page.totals)
        whole.taken_at.CopyFrom(page.taken_at)
        whole.remaining = page.remaining
    return whole


def age_of(since: Timestamp, *, now: datetime) -> str:
    """As kubectl has it: `5s`, `3m`, `2h`, `4d`."""
    seconds = max(0, int((now - since.ToDatetime(UTC)).total_seconds()))
    for unit, length, up_to in (("s", 1, 120), ("m", 60, 120 * 60), ("h", 3600, 48 * 3600)):
        if seconds < up_to:
            return f"{seconds // length}{unit}"
    return f"{seconds // 86400}d"


def plain_supervisor(supervisor: pb.Supervisor) -> dict[str, Any]:
    """For machines: an entry beside those of registrations and policies."""
    s = supervisor
    desired = s.desired
    status = {
        "state": state_of(s),
        "since": _time(s, "since"),
        "pod": {"name": s.pod, "uid": s.pod_uid} if s.pod_uid else None,
        "desired": {"digest": desired.digest, "epoch": desired.epoch, "sequence": desired.sequence}
        if desired.digest
        else None,
        "prepared": s.prepared_digest or None,
        "active": s.active_digest or None,
        "reasons": list(_reasons(s)),
        "services": [{"name": service.name, "state": _service_state(service)} for service in s.services],
        "connectedSince": _time(s, "connected_since"),
        "reconnects": s.reconnects,
        "version": s.version or None,
        "stateDefect": _defect(s),
        "trustBundle": _known(pb.TrustBundleState.Name(s.trust_bundle), "TRUST_BUNDLE_STATE_"),
        "certificate": {"expiresAt": _time(s, "certificate_expires_at"), "issuer": s.certificate_issuer or None},
    }
    return {"kind": KIND, "namespace": s.namespace, "name": s.sandbox, "status": status}


def plain_totals(answer: pb.SupervisorList) -> dict[str, Any]:
    """For machines: how many there are."""
    totals = answer.totals
    status = {
        "isKnown": True,
        "takenAt": _time(answer, "taken_at"),
        "sandboxes": totals.sandboxes,
        "connected": totals.connected,
        "onDesired": totals.on_desired,
        "states": {_camel(pb.SupervisorState.Name(s.state), "SUPERVISOR_STATE_"): s.count for s in totals.states},
        "remaining": answer.remaining,
    }
    return {"kind": TOTALS_KIND, "namespace": None, "name": None, "status": status}


def plain_unknown(reason: str) -> dict[str, Any]:
    """For machines: that nobody could be asked."""
    return {
        "kind": TOTALS_KIND,
        "namespace": None,
        "name": None,
        "status": {"isKnown": False, "reason": reason},
    }


def _reasons(supervisor: pb.Supervisor) -> Iterator[str]:
    for reason in supervisor.rejection_reasons:
        yield _camel(distribution.RejectionReason.Name(reason), "REJECTION_REASON_")


def _defect(supervisor: pb.Supervisor) -> str | None:
    return _known(distribution.StateDefect.Name(supervisor.state_defect), "STATE_DEFECT_")


def _service_state(service: distribution.ServiceStatus) -> str:
    return _camel(distribution.ServiceState.Name(service.state), "SERVICE_STATE_")


def _known(name: str, prefix: str) -> str | None:
    return None if name.endswith("_UNSPECIFIED") else _camel(name, prefix)


def _camel(name: str, prefix: str) -> str:
    """`SUPERVISOR_STATE_NOT_CONNECTED` as `NotConnected`."""
    return "".join(word.capitalize() for word in name.removeprefix(prefix).split("_"))


def _time(message: pb.Supervisor | pb.SupervisorList, field: str) -> str | None:
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    stamp: Timestamp = getattr(message, field)
    return stamp.ToDatetime(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
