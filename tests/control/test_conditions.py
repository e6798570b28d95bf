"""Conditions: coarse classes, and transition times that only transitions move."""

from datetime import timedelta

import pytest

from supervisor_middleware.control.conditions import (
    ConditionReason,
    Untimed,
    coarse,
    conditions,
    summary_of,
    timestamp,
    violations_for_status,
)
from supervisor_middleware.model.violation import Reason, Report, Subject, Violation, report
from tests.builders import NOW

SUBJECT = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")
LATER = NOW + timedelta(hours=1)


def a_report(*reasons: Reason) -> Report:
    return report(
        Violation(subject=SUBJECT, path=f"spec.{n}", reason=r, message=f"problem {n}", detail="canary", hint="do so")
        for n, r in enumerate(reasons)
    )


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ((Reason.MALFORMED, Reason.UNKNOWN_BINDING), ConditionReason.INVALID),
        ((Reason.CONFLICTED, Reason.UNKNOWN_BINDING), ConditionReason.BINDING_NOT_FOUND),
        ((Reason.SERVICE_UNREACHABLE, Reason.CONFLICTED), ConditionReason.CONFLICTED),
        ((Reason.SERVICE_UNREACHABLE, Reason.TLS_VERIFICATION_FAILED), ConditionReason.TLS_VERIFICATION_FAILED),
        ((Reason.SERVICE_UNREACHABLE,), ConditionReason.VALIDATION_PENDING),
        ((Reason.CONFIG_REJECTED,), ConditionReason.INVALID),
        ((Reason.DUPLICATE_BINDING,), ConditionReason.CONFLICTED),
    ],
)
def test_what_the_author_must_change_comes_before_what_may_pass(
    reasons: tuple[Reason, ...], expected: ConditionReason
) -> None:
    assert coarse(a_report(*reasons)) is expected


@pytest.mark.parametrize("reason", list(Reason))
def test_every_violation_has_a_class(reason: Reason) -> None:
    assert coarse(a_report(reason)) in ConditionReason


def test_a_transition_time_stays_while_the_status_stays() -> None:
    yes = Untimed(type="Ready", status=True, reason=ConditionReason.READY)
    first = [c.model_dump(by_alias=True) for c in conditions([yes], previous=[], generation=1, now=NOW)]
    assert first[0]["lastTransitionTime"] == timestamp(NOW) == "2026-03-01T12:00:00Z"
    other_words = Untimed(type="Ready", status=True, reason=ConditionReason.ACCEPTED, message="new")
    (second,) = conditions([other_words], previous=first, generation=2, now=LATER)
    assert (second.last_transition_time, second.observed_generation) == (timestamp(NOW), 2)
    no = Untimed(type="Ready", status=False, reason=ConditionReason.INVALID)
    (third,) = conditions([no], previous=first, generation=2, now=LATER)
    assert (third.last_transition_time, third.status) == (timestamp(LATER), "False")


def test_an_odd_previous_condition_is_survived() -> None:
    unknown = Untimed(type="Ready", status=None, reason=ConditionReason.PENDING)
    for previous in ({"type": "Ready", "status": "Unknown"}, {"type": "Other"}, "text", {}):
        (condition,) = conditions([unknown], previous=[previous], generation=1, now=NOW)  # type: ignore[list-item]
        assert (condition.status, condition.last_transition_time) == ("Unknown", timestamp(NOW))


def test_a_status_holds_the_first_violations_without_a_services_words() -> None:
    found = violations_for_status(a_report(*[Reason.MALFORMED] * 40))
    assert len(found) == 16
    assert "canary" not in str(found)
    long = Violation(subject=SUBJECT, path="p" * 2000, reason=Reason.MALFORMED, message="m" * 4000)
    (clipped,) = violations_for_status(report([long]))
    assert (len(clipped.path), len(clipped.message)) == (1024, 2048)


def test_a_summary_is_one_line() -> None:
    assert summary_of(Report()) == ""
    assert summary_of(a_report(Reason.MALFORMED)) == "spec.0: problem 0 (do so)"
    assert summary_of(a_report(Reason.MALFORMED, Reason.MALFORMED)) == "spec.0: problem 0 (do so) (and 1 more)"
    assert summary_of(report([Violation(subject=SUBJECT, path="", reason=Reason.MALFORMED, message="bad")])) == "bad"
