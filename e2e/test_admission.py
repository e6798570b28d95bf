"""The webhook behind a real API server: everything that is wrong is said at once, and what is right is let through."""

import json
import re
import secrets
from collections.abc import Iterator

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import Installation, a_pod, service_credentials
from e2e.objects import Document, a_policy, a_registration, an_entry, changed
from e2e.services import REJECTION, Host, Scripted, a_manifest

_BINDING = "acme/scripted"
_MIDDLEWARES = "spec.networkMiddlewares"


@pytest.fixture(scope="module")
def service(installation: Installation, services: Host) -> Scripted:
    """One service, registered and accepted."""
    scripted = services.serve(Scripted(a_manifest(_BINDING)))
    installation.apply(a_registration("scripted", endpoint=scripted.endpoint))
    installation.await_condition("smw", "scripted", "Ready=True/Ready")
    return scripted


def _entry(*, order: int = 0, **config: object) -> Document:
    return an_entry(_BINDING, order=order, config=config)


def test_every_violation_is_said_at_once_with_path_message_and_hint(
    installation: Installation, service: Scripted, namespace: str
) -> None:
    policy = a_policy(
        "mistaken",
        namespace=namespace,
        misspelt=an_entry("acme/scriptde", order=1),
        rejected=_entry(order=2, wrong="s3cret"),
        unknown_mode=an_entry(order=3, config={"mode": "reveal"}),
        no_builtin=an_entry("openshell/rot13", order=4),
        too_large=_entry(order=5, list=["x" * 1000] * 66),
        inexact=_entry(order=6, number=2**53 + 1),
        fine=_entry(order=7, list=["x"]),
    )
    said = installation.refusal(policy)
    assert 'The SandboxPolicy "mistaken" is invalid' in said
    violations = [line for line in said.splitlines() if line.startswith("* ")]
    assert len(violations) == 6
    for line in (
        f"{_MIDDLEWARES}.misspelt.middleware: no accepted registration serves this binding (did you mean {_BINDING}?)",
        f"{_MIDDLEWARES}.rejected.config: service scripted does not accept this config for {_BINDING}",
        f'(the service says: "{REJECTION}") (see the documentation of the middleware)',
        f"{_MIDDLEWARES}.unknown-mode.config: built-in openshell/regex does not accept this config for openshell/regex",
        f"{_MIDDLEWARES}.no-builtin.middleware: is no built-in; built-ins: openshell/regex",
        f"{_MIDDLEWARES}.too-large.config: is 66",
        "bytes encoded, the limit is 65536 (keep large data in the service)",
        f"{_MIDDLEWARES}.inexact.config: holds a number that a double cannot hold exactly",
    ):
        assert line in said
    assert "s3cret" not in said
    assert not any(f"{_MIDDLEWARES}.fine" in line for line in violations)
    assert "s3cret" not in installation.operator.log.read_text()


def test_a_client_can_read_the_violations_as_causes(
    installation: Installation, service: Scripted, namespace: str, control_plane: ControlPlane
) -> None:
    policy = a_policy(
        "mistaken", namespace=namespace, rejected=_entry(wrong=1), typo=an_entry("acme/scriptde", order=9)
    )
    path = f"/apis/middleware.openshell.io/v1alpha1/namespaces/{namespace}/sandboxpolicies"
    # At that level kubectl logs the answer as it came.
    result = control_plane.kubectl(
        "create", f"--raw={path}", "-v=9", "-f", "-", input=json.dumps(policy), check=False
    )
    found = re.search(r'^\s*({"kind":"Status".*})$', result.stderr, re.MULTILINE)
    assert found is not None
    status = json.loads(found[1])
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert f"denied the request: SandboxPolicy {namespace}/mistaken has 2 violations:" in status["message"]
    assert (status["details"]["kind"], status["details"]["name"]) == ("SandboxPolicy", "mistaken")
    assert [(c["reason"], c["field"]) for c in status["details"]["causes"]] == [
        ("ConfigRejected", f"{_MIDDLEWARES}.rejected.config"),
        ("UnknownBinding", f"{_MIDDLEWARES}.typo.middleware"),
    ]


def test_a_dry_run_is_judged_and_stores_nothing(
    installation: Installation, service: Scripted, namespace: str, control_plane: ControlPlane
) -> None:
    def dry_run(policy: Document) -> str:
        arguments = ("apply", "--dry-run=server", "-f", "-")
        result = control_plane.kubectl(*arguments, input=yaml.safe_dump(policy), check=False)
        return result.stdout + result.stderr

    assert "created (server dry run)" in dry_run(a_policy("tried", namespace=namespace, fine=_entry()))
    assert REJECTION in dry_run(a_policy("tried", namespace=namespace, rejected=_entry(wrong=1)))
    assert control_plane.kubectl("get", "sbp", "-n", namespace, "-o", "name").stdout == ""


def test_a_service_is_asked_about_each_config_once(
    installation: Installation, service: Scripted, namespace: str, control_plane: ControlPlane
) -> None:
    def about(policy: Document) -> list[object]:
        installation.apply(policy)
        installation.await_condition("sbp", "asked", "Ready=True/Ready", namespace=namespace)
        return [c for c in service.validated if c.get("of") == namespace]

    policy = a_policy("asked", namespace=namespace, one=_entry(of=namespace, v=1))
    first = about(policy)
    assert first == [{"of": namespace, "v": 1}]

    control_plane.kubectl("label", "sbp", "asked", "-n", namespace, "team=red")
    control_plane.kubectl("annotate", "sbp", "asked", "-n", namespace, "note=seen")
    assert about(policy) == first, "metadata alone asks nobody"
    assert about(changed(policy, f"{_MIDDLEWARES}.one.order", 5)) == first, "the same config is the same question"
    assert about(a_policy("asked", namespace=namespace, two=_entry(v=1, of=namespace))) == first

    second = about(a_policy("asked", namespace=namespace, two=_entry(of=namespace, v=2)))
    assert second == [*first, {"of": namespace, "v": 2}]


