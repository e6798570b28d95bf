"""Audit events as a security team's tools read them: OCSF 1.8.0. PURE: event in, JSON object out.

RFC 0009 "Audit and logging": per-invocation decisions are HTTP Activity; failures, bypasses and findings are
Detection Findings; configuration is Device Config State Change. Owns classes, identifiers, severities and words.
Reads nothing but the event, which cannot hold content; the words are constants. Called by `sink`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, TypeAlias, assert_never

from supervisor_middleware.audit.events import (
    Bypassed,
    Changed,
    ChangeKind,
    Event,
    Failed,
    Found,
    Invoked,
    Severity,
    StageRef,
)
from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.model.evaluation import Decision, FailureCode

OCSF_VERSION: Final = "1.8.0"
PRODUCT: Final = "supervisor-middleware"

Record: TypeAlias = dict[str, JsonValue]

_HTTP_ACTIVITY: Final = 4002
_DETECTION_FINDING: Final = 2004
_CONFIG_STATE_CHANGE: Final = 5019

# RFC 0009: "invalid responses ... are High", whatever the stage's `on_error`. The codes are the contract's.
_INVALID_ANSWERS: Final = ("invalid_response_", "response_", "header_mutation_")
_SEVERITY_IDS: Final = {Severity.INFORMATIONAL: 1, Severity.LOW: 2, Severity.MEDIUM: 3, Severity.HIGH: 4}
# The closed list of OCSF 1.8.0; any other method is the agent's own text and stays out.
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_FINDING_UIDS: Final = {
    FailureCode.REQUEST_BODY_OVER_CAPACITY: "openshell.middleware.body_unavailable",
    FailureCode.UNINSPECTABLE: "openshell.middleware.traffic_uninspectable",
}
_FAILURE_UID: Final = "openshell.middleware.failure"


class _Disposition(Enum):
    """What became of the request: OCSF's action and disposition."""

    ALLOWED = (1, "Allowed", 1, "Allowed")
    DENIED = (2, "Denied", 2, "Blocked")

    def attributes(self) -> Record:
        action_id, action, disposition_id, disposition = self.value
        return {
            "action_id": action_id,
            "action": action,
            "disposition_id": disposition_id,
            "disposition": disposition,
        }


@dataclass(frozen=True, slots=True)
class _State:
    """A configuration change: OCSF's state, and whether it is a success."""

    state_id: int
    state: str
    status_id: int
    status: str
    severity: Severity


_ENABLED: Final = _State(2, "Enabled", 1, "Success", Severity.INFORMATIONAL)
_WARNED: Final = _State(2, "Enabled", 1, "Success", Severity.MEDIUM)
_REJECTED: Final = _State(99, "Rejected", 2, "Failure", Severity.MEDIUM)
_DRIFTED: Final = _State(99, "Drifted", 2, "Failure", Severity.MEDIUM)
_LOST: Final = _State(1, "Disabled", 1, "Success", Severity.LOW)
_MISSING: Final = _State(99, "Missing", 2, "Failure", Severity.HIGH)
_WAITING: Final = _State(99, "Waiting", 99, "Waiting", Severity.LOW)
_DEFECTIVE: Final = _State(99, "Defective", 2, "Failure", Severity.HIGH)
_STATES: Final = {
    ChangeKind.REGISTRATION_ACCEPTED: _ENABLED,
    ChangeKind.REGISTRATION_REJECTED: _REJECTED,
    ChangeKind.REGISTRATION_INSECURE: _WARNED,
    ChangeKind.REGISTRATION_DRIFTED: _DRIFTED,
    ChangeKind.POLICY_ACCEPTED: _ENABLED,
    ChangeKind.POLICY_REJECTED: _REJECTED,
    ChangeKind.GENERATION_PUBLISHED: _ENABLED,
    ChangeKind.GENERATION_ACTIVATED: _ENABLED,
    ChangeKind.GENERATION_REJECTED: _REJECTED,
    ChangeKind.GENERATION_WAITING: _WAITING,
    ChangeKind.STATE_DEFECTIVE: _DEFECTIVE,
    ChangeKind.CREDENTIALS_ISSUED: _ENABLED,
    ChangeKind.CREDENTIALS_ROTATED: _ENABLED,
    ChangeKind.JOIN_REFUSED: _REJECTED,
    ChangeKind.TRUST_BUNDLE_CHANGED: _ENABLED,
    ChangeKind.ROOT_STEADY: _ENABLED,
    ChangeKind.ROOT_PREPARED: _ENABLED,
    ChangeKind.ROOT_ACTIVATED: _ENABLED,
    ChangeKind.ROOT_TAINTED: _ENABLED,
    ChangeKind.ROOT_REVOKED: _ENABLED,
    ChangeKind.ROOT_FORCED: _WARNED,
    ChangeKind.ROOT_REQUEST_REFUSED: _REJECTED,
    ChangeKind.ROOT_REFUSED: _REJECTED,
    ChangeKind.ROOT_MISSING: _MISSING,
    ChangeKind.LEADERSHIP_ACQUIRED: _ENABLED,
    ChangeKind.LEADERSHIP_LOST: _LOST,
}


