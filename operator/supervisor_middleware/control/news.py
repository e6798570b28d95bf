"""What a new status has to tell: Kubernetes Events and the audit trail. PURE; `status_writer` sends it.

On transitions only. An Event tells people what an object's conditions came to; the audit trail (RFC 0009 "Audit and
logging") records every validation outcome besides, so each accepted or refused spec, with the digest of what is in
force.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.control.conditions import summary_of
from supervisor_middleware.control.standings import condition
from supervisor_middleware.model.snapshot import POLICY_KINDS
from supervisor_middleware.model.violation import Report, Subject

_CHANGES: Final = {
    **{(kind.value, True): ChangeKind.POLICY_ACCEPTED for kind in POLICY_KINDS},
    **{(kind.value, False): ChangeKind.POLICY_REJECTED for kind in POLICY_KINDS},
    ("SupervisorMiddleware", True): ChangeKind.REGISTRATION_ACCEPTED,
    ("SupervisorMiddleware", False): ChangeKind.REGISTRATION_REJECTED,
}
_IN_THE_CLEAR: Final = "request content and decisions travel in the clear: use https://"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One thing to tell: `change` to the audit trail, `reason` and `message` to whoever looks at the object."""

    change: Changed | None = None
    reason: str = ""
    message: str = ""
    is_good: bool = False


def news_of(
    subject: Subject, status: Mapping[str, Any], previous: Mapping[str, Any], found: Report | None
) -> Iterator[News]:
    """What is new in `status`; `found` None: nothing was judged."""
    if found is not None:
        yield from _verdict(subject, status, previous, found)
    # RFC 0009 "Registration and delivery": OpenShell warns, and records the insecure registration.
    if _has_come("InsecureTransport", status, previous):
        change = Changed(kind=ChangeKind.REGISTRATION_INSECURE, subject=str(subject), reason="InsecureTransport")
        yield News(change=change, reason="InsecureTransport", message=_IN_THE_CLEAR)
    if _has_come("Drifted", status, previous):
        change = Changed(
            kind=ChangeKind.REGISTRATION_DRIFTED, subject=str(subject), reason="Drifted", digest=_digest(status)
        )
        yield News(change=change, reason="Drifted", message=_message(status, "Drifted"))
    if _has_come("Degraded", status, previous):
        yield News(reason="Degraded", message=_message(status, "Degraded"))


def _verdict(
    subject: Subject, status: Mapping[str, Any], previous: Mapping[str, Any], found: Report
) -> Iterator[News]:
    before, after = condition(previous, "Accepted"), condition(status, "Accepted")
    if (after, *_judged(status)) == (before, *_judged(previous)):
        return
    is_good = after[0] == "True"
    change = Changed(
        kind=_CHANGES[subject.kind, is_good],
        subject=str(subject),
        reason=after[1],
        digest=_digest(status) if is_good else "",
    )
    is_told = after == before
    yield News(
        change=change,
        reason="" if is_told else after[1],
        message=summary_of(found) or "accepted",
        is_good=is_good,
    )


def _judged(status: Mapping[str, Any]) -> tuple[object, str]:
    """Which spec the verdict is about, and what is in force."""
    return status.get("observedGeneration"), _digest(status)


def _digest(status: Mapping[str, Any]) -> str:
    """Of what is accepted: a policy's revision, or a registration's manifest."""
    for part in ("manifest", "accepted"):
        match status.get(part):
            case {"digest": str() as digest}:
                return digest
    return ""


def _has_come(kind: str, status: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    return condition(status, kind)[0] == "True" and condition(previous, kind)[0] != "True"


def _message(status: Mapping[str, Any], kind: str) -> str:
    return next((str(c.get("message", "")) for c in status.get("conditions", ()) if c.get("type") == kind), "")