def test_a_redactor_that_fails_open_is_admitted_with_a_warning(installation: Installation, namespace: str) -> None:
    said = _applied(installation, a_policy("open", namespace=namespace, redact=an_entry(onError="FailOpen")))
    assert f"Warning: {_MIDDLEWARES}.redact.onError: when " in said


@pytest.fixture
def registration(installation: Installation) -> Iterator[str]:
    """A name for a registration of this test, removed afterwards."""
    name = f"tried-{secrets.token_hex(4)}"
    yield name
    installation.plane.kubectl("delete", "smw", name, "--ignore-not-found")


def test_plaintext_is_admitted_with_a_warning_and_shown(
    installation: Installation, service: Scripted, registration: str
) -> None:
    said = _applied(installation, a_registration(registration, endpoint="http://127.0.0.1:9"))
    assert "Warning: spec.allowInsecure: request content and decisions travel in the clear" in said
    assert installation.condition("smw", "scripted", "InsecureTransport") == "True/Plaintext"


def test_a_registration_is_admitted_without_dialling_and_refused_for_what_it_says_itself(
    installation: Installation, registration: str
) -> None:
    said = installation.refusal(
        a_registration(registration, endpoint="https://redactor:0", tls={"caBundle": "no certificate"})
    )
    assert f'The SupervisorMiddleware "{registration}" is invalid' in said
    assert "spec.grpcEndpoint: port 0 is nobody's (check the port)" in said
    assert "spec.tls.caBundle: must hold PEM certificates and nothing else (paste the certificates" in said
    installation.apply(a_registration(registration, endpoint="https://nobody.invalid:443"))


def test_a_private_key_in_a_ca_bundle_is_refused_without_being_shown(
    installation: Installation, registration: str
) -> None:
    key = service_credentials().private_key_pem.reveal().decode()
    said = installation.refusal(a_registration(registration, tls={"caBundle": key}))
    assert "spec.tls.caBundle: must hold PEM certificates and nothing else" in said
    assert "never a key" in said
    assert "PRIVATE KEY" not in said.replace("-----BEGIN", "")


def test_a_service_that_is_down_makes_a_refusal_that_says_to_try_again(
    installation: Installation, services: Host, registration: str, namespace: str
) -> None:
    mortal = services.serve(Scripted(a_manifest("acme/mortal")))
    installation.apply(a_registration(registration, endpoint=mortal.endpoint))
    installation.await_condition("smw", registration, "Ready=True/Ready")
    services.stop(mortal)
    said = installation.refusal(a_policy("early", namespace=namespace, one=an_entry("acme/mortal")))
    assert f"{_MIDDLEWARES}.one.config: service {registration} could not be asked about this config: " in said
    assert "try again when the service is back" in said
    assert "Nothing is wrong with the object itself: apply it again when the service is back." in said


def test_a_registration_that_is_not_ready_yet_is_named_to_who_wants_its_binding(
    installation: Installation, registration: str, namespace: str
) -> None:
    installation.apply(a_registration(registration, endpoint="http://127.0.0.1:9"))
    installation.await_condition("smw", registration, "Ready=False/Unreachable")
    said = installation.refusal(a_policy("early", namespace=namespace, one=an_entry("late/binding")))
    assert f"not accepted yet: {registration}; see its status, and try again when it is Ready" in said


def test_a_policy_that_conflicts_with_an_older_one_is_refused_with_its_name(
    installation: Installation, namespace: str
) -> None:
    # Within one second of creation the name decides.
    installation.apply(
        a_pod("agent-0", namespace=namespace, sandbox="agent"),
        a_policy("first", namespace=namespace, redact=an_entry(order=7)),
    )
    installation.await_condition("sbp", "first", "Programmed=False/NotConnected", namespace=namespace)
    said = installation.refusal(a_policy("second", namespace=namespace, redact=an_entry(order=7)))
    used = f"already used for the same sandboxes by policy {namespace}/first"
    assert f"{_MIDDLEWARES}.redact: the key is {used} (rename the key)" in said
    assert f"{_MIDDLEWARES}.redact.order: order 7 is {used} (choose another order)" in said
    installation.apply(a_policy("second", namespace=namespace, also=an_entry(order=8)))
    elsewhere = {"app": "another"}
    installation.apply(a_policy("third", namespace=namespace, selector=elsewhere, redact=an_entry(order=7)))


def test_deletions_are_not_reviewed(installation: Installation, namespace: str, control_plane: ControlPlane) -> None:
    installation.apply(a_policy("short", namespace=namespace))
    before = _reviews(installation)
    control_plane.kubectl("delete", "sbp", "short", "-n", namespace)
    assert _reviews(installation) == before


def _reviews(installation: Installation) -> float:
    return sum(
        v for k, v in installation.metrics().items() if k.startswith("admission_review_duration_seconds_count{")
    )


def _applied(installation: Installation, document: Document) -> str:
    """What kubectl says beside `created`."""
    return installation.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(document)).stderr
