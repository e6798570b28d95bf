"""The chart on a real API server, by Helm: admitted, enough for the operator, and gone without a trace.

What nobody here does: schedule, probe, spread, evict, filter packets, pull images, read monitors.
"""

import json
import socket
import time
from collections.abc import Iterator
from typing import Final

import pytest
import yaml

from e2e.chart import CHART, Document, Helm
from e2e.controlplane.build import Binaries
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.harness import a_pod
from e2e.objects import a_baseline, a_policy, a_registration, an_entry, changed
from e2e.release import BREAK_GLASS, NAMESPACE, RELEASE, RESTRICTED, WEBHOOK_SERVICE, Release
from e2e.services import Host, Scripted, a_manifest
from e2e.test_chart import EVERYTHING, FOREIGN

WEBHOOK: Final = f"supervisor-middleware-{NAMESPACE}"


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """Of its own, without our CRDs: those come with the chart."""
    with ControlPlane(binaries=binaries, controllers=Controllers.RUNNING) as started:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
        started.kubectl("apply", "-f", "-", input=yaml.safe_dump(namespace))
        yield started


@pytest.fixture(scope="module")
def release(plane: ControlPlane, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    installed = Release(plane, helm, tmp_path_factory.mktemp("release"))
    try:
        installed.install()
        installed.start()
        yield installed
    finally:
        installed.stop()


# ------------------------------------------------------------------------------------------------------------- install


def test_every_object_is_admitted(release: Release) -> None:
    rendered = release.helm.template(namespace=NAMESPACE, values={**EVERYTHING, **release.values})
    objects = [o for o in rendered if o["kind"] not in FOREIGN]
    text = yaml.safe_dump_all(objects)
    done = release.plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", input=text
    )
    assert done.stdout.count("(server dry run)") == len(objects)
    assert done.stderr == ""


def test_its_pods_live_in_a_restricted_namespace(release: Release) -> None:
    """The API server's own PodSecurity admission let the ReplicaSet make them."""
    assert [p["metadata"]["namespace"] for p in release.pods()] == [NAMESPACE, NAMESPACE]


def test_a_registration_and_policies_become_ready_with_the_charts_rights(release: Release, services: Host) -> None:
    service = services.serve(Scripted(manifest=a_manifest("acme/redactor")))
    release.apply(a_registration("redactor", endpoint=service.endpoint))
    release.wait("the registration is ready", lambda: release.status("smw", "redactor", "Ready").startswith("True/"))
    namespace = release.plane.create_namespace("team")
    release.apply(
        a_policy("outbound", namespace=namespace, redact=an_entry("acme/redactor", order=10)),
        a_baseline("platform", selector={"kubernetes.io/metadata.name": namespace}),
        a_pod("agent", namespace=namespace, sandbox="agent"),
    )
    for kind, name, where in (("sbp", "outbound", namespace), ("csbp", "platform", None)):
        release.wait(
            f"{kind} {name} is ready",
            lambda k=kind, n=name, w=where: release.status(k, n, "Ready", namespace=w).startswith("True/"),  # type: ignore[misc]
        )
    release.wait(
        "the trust bundle is where sandboxes are",
        lambda: (
            "supervisor-middleware-trust" in {c["metadata"]["name"] for c in release.items("cm", "-n", namespace)}
        ),
    )
    assert len(release.items("prev")) == 2
    assert release.items("events.events.k8s.io", "-n", namespace, "--field-selector=reason=Accepted") != []


def test_nothing_was_forbidden_to_the_operator(release: Release) -> None:
    log = (release.directory / "operator.log").read_text().lower()
    assert "forbidden" not in log
    assert "may not" not in log


def test_supervisors_are_led_to_the_leader_by_the_charts_own_service(release: Release) -> None:
    """The Service has no selector: what is behind it is the leader's to write, and it may."""
    selector = ("-n", NAMESPACE, "-l", "kubernetes.io/service-name=supervisor-middleware")
    release.wait("the leader is published", lambda: release.items("endpointslices", *selector) != [])
    (found,) = release.items("endpointslices", *selector)
    service = json.loads(
        release.plane.kubectl("get", "svc", "supervisor-middleware", "-n", NAMESPACE, "-o", "json").stdout
    )
    assert [e["addresses"] for e in found["endpoints"]] == [[release.address]]
    assert {p["name"]: p["port"] for p in found["ports"]} == {
        p["name"]: p["targetPort"] for p in service["spec"]["ports"]
    }
    with socket.create_connection((release.address, release.ports["enrollment"]), timeout=10):
        pass


def test_the_sidecar_example_lives_in_a_restricted_namespace(release: Release) -> None:
    labels = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "agents", "labels": RESTRICTED}}
    release.apply(labels)
    release.wait("it can hold Pods", lambda: release.items("serviceaccounts", "-n", "agents") != [])
    pod = (CHART.parents[1] / "examples" / "sidecar" / "agent.yaml").read_text()
    done = release.plane.kubectl("apply", "-f", "-", input=pod)
    assert done.stderr == ""
    release.plane.kubectl("delete", "namespace", "agents", "--wait=false")