def records(event: Event, *, time: datetime, product_version: str, device: str) -> tuple[Record, ...]:
    """All that is written for `event`: RFC 0009: failures and bypasses "*also* emit DetectionFinding events".

    Args:
        event: what happened.
        time: when; aware.
        product_version: this product's version.
        device: who emits: a sandbox's or replica's name.
    """
    base = _Base(time=time, product_version=product_version, device=device)
    match event:
        case Invoked():
            return (_activity(event, base),)
        case Failed() | Bypassed():
            return (_activity(event, base), _finding(event, base))
        case Found():
            return (_finding(event, base),)
        case Changed():
            return (_change(event, base),)
        case _:
            assert_never(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """What every event needs from outside."""

    time: datetime
    product_version: str
    device: str

    def attributes(self, *, class_uid: int, activity_id: int, activity: str, severity: Severity) -> Record:
        return {
            "metadata": {
                "version": OCSF_VERSION,
                "product": {"name": PRODUCT, "vendor_name": PRODUCT, "version": self.product_version},
                "profiles": ["host"] if class_uid == _CONFIG_STATE_CHANGE else ["host", "security_control"],
            },
            "time": round(self.time.timestamp() * 1000),
            "category_uid": class_uid // 1000,
            "class_uid": class_uid,
            "activity_id": activity_id,
            "activity_name": activity,
            "type_uid": class_uid * 100 + activity_id,
            "severity_id": _SEVERITY_IDS[severity],
            "severity": severity.value,
            "device": {"name": self.device, "type_id": 99, "type": "Workload"},
        }


def _activity(event: Invoked | Failed | Bypassed, base: _Base) -> Record:
    stage, disposition = event.stage, _disposition(event)
    verb = "Deny" if disposition is _Disposition.DENIED else "Allow"
    severity = Severity.MEDIUM if disposition is _Disposition.DENIED else Severity.INFORMATIONAL
    return {
        **base.attributes(
            class_uid=_HTTP_ACTIVITY, activity_id=99, activity="Middleware Evaluation", severity=severity
        ),
        **disposition.attributes(),
        **_status(event),
        "message": f"MIDDLEWARE {stage.key} {stage.binding} decision={verb}",
        "duration": round(event.latency / timedelta(milliseconds=1)),
        "firewall_rule": _rule(stage),
        "http_request": _http_request(stage),
        "dst_endpoint": _endpoint(stage),
        "unmapped": {
            **_stage(stage),
            "transformed": isinstance(event, Invoked) and event.is_transformed,
            "failed": not isinstance(event, Invoked),
            "latency_ms": _milliseconds(event.latency),
        },
    }


def _finding(event: Failed | Bypassed | Found, base: _Base) -> Record:
    stage = event.stage
    uid, title, detail = _described(event)
    return {
        **base.attributes(class_uid=_DETECTION_FINDING, activity_id=1, activity="Create", severity=_severity(event)),
        **({} if isinstance(event, Found) else _disposition(event).attributes()),
        "status_id": 1,
        "status": "New",
        "message": f"{title}: {stage.key} {stage.binding}",
        "is_alert": not isinstance(event, Found),
        "firewall_rule": _rule(stage),
        "finding_info": {"uid": uid, "title": title},
        "evidences": [{"dst_endpoint": _endpoint(stage), "data": {**_stage(stage), **detail}}],
        "unmapped": {**_stage(stage), **detail},
    }


def _change(event: Changed, base: _Base) -> Record:
    state = _STATES[event.kind]
    unmapped: Record = {"change": event.kind.value, "subject": event.subject}
    if event.reason:
        unmapped["reason"] = event.reason
    if event.digest:
        unmapped["digest"] = event.digest
    if event.count:
        unmapped["sandboxes"] = event.count
    if event.request:
        unmapped["request"] = event.request
    return {
        **base.attributes(class_uid=_CONFIG_STATE_CHANGE, activity_id=1, activity="Log", severity=state.severity),
        "state_id": state.state_id,
        "state": state.state,
        "status_id": state.status_id,
        "status": state.status,
        "message": " ".join(text for text in (event.kind.value, event.subject, event.reason) if text),
        "unmapped": unmapped,
    }


def _described(event: Failed | Bypassed | Found) -> tuple[str, str, Record]:
    """The finding's identifier, its title, and the numbers or codes behind it."""
    match event:
        case Found():
            return event.type, "Middleware reported a finding", {"count": event.count}
        case Failed():
            title = "Required middleware gave no valid result; the request was denied"
        case Bypassed():
            title = "Middleware gave no valid result and was bypassed"
        case _:
            assert_never(event)
    detail: Record = {"code": event.code.value, "latency_ms": _milliseconds(event.latency)}
    return _FINDING_UIDS.get(event.code, _FAILURE_UID), title, detail


def _severity(event: Failed | Bypassed | Found) -> Severity:
    match event:
        case Found():
            return event.severity
        case Failed():
            return Severity.HIGH
        case Bypassed():
            return Severity.HIGH if event.code.startswith(_INVALID_ANSWERS) else Severity.MEDIUM
        case _:
            assert_never(event)


def _disposition(event: Invoked | Failed | Bypassed) -> _Disposition:
    match event:
        case Invoked():
            return _Disposition.ALLOWED if event.decision is Decision.ALLOW else _Disposition.DENIED
        case Failed():
            return _Disposition.DENIED
        case Bypassed():
            return _Disposition.ALLOWED
        case _:
            assert_never(event)


def _status(event: Invoked | Failed | Bypassed) -> Record:
    if not isinstance(event, Invoked):
        return {"status_id": 2, "status": "Failure", "status_detail": event.code.value}
    if event.decision is Decision.ALLOW:
        return {"status_id": 1, "status": "Success"}
    return {"status_id": 2, "status": "Failure", "status_detail": f"middleware_denied:{event.stage.key}"}


def _stage(stage: StageRef) -> Record:
    return {
        "request_id": stage.request_id,
        "policy": stage.policy,
        "middleware": stage.key,
        "binding": stage.binding,
    }


def _rule(stage: StageRef) -> Record:
    return {"name": stage.policy, "type": "middleware", "uid": f"{stage.policy}/{stage.key}"}


def _endpoint(stage: StageRef) -> Record:
    if stage.host.startswith("["):
        return {"ip": stage.host.strip("[]"), "port": stage.port}
    return {"domain": stage.host, "port": stage.port}


def _http_request(stage: StageRef) -> Record:
    # Neither path nor query: they are the agent's content. RFC 3986 section 4.2: a network-path reference.
    url: Record = {"hostname": stage.host, "port": stage.port, "url_string": f"//{stage.host}:{stage.port}"}
    return {"url": url, "http_method": stage.method} if stage.method in _METHODS else {"url": url}


def _milliseconds(latency: timedelta) -> float:
    return round(latency / timedelta(milliseconds=1), 3)
