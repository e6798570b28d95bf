"""What `kubectl get` and `kubectl wait` see of each situation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from supervisor_middleware.control.drift import Drift
from supervisor_middleware.control.registration_status import registration_status
from supervisor_middleware.control.standings import PolicyStanding, RegistrationStanding
from supervisor_middleware.control.status import is_news, policy_status
from supervisor_middleware.distribution.ledger import NOT_CONNECTED, State, View
from supervisor_middleware.model.canonical import short
from supervisor_middleware.model.registration import ClientAuthentication
from supervisor_middleware.model.snapshot import StoredRevision
from supervisor_middleware.model.violation import Reason, Report, Subject, Violation, report
from tests.builders import (
    NOW,
    a_binding,
    a_connection,
    a_manifest,
    a_policy,
    a_registration,
    a_revision,
    an_accepted_registration,
)

VALID = Report()
ACTIVE = View(is_connected=True, state=State.ACTIVE, is_active=True)
REVISION = a_revision()
ACCEPTED = StoredRevision(number=3, epoch=7, digest=REVISION.digest, revision=REVISION)


def a_view(state: State, *services: str) -> View:
    return View(is_connected=True, state=state, is_active=False, services=services)


def a_report(reason: Reason, *, kind: str = "SandboxPolicy") -> Report:
    subject = Subject(kind=kind, namespace="team-a", name="redaction")
    return report([Violation(subject=subject, path="spec.x", reason=reason, message="is wrong", detail="canary")])


def of_policy(
    found: Report | None = VALID,
    *,
    accepted: StoredRevision | None = ACCEPTED,
    is_current: bool | None = None,
    views: tuple[View, ...] = (ACTIVE,),
    unserved: tuple[str, ...] = (),
    degraded: tuple[str, ...] = (),
    laggards: tuple[str, ...] = (),
    previous: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    current = found is not None and found.is_valid if is_current is None else is_current
    standing = PolicyStanding(
        report=found,
        accepted=accepted,
        is_current=current,
        views=views,
        unserved=unserved,
        degraded=degraded,
        laggards=laggards,
    )
    stored = replace(a_policy(generation=4), status=previous or {})
    return policy_status(stored, standing, now=NOW)


def conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def message(status: Mapping[str, Any], kind: str) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == kind)


def test_a_policy_that_is_served() -> None:
    status = of_policy()
    assert conditions(status) == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
        "Ready": ("True", "Ready"),
        "Programmed": ("True", "Programmed"),
        "Reconciling": ("False", "Ready"),
        "Stalled": ("False", "Ready"),
    }
    assert status["accepted"] == {"revision": 3, "epoch": 7, "generation": 4, "digest": REVISION.digest}
    assert (status["observedGeneration"], status["stages"]) == (4, 1)
    assert status["supervisors"]["summary"] == "1/1"


def test_a_policy_that_is_being_validated() -> None:
    status = of_policy(None, accepted=None, views=())
    found = conditions(status)
    assert found["Accepted"] == found["Ready"] == found["ResolvedRefs"] == ("Unknown", "Pending")
    assert found["Programmed"] == ("False", "Pending")
    assert found["Reconciling"] == ("True", "Pending")
    assert "accepted" not in status


def test_a_bad_edit_says_that_the_last_revision_is_kept() -> None:
    status = of_policy(a_report(Reason.CONFIG_REJECTED))
    assert conditions(status)["Accepted"] == ("False", "Invalid")
    assert conditions(status)["Programmed"] == ("False", "Invalid")
    assert conditions(status)["Stalled"] == ("True", "Invalid")
    assert "keep the last accepted revision" in message(status, "Accepted")
    assert status["accepted"]["generation"] == 1
    assert "canary" not in str(status)


def test_a_registration_that_is_gone_is_said_to_close_hosts_not_to_be_kept() -> None:
    status = of_policy(a_report(Reason.UNKNOWN_BINDING), unserved=("redact",))
    assert message(status, "Accepted").endswith("nobody serves redact: its hosts follow onError")


@pytest.mark.parametrize(
    ("reason", "accepted", "resolved", "stalled"),
    [
        (Reason.SERVICE_UNREACHABLE, "ValidationPending", "True", "False"),
        (Reason.UNKNOWN_BINDING, "BindingNotFound", "False", "False"),
        (Reason.CONFLICTED, "Conflicted", "True", "True"),
    ],
)
def test_what_may_pass_by_itself_is_no_stall(reason: Reason, accepted: str, resolved: str, stalled: str) -> None:
    found = conditions(of_policy(a_report(reason)))
    assert found["Accepted"] == ("False", accepted)
    assert found["Programmed"] == ("False", accepted)
    assert found["ResolvedRefs"][0] == resolved
    assert found["Stalled"][0] == stalled
    assert found["Reconciling"][0] == ("False" if stalled == "True" else "True")


def test_no_sandbox_is_programmed_trivially() -> None:
    assert conditions(of_policy(views=()))["Programmed"] == ("True", "NoSandboxes")


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        ((ACTIVE, a_view(State.REJECTED), a_view(State.WAITING)), "Rejected"),
        ((ACTIVE, a_view(State.WAITING), NOT_CONNECTED), "Waiting"),
        ((ACTIVE, NOT_CONNECTED), "NotConnected"),
        ((ACTIVE, a_view(State.OFFERED)), "Progressing"),
        ((a_view(State.PREPARED),), "Progressing"),
    ],
)
def test_programmed_counts_only_those_that_serve_it(views: tuple[View, ...], reason: str) -> None:
    found = conditions(of_policy(views=views))
    assert found["Programmed"] == ("False", reason)
    assert found["Ready"] == ("True", "Ready")
    # One that is away, refuses or waits for a service keeps no roll-out tool waiting.
    assert found["Reconciling"] == (("True", "Progressing") if reason == "Progressing" else ("False", "Ready"))


def test_counts() -> None:
    views = (
        ACTIVE,
        a_view(State.PREPARED),
        a_view(State.WAITING, "acme", "b"),
        a_view(State.REJECTED),
        NOT_CONNECTED,
    )
    status = of_policy(views=views)
    assert status["supervisors"] == {
        "matched": 5,
        "connected": 4,
        "prepared": 2,
        "active": 1,
        "waiting": 1,
        "rejected": 1,
        "summary": "1/5",
    }
    waiting = of_policy(views=(a_view(State.WAITING, "acme", "b"),))
    assert message(waiting, "Programmed") == "0/1 supervisors serve it; waiting for acme, b"


def test_what_is_accepted_and_cannot_be_read_is_kept() -> None:
    kept = {"revision": 9, "epoch": 8, "generation": 2, "digest": "sha256:of-a-later-release"}
    assert of_policy(None, accepted=None, previous={"accepted": kept})["accepted"] == kept
    assert of_policy(previous={"accepted": kept})["accepted"]["revision"] == 3


def test_those_in_the_way_are_named_a_few_of_them() -> None:
    few = of_policy(views=(ACTIVE, NOT_CONNECTED), laggards=("team-a/coder",))
    assert message(few, "Programmed") == "1/2 supervisors serve it; not connected: team-a/coder"
    names = tuple(f"team-a/agent-{n}" for n in range(5))
    many = of_policy(views=(NOT_CONNECTED,) * 7, laggards=names)
    assert message(many, "Programmed").endswith("team-a/agent-3, team-a/agent-4 and 2 more")
    refused = of_policy(views=(a_view(State.REJECTED), NOT_CONNECTED), laggards=("team-a/old",))
    assert message(refused, "Programmed") == "0/2 supervisors serve it; refused by team-a/old"
    assert message(of_policy(views=(a_view(State.OFFERED),)), "Programmed") == "0/1 supervisors serve it"


def test_a_policy_whose_service_lost_what_was_accepted_is_degraded_and_stays_ready() -> None:
    status = of_policy(degraded=("audit", "redact"))
    assert conditions(status)["Degraded"] == ("True", "Drifted")
    assert "behind audit, redact no longer offers" in message(status, "Degraded")
    assert conditions(status)["Ready"] == ("True", "Ready")
    assert "Degraded" not in conditions(of_policy())


# ------------------------------------------------------------------------------------------------------- registrations


def a_drift(text: str) -> Drift:
    return Drift(text=text, offered="sha256:0123456789abcdef")


@pytest.mark.parametrize(
    ("reason", "reconciling", "stalled"),
    [
        (Reason.SERVICE_UNREACHABLE, ("True", "Unreachable"), "False"),
        (Reason.TLS_VERIFICATION_FAILED, ("True", "TLSVerificationFailed"), "False"),
        (Reason.INVALID_MANIFEST, ("False", "Invalid"), "True"),
        (Reason.DUPLICATE_BINDING, ("False", "Conflicted"), "True"),
        (None, ("True", "Pending"), "False"),
    ],
)
def test_an_outage_passes_and_a_broken_registration_stalls(
    reason: Reason | None, reconciling: tuple[str, str], stalled: str
) -> None:
    found = conditions(of_registration(None if reason is None else a_report(reason)))
    assert (found["Reconciling"], found["Stalled"][0]) == (reconciling, stalled)


def of_registration(found: Report | None = VALID, **fields: Any) -> Mapping[str, Any]:
    whole = {
        "accepted": an_accepted_registration(),
        "is_current": True,
        "policies": 2,
        "drift": Drift(),
        "last_described": NOW,
        **fields,
    }
    standing = RegistrationStanding(report=found, **whole)
    return registration_status(a_registration(generation=2), standing, now=NOW)


def test_a_registration_that_is_ready() -> None:
    manifest = a_manifest(a_binding(timeout="200ms"), a_binding("acme/other", max_body_bytes=2**40))
    status = of_registration(accepted=an_accepted_registration(manifest=manifest))
    assert conditions(status) == {
        "Reachable": ("True", "Reachable"),
        "Accepted": ("True", "Accepted"),
        "Ready": ("True", "Ready"),
        "Reconciling": ("False", "Ready"),
        "Stalled": ("False", "Ready"),
        "Drifted": ("False", "InSync"),
    }
    assert (status["bindingCount"], status["policies"], status["lastDescribed"]) == (2, 2, "2026-03-01T12:00:00Z")
    first, second = status["manifest"]["bindings"]
    assert (first["effectiveMaxBodyBytes"], first["effectiveTimeout"]) == (65536, "200ms")
    assert second["effectiveMaxBodyBytes"] == 0
    assert status["accepted"] == an_accepted_registration(manifest=manifest).to_json()


def test_a_services_own_words_are_plain_or_invalid() -> None:
    for name, version in (("evil\nname", "1.0 canary"), ("\x1b[31mred", "v" * 10_240), ("", "v" * 129)):
        manifest = replace(a_manifest(), name=name, service_version=version)
        status = of_registration(accepted=an_accepted_registration(manifest=manifest))
        assert (status["manifest"]["name"], status["manifest"]["serviceVersion"]) == ("invalid", "invalid")
    status = of_registration(
        accepted=an_accepted_registration(manifest=replace(a_manifest(), service_version="v" * 128))
    )
    assert (status["manifest"]["name"], status["manifest"]["serviceVersion"]) == ("acme-middleware", "v" * 128)


def test_a_registration_that_is_being_described() -> None:
    found = conditions(of_registration(None, accepted=None, is_current=False, last_described=None))
    assert found["Reachable"] == found["Accepted"] == found["Ready"] == ("Unknown", "Pending")


@pytest.mark.parametrize(
    ("reason", "condition"),
    [
        (Reason.SERVICE_UNREACHABLE, "Unreachable"),
        (Reason.TLS_VERIFICATION_FAILED, "TLSVerificationFailed"),
    ],
)
def test_an_outage_takes_acceptance_from_nobody(reason: Reason, condition: str) -> None:
    found = conditions(of_registration(a_report(reason)))
    assert found["Reachable"] == ("False", condition)
    assert found["Accepted"] == ("True", "Accepted")
    assert found["Ready"] == ("False", condition)


def test_an_outage_after_an_edit_is_not_acceptance() -> None:
    status = of_registration(a_report(Reason.SERVICE_UNREACHABLE), is_current=False)
    assert conditions(status)["Accepted"] == ("False", "Unreachable")
    assert "last accepted registration stays" in message(status, "Accepted")


def test_a_broken_spec_says_nothing_of_reachability() -> None:
    found = conditions(of_registration(a_report(Reason.MALFORMED), last_described=None, is_current=False))
    assert found["Reachable"] == ("Unknown", "Pending")
    assert found["Accepted"] == found["Ready"] == ("False", "Invalid")


def test_drift_is_a_condition_of_its_own() -> None:
    status = of_registration(a_report(Reason.INVALID_MANIFEST), drift=a_drift("the service offers less"))
    assert conditions(status)["Drifted"] == ("True", "Drifted")
    accepted, offered = short(an_accepted_registration().manifest.digest), "0123456789ab"
    wanted = f"the service offers less (the accepted manifest is {accepted}, the offered {offered})"
    assert message(status, "Drifted") == wanted
    assert message(of_registration(accepted=None, drift=a_drift("it is odd")), "Drifted") == "it is odd"
    assert conditions(status)["Reachable"] == ("True", "Reachable")
    assert conditions(status)["Accepted"] == ("False", "Invalid")


def test_a_service_that_offers_more_has_drifted_and_is_ready() -> None:
    found = conditions(of_registration(drift=a_drift("the service also offers a/b")))
    assert (found["Drifted"], found["Accepted"], found["Ready"]) == (
        ("True", "Drifted"),
        ("True", "Accepted"),
        ("True", "Ready"),
    )


def test_plaintext_and_anonymous_calls_are_shown() -> None:
    connection = a_connection("http://acme.svc", client_authentication=ClientAuthentication.NONE)
    found = conditions(of_registration(accepted=an_accepted_registration(connection=connection)))
    assert found["InsecureTransport"] == ("True", "Plaintext")
    assert found["CallerUnauthenticated"] == ("True", "NoClientAuthentication")


def test_only_a_later_description_is_no_news() -> None:
    status = of_registration()
    assert not is_news({**status, "lastDescribed": "2027-01-01T00:00:00Z"}, status)
    assert is_news({**status, "policies": 3}, status)
    assert is_news(status, {})
