import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

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
from supervisor_middleware.audit.ocsf import records
from supervisor_middleware.model.evaluation import Decision, FailureCode
from tests.audit.schema import problems

NOW = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
STAGE = StageRef(
    request_id="request-1",
    policy="team/policy",
    key="redact",
    binding="acme/redactor",
    host="api.example.com",
    port=443,
    method="POST",
)
LATENCY = timedelta(microseconds=12_345)
ALLOWED = Invoked(stage=STAGE, decision=Decision.ALLOW, is_transformed=True, latency=LATENCY)
DENIED = Invoked(stage=STAGE, decision=Decision.DENY, is_transformed=False, latency=LATENCY)
FOUND = Found(stage=STAGE, type="acme.finding", count=3, severity=Severity.LOW)


def failed(code: FailureCode = FailureCode.TIMEOUT) -> Failed:
    return Failed(stage=STAGE, code=code, latency=LATENCY)


def bypassed(code: FailureCode = FailureCode.TIMEOUT) -> Bypassed:
    return Bypassed(stage=STAGE, code=code, latency=LATENCY)


def every_event() -> Iterator[Event]:
    yield from (ALLOWED, DENIED, FOUND)
    yield from (replace(FOUND, severity=severity) for severity in Severity)
    for code in FailureCode:
        yield from (failed(code), bypassed(code))
    for kind in ChangeKind:
        yield Changed(kind=kind, subject="SandboxPolicy team/policy", reason="Conflicted", digest="sha256:0")
        yield Changed(kind=kind, subject="SupervisorMiddleware acme")


def written(event: Event) -> Any:
    return records(event, time=NOW, product_version="1.2.3", device="team/sandbox-1")


def record(event: Event) -> Any:
    """Of several, the one that says most."""
    return written(event)[-1]


@pytest.mark.parametrize("event", list(every_event()), ids=repr)
def test_event_is_valid_ocsf(event: Event) -> None:
    assert not any(problems(r) for r in written(event))
    for r in written(event):
        assert (r["time"], r["type_uid"]) == (1767323045679, int(f"{r['class_uid']}{r['activity_id']:02}"))
        assert json.loads(json.dumps(r)) == r


@pytest.mark.parametrize(
    ("event", "class_uid", "severity"),
    [
        (ALLOWED, 4002, "Informational"),
        (DENIED, 4002, "Medium"),
        (failed(), 2004, "High"),
        (bypassed(), 2004, "Medium"),
        (bypassed(FailureCode.UNRESOLVED_STAGE), 2004, "Medium"),
        (bypassed(FailureCode.UNINSPECTABLE), 2004, "Medium"),
        (failed(FailureCode.UNINSPECTABLE), 2004, "High"),
        # RFC 0009: "invalid responses ... are High", for optional stages too.
        (bypassed(FailureCode.INVALID_DECISION), 2004, "High"),
        (bypassed(FailureCode.FINDINGS_OVER_CAPACITY), 2004, "High"),
        (bypassed(FailureCode.MUTATION_UNSAFE_VALUE), 2004, "High"),
        (FOUND, 2004, "Low"),
        (Changed(kind=ChangeKind.POLICY_ACCEPTED, subject="s"), 5019, "Informational"),
        (Changed(kind=ChangeKind.POLICY_REJECTED, subject="s"), 5019, "Medium"),
        (Changed(kind=ChangeKind.REGISTRATION_INSECURE, subject="s"), 5019, "Medium"),
        (Changed(kind=ChangeKind.GENERATION_WAITING, subject="s"), 5019, "Low"),
        (Changed(kind=ChangeKind.STATE_DEFECTIVE, subject="s", reason="corrupt"), 5019, "High"),
    ],
)
def test_class_and_severity(event: Event, class_uid: int, severity: str) -> None:
    r = record(event)
    assert (r["class_uid"], r["severity"]) == (class_uid, severity)


