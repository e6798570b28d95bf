"""What dashboards and alerts go by says how things stand."""

from dataclasses import replace

import pytest

from supervisor_middleware.compiler.registration import draft_registration
from supervisor_middleware.control.drift import Drift
from supervisor_middleware.control.measures import Measures
from supervisor_middleware.control.registrations import RegistrationDecision
from supervisor_middleware.model.violation import Reason, Report, Subject, Violation, report
from supervisor_middleware.telemetry import ControlMetrics
from tests.builders import a_registration, some_settings

SUBJECT = Subject(kind="SupervisorMiddleware", name="terms")
NO_DRIFT = Drift()
DRIFT = Drift(text="it offers less", offered="sha256:1")


def found(reason: Reason) -> Report:
    return report([Violation(subject=SUBJECT, path="spec", reason=reason, message="m")])


def a_decision(judged: Report | None, drift: Drift = NO_DRIFT) -> RegistrationDecision:
    stored = a_registration()
    return RegistrationDecision(
        stored=stored,
        draft=draft_registration(stored, bundles={}, settings=some_settings())[0],
        accepted=None,
        committed=None,
        report=judged,
        drift=drift,
        offered=None,
        last_described=None,
    )


DECISIONS = {
    "pending": a_decision(None),
    "ready": a_decision(Report()),
    "unreachable": a_decision(found(Reason.SERVICE_UNREACHABLE)),
    "drifted": a_decision(Report(), DRIFT),
    "refused": a_decision(found(Reason.DUPLICATE_BINDING)),
}


def value(metrics: ControlMetrics, state: str) -> float | None:
    return metrics.registry.get_sample_value("supervisor_middleware_registrations", {"state": state})


@pytest.mark.parametrize("state", DECISIONS)
def test_a_registration_is_counted_in_one_state(state: str) -> None:
    metrics = ControlMetrics()
    Measures(metrics).registered([DECISIONS[state]])
    assert {s: value(metrics, s) for s in DECISIONS} == {s: float(s == state) for s in DECISIONS}


def test_an_outage_counts_more_than_drift_and_a_bad_certificate_is_one() -> None:
    metrics = ControlMetrics()
    drifted = replace(DECISIONS["unreachable"], drift=DRIFT)
    Measures(metrics).registered([drifted, a_decision(found(Reason.TLS_VERIFICATION_FAILED))])
    assert value(metrics, "unreachable") == 2


def test_a_state_that_nothing_is_in_any_more_is_zero() -> None:
    metrics = ControlMetrics()
    measures = Measures(metrics)
    measures.registered(DECISIONS.values())
    measures.registered([])
    assert [value(metrics, s) for s in DECISIONS] == [0.0] * 5
