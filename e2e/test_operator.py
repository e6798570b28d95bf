"""What people and tools see of a running operator: conditions, counts, revisions, Events, metrics; supervisors count."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import OPERATOR_NAMESPACE, Installation, a_pod, read
from e2e.objects import Document, a_policy, a_registration, an_entry
from e2e.services import Host, Scripted, a_manifest
from supervisor_middleware.cli.processes import echo_upstream, post

_KEY = "sk-0123456789abcdefghij"
_GOOD = {"Accepted": "True", "ResolvedRefs": "True", "Programmed": "True", "Ready": "True"}
_QUIET = {"Reconciling": "False", "Stalled": "False"}
METRICS = (
    "admission_review_duration_seconds",
    "validate_config_duration_seconds",
    "describe_total",
    "reconcile_duration_seconds",
    "generation_convergence_seconds",
    "supervisors",
    "generation_rejections_total",
    "last_known_good_serving",
    "watch_last_event_timestamp_seconds",
    "certificate_expiry_timestamp_seconds",
    "leader",
)


@dataclass(frozen=True, slots=True)
class Team:
    """A namespace with a policy for `team: red` and two sandboxes of it, each with its supervisor."""

    namespace: str
    proxies: tuple[int, int]


@pytest.fixture(scope="module")
def team(installation: Installation) -> Iterator[Team]:
    namespace = installation.plane.create_namespace("team")
    pods = [_pod(f"agent-{n}", namespace) for n in range(2)]
    installation.apply(a_policy("outbound", namespace=namespace, selector={"team": "red"}), *pods)
    with echo_upstream() as upstream:
        proxies = [
            installation.supervisor(namespace=namespace, sandbox=f"agent-{n}", pod=f"agent-{n}", upstream=upstream)[1]
            for n in range(2)
        ]
        installation.await_condition("sbp", "outbound", "Programmed=True/Programmed", namespace=namespace)
        yield Team(namespace, (proxies[0], proxies[1]))
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def _pod(name: str, namespace: str, *, team: str = "red") -> Document:
    return a_pod(name, namespace=namespace, sandbox=name, labels={"team": team})


def test_kubectl_waits_for_every_condition_and_each_says_for_which_spec(
    installation: Installation, team: Team
) -> None:
    for condition, status in {**_GOOD, **_QUIET}.items():
        wanted = f"--for=condition={condition}={status}"
        installation.plane.kubectl("wait", wanted, "sbp/outbound", "-n", team.namespace, "--timeout=10s")
    found = installation.get("sbp", "outbound", namespace=team.namespace)
    generation = found["metadata"]["generation"]
    conditions = {c["type"]: c for c in found["status"]["conditions"]}
    assert {c: conditions[c]["status"] for c in conditions} == {**_GOOD, **_QUIET}
    assert {c["observedGeneration"] for c in conditions.values()} == {generation}
    assert found["status"]["observedGeneration"] == generation
    assert found["status"]["accepted"]["generation"] == generation


def test_both_supervisors_serve_it_and_are_counted(installation: Installation, team: Team) -> None:
    for proxy in team.proxies:
        assert post(proxy, "api.example.com", _KEY).body == "[REDACTED]"
        assert post(proxy, "example.org", _KEY).body == _KEY
    header, row = installation.plane.kubectl("get", "sbp", "-n", team.namespace).stdout.splitlines()
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert (shown["READY"], shown["REASON"], shown["STAGES"], shown["ACTIVE"]) == ("True", "Ready", "1", "2/2")


def test_one_pod_without_a_supervisor_is_not_programmed_and_blocks_nothing_else(
    installation: Installation, team: Team
) -> None:
    installation.apply(_pod("mute", team.namespace))
    condition = "Programmed=False/NotConnected"
    installation.await_condition("sbp", "outbound", condition, namespace=team.namespace)
    assert _summary(installation, team.namespace) == "2/3"
    assert installation.condition("sbp", "outbound", "Ready", namespace=team.namespace) == "True/Ready"
    installation.plane.kubectl("delete", "pod", "mute", "-n", team.namespace)
    installation.await_condition("sbp", "outbound", "Programmed=True/Programmed", namespace=team.namespace)


def test_a_pod_with_other_labels_is_not_selected(installation: Installation, team: Team) -> None:
    blue = a_policy("blue", namespace=team.namespace, selector={"team": "blue"}, also=an_entry(order=5))
    installation.apply(blue)
    installation.await_condition("sbp", "blue", "Programmed=True/NoSandboxes", namespace=team.namespace)
    installation.apply(_pod("other", team.namespace, team="blue"))
    # The same Pod is seen for one policy and not for the other.
    installation.await_condition("sbp", "blue", "Programmed=False/NotConnected", namespace=team.namespace)
    status = installation.get("sbp", "outbound", namespace=team.namespace)["status"]
    assert status["supervisors"]["matched"] == 2
    installation.plane.kubectl("delete", "pod/other", "sbp/blue", "-n", team.namespace)


def test_a_deleted_pods_supervisor_loses_its_stream(installation: Installation, team: Team) -> None:
    with echo_upstream() as upstream:
        installation.apply(_pod("brief", team.namespace))
        supervisor, _ = installation.supervisor(
            namespace=team.namespace, sandbox="brief", pod="brief", upstream=upstream
        )
        wanted = ("sbp", "outbound", "Programmed=True/Programmed")
        installation.wait("three are connected", lambda: installation.connected() == 3)
        installation.await_condition(*wanted, namespace=team.namespace)
        installation.plane.kubectl("delete", "pod", "brief", "-n", team.namespace)
        installation.wait("its stream is closed", lambda: installation.connected() == 2)
        installation.wait("it hears why", lambda: "the sandbox is gone" in supervisor.log.read_text())
        # Counts are written once a second at most.
        installation.wait("two are counted", lambda: _summary(installation, team.namespace) == "2/2")
        installation.await_condition(*wanted, namespace=team.namespace)
        supervisor.stop()


def test_without_sandboxes_a_policy_is_programmed(installation: Installation, namespace: str) -> None:
    installation.apply(a_policy("early", namespace=namespace))
    installation.await_condition("sbp", "early", "Programmed=True/NoSandboxes", namespace=namespace)
    assert installation.condition("sbp", "early", "Ready", namespace=namespace) == "True/Ready"


def test_five_edits_keep_two_revisions(installation: Installation, namespace: str) -> None:
    for order in range(6):
        installation.apply(a_policy("edited", namespace=namespace, redact=an_entry(order=order)))
        installation.await_condition("sbp", "edited", "Programmed=True/NoSandboxes", namespace=namespace)
    found = installation.get("sbp", "edited", namespace=namespace)
    assert found["status"]["accepted"]["revision"] == 6
    uid = found["metadata"]["uid"]
    kept = [f"{uid}-5", f"{uid}-6"]
    installation.wait("two are kept", lambda: installation.revisions(of=uid) == kept)
    installation.plane.kubectl("delete", "sbp", "edited", "-n", namespace)
    installation.wait("none is left of a deleted policy", lambda: not installation.revisions(of=uid), seconds=40)


def test_events_tell_of_transitions_only_and_nothing_is_put_on_objects(
    installation: Installation, services: Host, namespace: str
) -> None:
    service = services.serve(Scripted(a_manifest("acme/scripted")))
    installation.apply(a_registration(namespace, endpoint=service.endpoint))
    installation.await_condition("smw", namespace, "Ready=True/Ready")
    for order in range(3):
        installation.apply(
            a_policy("told", namespace=namespace, one=an_entry("acme/scripted", order=order)),
            a_pod("agent-0", namespace=namespace, sandbox="agent"),
        )
        installation.await_condition("sbp", "told", "Ready=True/Ready", namespace=namespace)
    accepted = ("Normal", "Accepted", "accepted")
    insecure = ("Warning", "InsecureTransport", "request content and decisions travel in the clear: use https://")
    installation.wait("it is told", lambda: _events(installation, namespace, "told") == [accepted])
    assert sorted(_events(installation, "default", namespace)) == [accepted, insecure]

    installation.plane.kubectl("delete", "smw", namespace)
    installation.await_condition("sbp", "told", "Ready=False/BindingNotFound", namespace=namespace)
    note = (
        "spec.networkMiddlewares.one.middleware: no accepted registration serves this binding (register the service "
        "first (kind SupervisorMiddleware), or check the ID with smw describe ENDPOINT)"
    )
    refused = ("Warning", "BindingNotFound", note)
    installation.wait("it is told", lambda: _events(installation, namespace, "told") == [accepted, refused])
    for kind, name in (("sbp", "told"), ("pod", "agent-0")):
        metadata = installation.get(kind, name, namespace=namespace)["metadata"]
        assert "finalizers" not in metadata
        assert set(metadata["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}


def test_the_trust_bundle_is_in_every_namespace_with_sandboxes(
    installation: Installation, team: Team, namespace: str, control_plane: ControlPlane
) -> None:
    name = "supervisor-middleware-trust"
    own = installation.get("configmap", name, namespace=OPERATOR_NAMESPACE)["data"]
    assert own["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
    assert installation.get("configmap", name, namespace=team.namespace)["data"] == own
    listing = ("get", "configmap", name, "-n", namespace, "--ignore-not-found", "-o", "name")
    assert control_plane.kubectl(*listing).stdout == ""
    installation.apply(a_pod("agent-0", namespace=namespace, sandbox="agent"))
    installation.wait("it is published", lambda: control_plane.kubectl(*listing).stdout != "")
    assert installation.get("configmap", name, namespace=namespace)["data"] == own


def test_probes_answer(installation: Installation, team: Team) -> None:
    assert read(installation.health_port, "/healthz") == (200, "ok\n")
    assert read(installation.health_port, "/readyz") == (200, "ok\n")
    assert read(installation.health_port, "/elsewhere")[0] == 404


def test_every_metric_is_there_under_its_public_name(installation: Installation, team: Team) -> None:
    _, text = read(installation.health_port, "/metrics")
    for name in METRICS:
        kind = name.removesuffix("_total")
        assert (
            f"# TYPE supervisor_middleware_{name} " in text or f"# TYPE supervisor_middleware_{kind}_total " in text
        )
    metrics = installation.metrics()
    assert metrics["leader"] == 1
    assert metrics['supervisors{state="active"}'] == 2
    assert team.namespace not in text
    assert "agent-0" not in text


def test_what_happened_is_measured(installation: Installation, team: Team, services: Host, namespace: str) -> None:
    service = services.serve(Scripted(a_manifest("acme/measured")))
    installation.apply(a_registration(namespace, endpoint=service.endpoint))
    installation.await_condition("smw", namespace, "Ready=True/Ready")
    installation.wait("nobody is left behind", lambda: installation.metrics()["last_known_good_serving"] == 0)
    before = installation.metrics()
    policy = a_policy("measured", namespace=namespace, one=an_entry("acme/measured"))
    installation.apply(policy, a_pod("agent-0", namespace=namespace, sandbox="agent"))
    installation.await_condition("sbp", "measured", "Programmed=False/NotConnected", namespace=namespace)
    after = installation.metrics()

    def grew(metric: str) -> bool:
        return after.get(metric, 0) > before.get(metric, 0)

    assert after["generation_convergence_seconds_count"] > 0
    assert any(v > 0 for k, v in after.items() if k.startswith("describe_total{"))
    assert grew("reconcile_duration_seconds_count")
    assert grew('admission_review_duration_seconds_count{kind="SandboxPolicy",outcome="allowed"}')
    assert any(grew(k) for k in after if k.startswith("validate_config_duration_seconds_count{"))
    assert after["last_known_good_serving"] == 0
    # A policy that needs a registration which is gone is on its last-known-good.
    installation.plane.kubectl("delete", "smw", namespace)
    installation.await_condition("sbp", "measured", "Ready=False/BindingNotFound", namespace=namespace)
    installation.wait("it is counted", lambda: installation.metrics()["last_known_good_serving"] == 1)


def _summary(installation: Installation, namespace: str) -> str:
    found = installation.get("sbp", "outbound", namespace=namespace)
    return str(found["status"]["supervisors"]["summary"])


def _events(installation: Installation, namespace: str, name: str) -> list[tuple[str, str, str]]:
    """Type, reason and note of the Events about an object, in order."""
    listing = ("get", "events.events.k8s.io", "-n", namespace, "-o", "json")
    items = json.loads(installation.plane.kubectl(*listing).stdout)["items"]
    ours = sorted((e for e in items if e["regarding"]["name"] == name), key=lambda e: str(e["eventTime"]))
    return [(e["type"], e["reason"], e["note"]) for e in ours]
