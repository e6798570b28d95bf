"""Violations read well, sort alike and say whether trying again helps."""

from supervisor_middleware.model.violation import Advice, Reason, Report, Subject, Violation, merge, report

POLICY = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")
SERVICE = Subject(kind="SupervisorMiddleware", name="acme")


def a_violation(
    path: str = "spec.order",
    reason: Reason = Reason.OUT_OF_RANGE,
    *,
    subject: Subject = POLICY,
    hint: str = "",
    detail: str = "",
) -> Violation:
    return Violation(subject=subject, path=path, reason=reason, message="must be small", hint=hint, detail=detail)


def test_a_subject_is_named_with_its_namespace_if_it_has_one() -> None:
    assert str(POLICY) == "SandboxPolicy team-a/redaction"
    assert str(SERVICE) == "SupervisorMiddleware acme"


def test_a_violation_reads_as_path_message_service_and_hint() -> None:
    assert str(a_violation()) == "spec.order: must be small"
    assert str(a_violation(path="")) == "must be small"
    assert str(a_violation(hint="use 1", detail="no")) == 'spec.order: must be small (the service says: "no") (use 1)'


def test_advice_reads_as_path_and_message() -> None:
    assert str(Advice(subject=POLICY, path="spec", message="dead")) == "spec: dead"
    assert str(Advice(subject=POLICY, path="", message="dead")) == "dead"


def test_a_report_is_sorted_and_says_a_thing_once() -> None:
    first, second, third = a_violation("a"), a_violation("b"), a_violation("a", subject=SERVICE)
    found = report([third, second, first, second])
    assert found.violations == (first, second, third)
    assert report([second, first, third]) == found


def test_a_report_is_valid_with_warnings_alone() -> None:
    advice = Advice(subject=POLICY, path="", message="dead")
    assert report([], [advice]).is_valid
    assert not report([a_violation()]).is_valid


def test_only_a_report_whose_every_violation_may_pass_is_retryable() -> None:
    passing = a_violation(reason=Reason.SERVICE_UNREACHABLE)
    assert report([passing]).is_retryable
    assert not report([passing, a_violation()]).is_retryable
    assert not Report().is_retryable


def test_reports_merge_into_one() -> None:
    advice = Advice(subject=SERVICE, path="", message="dead")
    merged = merge([report([a_violation("b")]), report([a_violation("a")], [advice]), Report()])
    assert [v.path for v in merged.violations] == ["a", "b"]
    assert merged.warnings == (advice,)


def test_a_service_that_cannot_be_reached_or_verified_may_pass() -> None:
    assert a_violation(reason=Reason.TLS_VERIFICATION_FAILED).is_retryable
    assert not a_violation(reason=Reason.CONFIG_REJECTED).is_retryable