def test_the_webhook_is_reached_by_the_charts_own_service(release: Release) -> None:
    (found,) = release.items("validatingwebhookconfigurations", f"--field-selector=metadata.name={WEBHOOK}")
    (client,) = [w["clientConfig"] for w in found["webhooks"]]
    assert client["service"]["name"] == WEBHOOK_SERVICE
    assert "url" not in client
    said = release.refusal(a_policy("wrong", namespace="default", x=an_entry("acme/unheard-of")))
    assert "no accepted registration serves this binding" in said


def test_an_upgrade_to_the_same_leaves_the_ca_bundle_to_the_operator(release: Release) -> None:
    def bundle() -> str:
        (found,) = release.items("validatingwebhookconfigurations", f"--field-selector=metadata.name={WEBHOOK}")
        text: str = found["webhooks"][0]["clientConfig"]["caBundle"]
        return text

    before = bundle()
    release.install(command="upgrade")
    assert bundle() == before
    release.refusal(a_policy("wrong", namespace="default", x=an_entry("acme/unheard-of")))


def test_unchanged_specs_are_not_asked_about_however_large(release: Release) -> None:
    """900 KiB: comparing both specs must stay within what the API server grants a condition."""
    text = {f"k{n:04}": "x" * 400 for n in range(200)}
    entries = {f"e{n}": an_entry(order=n, config={"text": text}, include=[f"h{n}.example.com"]) for n in range(10)}
    big = a_policy("big", namespace="default", **entries)
    document = json.dumps(big)
    assert len(document) > 800_000
    # The service need not like it: what is asked is whether the condition itself can be evaluated.
    server_side = ("apply", "--server-side", "-f", "-")
    release.plane.kubectl(*server_side, *BREAK_GLASS, input=document)
    release.plane.kubectl("label", "sbp", "big", "team=red")
    said = release.plane.kubectl(
        *server_side,
        input=json.dumps(changed(big, "spec.sandboxSelector", {"matchLabels": {"a": "b"}})),
        check=False,
    ).stderr
    assert "cost" not in said
    assert "the limit is 65536" in said
    release.plane.kubectl("delete", "sbp", "big")


def test_break_glass_passes_the_webhook(release: Release) -> None:
    wrong = a_policy("glass", namespace="default", x=an_entry("acme/unheard-of"))
    release.refusal(wrong)
    release.apply(wrong, who=BREAK_GLASS)
    release.plane.kubectl("delete", "sbp", "glass")


# ----------------------------------------------------------------------------------------- uninstall, without operator


def test_an_uninstall_leaves_policies_but_no_gate(release: Release) -> None:
    """The operator still runs when Helm is done, as a Pod that takes its time: it must not bring anything back."""
    kept = {o["metadata"]["uid"] for kind in ("sbp", "csbp", "smw") for o in _all(release, kind)}
    assert kept
    release.helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", plane=release.plane)
    time.sleep(1)
    _assert_no_gate(release)
    assert {o["metadata"]["uid"] for kind in ("sbp", "csbp", "smw") for o in _all(release, kind)} == kept
    assert len(release.items("crd")) == 4
    release.apply(a_policy("ungated", namespace="default", x=an_entry("acme/unheard-of")))
    release.plane.kubectl("delete", "sbp", "ungated")
    release.stop()


def test_after_a_reinstall_a_namespace_goes_while_there_are_no_replicas(release: Release) -> None:
    release.install()
    plane = release.plane
    plane.kubectl("scale", "deployment/supervisor-middleware", "--replicas=0", "-n", NAMESPACE)
    release.wait("no Pod is left", lambda: release.pods() == [])
    (namespace,) = [o["metadata"]["namespace"] for o in _all(release, "sbp") if o["metadata"]["name"] == "outbound"]
    release.wait(
        "the webhook gates again",
        lambda: "failed calling webhook" in release.apply(_unheard_of(namespace), check=False),
    )

    plane.kubectl("label", "sbp", "outbound", "team=red", "-n", namespace)
    release.apply(_unheard_of(namespace), who=BREAK_GLASS)
    plane.kubectl("delete", "namespace", namespace, "--timeout=90s")
    assert _all(release, "sbp") == []
    plane.kubectl("annotate", "smw/redactor", "csbp/platform", "middleware.openshell.io/allow-removal=true")
    plane.kubectl("delete", "smw/redactor", "csbp/platform", "--timeout=30s")
    plane.kubectl("delete", "prev", "--all", "--timeout=30s")


def test_everything_can_be_removed_for_good(release: Release) -> None:
    release.helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", plane=release.plane)
    _assert_no_gate(release)
    names = [c["metadata"]["name"] for c in release.items("crd")]
    release.plane.kubectl("delete", "crd", *names, "--timeout=60s")
    release.plane.kubectl("delete", "namespace", NAMESPACE, "--timeout=90s")
    left = release.plane.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").stdout
    assert "supervisor-middleware" not in left


# ------------------------------------------------------------------------------------------------------------- helpers


def _all(release: Release, kind: str) -> list[Document]:
    return release.items(kind, *(("-A",) if kind == "sbp" else ()))


def _unheard_of(namespace: str) -> Document:
    return a_policy("unheard-of", namespace=namespace, x=an_entry("acme/unheard-of"))


def _assert_no_gate(release: Release) -> None:
    for kind in (
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
    ):
        assert release.items(kind) == []
