"""What is looked at again before a refusal: only what another object could have mended meanwhile."""

from typing import Any

import pytest

from supervisor_middleware.control.doubts import MAX_LOOKED_AT, Doubts, doubts
from supervisor_middleware.control.reviews import ALLOWED, Decision, Review, parse_review
from supervisor_middleware.model.violation import Reason, Subject, Violation, report
from tests.builders import NOW
from tests.control.admission_world import admission_review

POLICY = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")
OTHERS = tuple(Subject(kind="SandboxPolicy", namespace="team-a", name=f"p{n}") for n in range(MAX_LOOKED_AT + 1))


def a_review(middleware: str = "acme/redactor") -> Review:
    entry: dict[str, Any] = {"middleware": middleware, "order": 1, "endpoints": {"include": ["a.example.com"]}}
    spec = {"sandboxSelector": {}, "networkMiddlewares": {"one": entry}}
    policy = {"kind": "SandboxPolicy", "metadata": {"name": "redaction", "namespace": "team-a"}, "spec": spec}
    return parse_review(admission_review({"operation": "CREATE", "object": policy}), now=NOW)


def a_refusal(*reasons: Reason) -> Decision:
    found = [Violation(subject=POLICY, path="spec", reason=r, message=r.value) for r in reasons]
    return Decision(is_allowed=False, violations=report(found), met=OTHERS[:2])


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (ALLOWED, Doubts()),
        (Decision(is_allowed=False, is_retryable=True), Doubts()),
        (a_refusal(Reason.CONFIG_REJECTED), Doubts()),
        (a_refusal(Reason.UNKNOWN_BINDING), Doubts(registrations=True)),
        (a_refusal(Reason.CONFLICTED), Doubts(policies=OTHERS[:2])),
        (a_refusal(Reason.UNKNOWN_BINDING, Reason.CONFIG_REJECTED), Doubts(registrations=True)),
        (a_refusal(Reason.UNKNOWN_BINDING, Reason.CONFLICTED), Doubts(registrations=True, policies=OTHERS[:2])),
    ],
)
def test_doubt_follows_from_the_reasons(decision: Decision, expected: Doubts) -> None:
    found = doubts(a_review(), decision)
    assert found == expected
    assert bool(found) is (expected != Doubts())


def test_a_builtin_that_is_missing_is_missing() -> None:
    assert not doubts(a_review("openshell/none"), a_refusal(Reason.UNKNOWN_BINDING))


def test_not_everybody_is_looked_at() -> None:
    decision = Decision(is_allowed=False, violations=a_refusal(Reason.CONFLICTED).violations, met=OTHERS)
    assert len(doubts(a_review(), decision).policies) == MAX_LOOKED_AT
