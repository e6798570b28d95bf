"""Conditions of any standing keep kstatus' rules, so that GitOps tools are neither misled nor kept waiting.

https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus: `Reconciling` and `Stalled` are abnormal-true;
an object whose `observedGeneration` is behind is in progress.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.control.drift import Drift
from supervisor_middleware.control.registration_status import registration_status
from supervisor_middleware.control.standings import PolicyStanding, RegistrationStanding
from supervisor_middleware.control.status import policy_status
from supervisor_middleware.distribution.ledger import NOT_CONNECTED, State, View
from supervisor_middleware.model.snapshot import StoredRevision
from supervisor_middleware.model.statuses import NOT_OBSERVED, SandboxPolicyStatus, SupervisorMiddlewareStatus
from supervisor_middleware.model.violation import Reason, Report, Subject, Violation, report
from tests.builders import NOW, a_policy, a_registration, a_revision, an_accepted_registration

SUBJECT = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")
REVISION = a_revision()
ACCEPTED = StoredRevision(number=3, epoch=7, digest=REVISION.digest, revision=REVISION)
LATER = NOW + timedelta(hours=1)
MOVING = {State.IDLE, State.OFFERED, State.PREPARED}
POLICY_TYPES = {"Accepted", "ResolvedRefs", "Ready", "Programmed", "Reconciling", "Stalled"}
REGISTRATION_TYPES = {"Reachable", "Accepted", "Ready", "Reconciling", "Stalled", "Drifted"}


def a_report(reasons: list[Reason]) -> Report:
    return report(Violation(subject=SUBJECT, path=f"spec.{n}", reason=r, message="m") for n, r in enumerate(reasons))


REPORTS = st.one_of(
    st.none(), st.just(Report()), st.lists(st.sampled_from(Reason), min_size=1, max_size=3).map(a_report)
)
VIEWS = st.one_of(
    st.just(NOT_CONNECTED),
    st.sampled_from(State).map(lambda s: View(is_connected=True, state=s, is_active=s is State.ACTIVE)),
)


@st.composite
def policy_standings(draw: st.DrawFn) -> PolicyStanding:
    found = draw(REPORTS)
    is_good = found is not None and found.is_valid
    return PolicyStanding(
        report=found,
        # What is valid was stored, or nothing would be said of it.
        accepted=ACCEPTED if is_good else draw(st.sampled_from([None, ACCEPTED])),
        is_current=is_good,
        views=draw(st.lists(VIEWS, max_size=5)),
        unserved=draw(st.sampled_from([(), ("redact",)])),
        degraded=draw(st.sampled_from([(), ("redact",)])),
        laggards=draw(st.sampled_from([(), ("team-a/coder",)])),
    )


@st.composite
def registration_standings(draw: st.DrawFn) -> RegistrationStanding:
    found, accepted = draw(REPORTS), draw(st.sampled_from([None, an_accepted_registration()]))
    is_good = found is not None and found.is_valid
    return RegistrationStanding(
        report=found,
        accepted=an_accepted_registration() if is_good else accepted,
        is_current=is_good or (accepted is not None and draw(st.booleans())),
        policies=draw(st.integers(0, 3)),
        drift=draw(st.sampled_from([Drift(), Drift(text="it offers less", offered="sha256:1")])),
        last_described=NOW if is_good else draw(st.sampled_from([None, NOW])),
    )


def kstatus(status: Mapping[str, Any], *, generation: int) -> str:
    """What cli-utils' `pkg/kstatus/status` computes of an object of a kind that it does not know."""
    if status.get("observedGeneration", generation) != generation:
        return "InProgress"
    held = {c["type"]: c["status"] for c in status.get("conditions", ())}
    if held.get("Stalled") == "True":
        return "Failed"
    if held.get("Reconciling") == "True":
        return "InProgress"
    return "Current" if held.get("Ready", "True") == "True" else "InProgress"


def check(status: Mapping[str, Any], types: set[str]) -> dict[str, str]:
    """What holds of every status; the conditions by type."""
    conditions = status["conditions"]
    held = {c["type"]: c["status"] for c in conditions}
    assert len(held) == len(conditions)
    assert types <= held.keys()
    assert {c["observedGeneration"] for c in conditions} == {status["observedGeneration"]} == {4}
    assert not (held["Stalled"] == "True" == held["Reconciling"])
    assert not (held["Stalled"] == "True" == held["Ready"])
    # Never neither: it would be in progress for ever, and nobody would say so.
    assert held["Ready"] == "True" or "True" in {held["Stalled"], held["Reconciling"]}
    assert held["Ready"] != "Unknown" or held["Reconciling"] == "True"
    return held


@given(standing=policy_standings())
def test_conditions_of_a_policy(standing: PolicyStanding) -> None:
    status = policy_status(a_policy(generation=4), standing, now=NOW)
    SandboxPolicyStatus.model_validate(status)
    held = check(status, POLICY_TYPES)
    assert (held["Ready"] == "True") == (held["Accepted"] == held["ResolvedRefs"] == "True")
    is_moving = any(v.is_connected and v.state in MOVING for v in standing.views)
    if held["Ready"] == "True":
        assert (held["Reconciling"] == "True") == is_moving
    assert (held["Programmed"] == "True") == (standing.is_current and all(v.is_active for v in standing.views))
    # One that is away, refuses or waits for a service keeps no roll-out tool waiting.
    expected = "InProgress" if is_moving else "Current"
    assert held["Ready"] != "True" or kstatus(status, generation=4) == expected
    assert kstatus(status, generation=5) == "InProgress"


@given(standing=registration_standings())
def test_conditions_of_a_registration(standing: RegistrationStanding) -> None:
    status = registration_status(a_registration(generation=4), standing, now=NOW)
    SupervisorMiddlewareStatus.model_validate(status)
    held = check(status, REGISTRATION_TYPES)
    assert held["Ready"] != "True" or (held["Accepted"] == "True" != held["Reconciling"])
    assert held["Ready"] != "True" or kstatus(status, generation=4) == "Current"
    assert (held["Drifted"] == "True") == bool(standing.drift)


@given(before=policy_standings(), after=policy_standings())
def test_a_transition_time_moves_with_the_status_and_with_nothing_else(
    before: PolicyStanding, after: PolicyStanding
) -> None:
    policy = a_policy(generation=4)
    first = policy_status(policy, before, now=NOW)
    second = policy_status(replace(policy, status=first), after, now=LATER)
    known = {c["type"]: c for c in first["conditions"]}
    for condition in second["conditions"]:
        previous = known.get(condition["type"])
        is_same = previous is not None and previous["status"] == condition["status"]
        assert (condition["lastTransitionTime"] == "2026-03-01T12:00:00Z") == is_same


def test_what_nobody_has_looked_at_is_in_progress() -> None:
    assert kstatus({"observedGeneration": NOT_OBSERVED}, generation=1) == "InProgress"
    assert kstatus({}, generation=1) == "Current"  # what the CRD's default is there for