def test_allowed_invocation_in_full() -> None:
    assert record(ALLOWED) == {
        "metadata": {
            "version": "1.8.0",
            "product": {
                "name": "supervisor-middleware",
                "vendor_name": "supervisor-middleware",
                "version": "1.2.3",
            },
            "profiles": ["host", "security_control"],
        },
        "time": 1767323045679,
        "category_uid": 4,
        "class_uid": 4002,
        "activity_id": 99,
        "activity_name": "Middleware Evaluation",
        "type_uid": 400299,
        "severity_id": 1,
        "severity": "Informational",
        "device": {"name": "team/sandbox-1", "type_id": 99, "type": "Workload"},
        "action_id": 1,
        "action": "Allowed",
        "disposition_id": 1,
        "disposition": "Allowed",
        "status_id": 1,
        "status": "Success",
        "message": "MIDDLEWARE redact acme/redactor decision=Allow",
        "duration": 12,
        "firewall_rule": {"name": "team/policy", "type": "middleware", "uid": "team/policy/redact"},
        "http_request": {
            "url": {"hostname": "api.example.com", "port": 443, "url_string": "//api.example.com:443"},
            "http_method": "POST",
        },
        "dst_endpoint": {"domain": "api.example.com", "port": 443},
        "unmapped": {
            "request_id": "request-1",
            "policy": "team/policy",
            "middleware": "redact",
            "binding": "acme/redactor",
            "transformed": True,
            "failed": False,
            "latency_ms": 12.345,
        },
    }


def test_denial_says_which_stage_denied() -> None:
    r = record(DENIED)
    assert (r["action"], r["disposition"], r["status"], r["status_detail"]) == (
        "Denied",
        "Blocked",
        "Failure",
        "middleware_denied:redact",
    )


@pytest.mark.parametrize(("event", "action"), [(failed(), "Denied"), (bypassed(), "Allowed")])
def test_failure_is_an_activity_and_also_a_detection(event: Event, action: str) -> None:
    activity, detection = records(event, time=NOW, product_version="1", device="d")
    assert (activity["class_uid"], detection["class_uid"]) == (4002, 2004)
    assert activity["action"] == detection["action"] == action
    assert activity["status_detail"] == "middleware_timeout"
    assert detection["is_alert"] is True


@pytest.mark.parametrize(
    ("code", "uid"),
    [
        (FailureCode.TIMEOUT, "openshell.middleware.failure"),
        (FailureCode.REQUEST_BODY_OVER_CAPACITY, "openshell.middleware.body_unavailable"),
        (FailureCode.UNINSPECTABLE, "openshell.middleware.traffic_uninspectable"),
    ],
)
def test_detection_is_named_by_what_failed(code: FailureCode, uid: str) -> None:
    assert record(failed(code))["finding_info"]["uid"] == uid


def test_finding_carries_type_and_count() -> None:
    r = record(FOUND)
    assert (r["finding_info"]["uid"], r["evidences"][0]["data"]["count"]) == ("acme.finding", 3)
    assert r["is_alert"] is False


def test_a_publication_says_for_how_many_and_which() -> None:
    r = record(Changed(kind=ChangeKind.GENERATION_PUBLISHED, subject="3 sandboxes", digest="sha256:0", count=3))
    assert (r["message"], r["status"]) == ("generation_published 3 sandboxes", "Success")
    assert r["unmapped"] == {
        "change": "generation_published",
        "subject": "3 sandboxes",
        "digest": "sha256:0",
        "sandboxes": 3,
    }


@pytest.mark.parametrize(
    ("kind", "state", "status"),
    [
        (ChangeKind.REGISTRATION_DRIFTED, "Drifted", "Failure"),
        (ChangeKind.CREDENTIALS_ROTATED, "Enabled", "Success"),
        (ChangeKind.LEADERSHIP_ACQUIRED, "Enabled", "Success"),
        (ChangeKind.LEADERSHIP_LOST, "Disabled", "Success"),
    ],
)
def test_state_of_a_change(kind: ChangeKind, state: str, status: str) -> None:
    r = record(Changed(kind=kind, subject="s"))
    assert (r["state"], r["status"]) == (state, status)


def test_what_the_schema_refuses_is_noticed() -> None:
    good = record(Changed(kind=ChangeKind.GENERATION_WAITING, subject="s"))
    assert problems(good) == []
    for broken in (
        {k: v for k, v in good.items() if k != "device"},
        {k: v for k, v in good.items() if k != "state"},
        {**good, "state_id": 7},
        {**good, "time": 1.5},
        {**good, "type_uid": 501900},
        {**good, "category_uid": 4},
        {**good, "metadata": {**good["metadata"], "version": "1.7.0"}},
        {**good, "secret": "s"},
    ):
        assert problems(broken)


def test_unusual_method_and_ipv6_host_stay_valid() -> None:
    r = record(replace(ALLOWED, stage=replace(STAGE, method="SECRETMETHOD", host="[::1]")))
    assert "SECRETMETHOD" not in json.dumps(r)
    assert r["dst_endpoint"] == {"ip": "::1", "port": 443}
    assert problems(r) == []
