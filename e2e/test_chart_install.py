"""The chart on a real API server, by Helm: admitted, enough for the operator, not more, and gone without a trace.

There is no kubelet, so the operator of a Pod runs beside the test: with that Pod's environment, under that Pod's token;
and where no node is, no controller takes a Pod for an endpoint, so the test writes the webhook Service's EndpointSlice.
All else is the cluster's own work, the way of a review from the API server through the Service to the operator too. What
nobody here does: schedule, probe, spread, evict, filter packets, pull images, read monitors.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.chart import CHART, Document, Helm
from e2e.controlplane.build import Binaries
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.harness import a_pod, read
from e2e.objects import a_baseline, a_policy, a_registration, an_entry, changed
from e2e.services import Host, Scripted, a_manifest
from e2e.test_chart import EVERYTHING, FOREIGN
from supervisor_middleware.cli.processes import Process, free_port, wait_until

NAMESPACE: Final = "supervisor-middleware"
RELEASE: Final = "smw"
BREAK_GLASS: Final = ("--as=oncall", "--as-group=system:masters", "--as-group=middleware.openshell.io:break-glass")
PREVIOUS: Final = Path(__file__).parent / "manifests" / "previous"
_SERVICE: Final = "supervisor-middleware-webhook"
OURS: Final = "middleware.openshell.io"
WEBHOOK: Final = f"supervisor-middleware-{NAMESPACE}"
RESTRICTED: Final = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
CLUSTER_KINDS: Final = ("supervisormiddlewares", "clustersandboxpolicies")


def _address() -> str:
    """An address of this machine that is no loopback: EndpointSlices take no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("198.51.100.1", 9))  # nothing is sent: it only chooses a route
        address: str = probe.getsockname()[0]
        if not address.startswith("127."):
            return address
    reason = "NO ADDRESS BUT LOOPBACK: the way of a review through the chart's Service cannot be tested here"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@dataclass(slots=True)
class Release:
    """The chart, installed, and the operator of its first Pod."""

    plane: ControlPlane
    helm: Helm
    directory: Path
    address: str = field(default_factory=_address)
    ports: Mapping[str, int] = field(
        default_factory=lambda: {n: free_port() for n in ("enrollment", "discovery", "webhook", "health")}
    )
    operator: Process | None = None

    @property
    def values(self) -> dict[str, Any]:
        """What differs from the defaults, since several operators share this machine."""
        return {"ports": dict(self.ports), "extraEnv": [{"name": "SMW_LOOPBACK", "value": "Allowed"}]}

    def install(self, chart: Path = CHART, *, command: str = "install") -> None:
        """`helm install` or `upgrade`."""
        (self.directory / "values.yaml").write_text(yaml.safe_dump(self.values))
        where = ("--namespace", NAMESPACE, "--values", str(self.directory / "values.yaml"))
        self.helm.run(command, RELEASE, str(chart), *where, plane=self.plane)

    def pods(self) -> list[Document]:
        """The Deployment's Pods."""
        return self.items("pods", "-l", "app.kubernetes.io/component=operator", "-n", NAMESPACE)

    def start(self) -> None:
        """Be the kubelet of the first Pod."""
        self.wait("the Deployment has its Pods", lambda: len(self.pods()) == 2)
        found = self.pods()[0]
        pod = found["metadata"]["name"]
        self._give_address(pod)
        self.operator = Process(
            name="operator",
            arguments=("operator", "--kubeconfig", str(self._kubeconfig(pod))),
            log=self.directory / "operator.log",
            environment=self._environment(pod) | {"SMW_AUDIT_FILE": str(self.directory / "audit.jsonl")},
        )
        self.operator.start()
        self.wait("the operator is ready", lambda: read(self.ports["health"], "/readyz")[0] == 200)
        self.apply(self._endpoint_slice(found))
        self.wait("the API server reaches the webhook by its Service", self._webhook_answers)

    def stop(self) -> None:
        """End the process."""
        if self.operator is not None:
            self.operator.stop()
            self.operator = None

    def apply(self, *documents: Document, check: bool = True, who: tuple[str, ...] = ()) -> str:
        """`kubectl apply`; what it says of a failure."""
        text = yaml.safe_dump_all(documents)
        return self.plane.kubectl("apply", "-f", "-", *who, input=text, check=check).stderr

    def refusal(self, *documents: Document) -> str:
        """What `kubectl apply` says when it must fail."""
        said = self.apply(*documents, check=False)
        assert "is invalid: spec." in said, said
        return said

    def items(self, kind: str, *arguments: str) -> list[Document]:
        """Objects of a kind."""
        found: list[Document] = json.loads(self.plane.kubectl("get", kind, *arguments, "-o", "json").stdout)["items"]
        return found

    def status(self, kind: str, name: str, condition: str, *, namespace: str | None = None) -> str:
        """`status/reason` of a condition."""
        where = ("-n", namespace) if namespace else ()
        done = self.plane.kubectl("get", kind, name, *where, "-o", "json")
        conditions = json.loads(done.stdout).get("status", {}).get("conditions", ())
        return next((f"{c['status']}/{c['reason']}" for c in conditions if c["type"] == condition), "")

    def wait(self, what: str, is_so: Callable[[], bool], *, seconds: float = 90.0) -> None:
        """Poll until `is_so`."""
        processes = () if self.operator is None else (self.operator,)
        wait_until(what, is_so, processes=processes, seconds=seconds)

    def _environment(self, pod: str) -> dict[str, str]:
        found = json.loads(self.plane.kubectl("get", "pod", pod, "-n", NAMESPACE, "-o", "json").stdout)
        facts = {"metadata.namespace": NAMESPACE, "metadata.name": pod, "status.podIP": found["status"]["podIP"]}
        return {
            e["name"]: e["value"] if "value" in e else facts[e["valueFrom"]["fieldRef"]["fieldPath"]]
            for e in found["spec"]["containers"][0]["env"]
        }

    def _kubeconfig(self, pod: str) -> Path:
        document = yaml.safe_load(self.plane.kubeconfig.read_text())
        token = self.plane.token_for("supervisor-middleware", NAMESPACE, bound_pod=pod)
        document["users"][0]["user"] = {"token": token}
        path = self.directory / "operator.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def _give_address(self, pod: str) -> None:
        status = {"phase": "Running", "podIP": self.address, "podIPs": [{"ip": self.address}]}
        where = ("-n", NAMESPACE, "--subresource=status", "--type=merge")
        self.plane.kubectl("patch", "pod", pod, *where, "-p", json.dumps({"status": status}))

    def _endpoint_slice(self, pod: Document) -> Document:
        """As the controller would write it, from the Service as the chart has it and the Pod."""
        service = json.loads(self.plane.kubectl("get", "svc", _SERVICE, "-n", NAMESPACE, "-o", "json").stdout)["spec"]
        (port,) = service["ports"]
        (container,) = pod["spec"]["containers"]
        assert service["selector"].items() <= pod["metadata"]["labels"].items()
        numbers = {p["name"]: p["containerPort"] for p in container["ports"]}
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{_SERVICE}-test",
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": _SERVICE},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": [{"name": port["name"], "port": numbers[port["targetPort"]], "protocol": "TCP"}],
        }

    def _webhook_answers(self) -> bool:
        probe = yaml.safe_dump(a_policy("probe", namespace="default"))
        return self.plane.kubectl("create", "--dry-run=server", "-f", "-", input=probe, check=False).returncode == 0


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
    assert client["service"]["name"] == _SERVICE
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


# -------------------------------------------------------------------------------------------------------------- rights

_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "update", "patch", "delete")
_ACCOUNT: Final = f"system:serviceaccount:{NAMESPACE}:supervisor-middleware"


def test_tenants_write_their_policies_and_nothing_else(release: Release) -> None:
    plane = release.plane
    own, other = plane.create_namespace("own"), plane.create_namespace("other")
    for role in ("admin", "edit", "view"):
        plane.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user=tenant-{role}", "-n", own)
    plane.kubectl(
        "create", "clusterrolebinding", "smw-admins", "--clusterrole=supervisor-middleware-admin", "--user=boss"
    )
    plane.kubectl("create", "clusterrolebinding", "wide", "--clusterrole=admin", "--user=wide-admin")
    release.wait(
        "the roles are aggregated",
        lambda: _may(release, ("tenant-view", "list", "sandboxpolicies", own)) == [True],
    )
    writers = ("tenant-admin", "tenant-edit", "boss", "wide-admin")
    granted = [
        *((user, verb, "sandboxpolicies", own) for user in writers for verb in (*_READ, *_WRITE)),
        *(("tenant-view", verb, "sandboxpolicies", own) for verb in _READ),
        *(("boss", verb, kind, "") for verb in (*_READ, *_WRITE) for kind in CLUSTER_KINDS),
        *(("boss", verb, "policyrevisions", "") for verb in _READ),
    ]
    tenants = ("tenant-admin", "tenant-edit", "tenant-view", "wide-admin")
    denied = [
        *(("tenant-view", verb, "sandboxpolicies", own) for verb in _WRITE),
        *((user, verb, "sandboxpolicies", other) for user in tenants[:3] for verb in (*_READ, *_WRITE)),
        *((user, "update", "sandboxpolicies/status", own) for user in (*tenants, "boss")),
        *(
            (user, verb, kind, "")
            for user in tenants
            for verb in (*_READ, *_WRITE)
            for kind in (*CLUSTER_KINDS, "policyrevisions")
        ),
        *(("boss", verb, "policyrevisions", "") for verb in _WRITE),
    ]
    assert _wrongly(release, granted, wanted=True) == []
    assert _wrongly(release, denied, wanted=False) == []


def test_the_operator_may_do_no_more_than_it_needs(release: Release) -> None:
    kinds = ("supervisormiddlewares", "clustersandboxpolicies", "sandboxpolicies")
    denied = [
        *((_ACCOUNT, verb, kind, "default") for verb in _WRITE for kind in kinds),
        *((_ACCOUNT, verb, "policyrevisions", "") for verb in ("update", "patch")),
        *((_ACCOUNT, verb, "secrets", "default") for verb in (*_READ, *_WRITE)),
        *((_ACCOUNT, verb, "secrets", NAMESPACE) for verb in ("list", "watch", "update", "patch", "delete")),
        *((_ACCOUNT, verb, "configmaps", "default") for verb in ("get", "list", "create", "update", "delete")),
        *((_ACCOUNT, verb, "pods", "default") for verb in _WRITE),
        *((_ACCOUNT, verb, "namespaces", "") for verb in _WRITE),
        *((_ACCOUNT, verb, "validatingwebhookconfigurations", "") for verb in (*_READ, *_WRITE)),
        *((_ACCOUNT, verb, "validatingadmissionpolicies", "") for verb in (*_READ, *_WRITE)),
        *((_ACCOUNT, verb, "customresourcedefinitions", "") for verb in _WRITE),
        *((_ACCOUNT, "create", kind, "default") for kind in ("pods/exec", "serviceaccounts/token", "deployments")),
        *((_ACCOUNT, verb, "clusterroles", "") for verb in ("create", "update", "bind", "escalate")),
        (_ACCOUNT, "impersonate", "users", ""),
    ]
    assert _wrongly(release, denied, wanted=False) == []


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


# ------------------------------------------------------------------------------------------------------------- upgrade


def test_an_upgrade_takes_the_crds_along_and_leaves_objects_as_they_are(
    binaries: Binaries, helm: Helm, tmp_path: Path
) -> None:
    """From a chart whose CRDs are of an earlier release, and lack a field that this one writes."""
    with ControlPlane(binaries=binaries, controllers=Controllers.ABSENT) as plane:
        plane.kubectl("create", "namespace", NAMESPACE)
        release = Release(plane, helm, tmp_path, address="192.0.2.1")
        release.install(_earlier_chart(tmp_path))
        release.wait("policies are served", lambda: plane.kubectl("get", "sbp", check=False).returncode == 0)
        assert len(release.items("crd")) == 3
        # Its webhook has nobody behind it.
        stored = a_policy("stored", namespace="default", redact=an_entry(order=10, config={"detect": ["email"]}))
        release.apply(stored, a_registration("stored"), who=BREAK_GLASS)
        status = {"observedGeneration": 1, "stages": 1, "supervisors": {"matched": 2, "summary": "2/2"}}
        _set_status(plane, status)
        before = _stored(release)
        assert "supervisors" not in before["sbp"]["status"]

        release.install(command="upgrade")
        release.wait("baselines are served", lambda: plane.kubectl("get", "csbp", check=False).returncode == 0)
        assert _is_kept(before, release)

        def keeps_the_new_field() -> bool:
            _set_status(plane, status)
            return bool(_stored(release)["sbp"]["status"].get("supervisors", {}).get("summary") == "2/2")

        release.wait("the new field is kept", keeps_the_new_field)
        helm.run("rollback", RELEASE, "--namespace", NAMESPACE, plane=plane)
        assert _stored(release)["sbp"]["spec"] == before["sbp"]["spec"]


def test_definitions_that_kubectl_applied_are_taken_over(binaries: Binaries, helm: Helm, tmp_path: Path) -> None:
    with ControlPlane(binaries=binaries, controllers=Controllers.ABSENT) as plane:
        files = [f"--filename={path}" for path in sorted(PREVIOUS.glob("*.yaml"))]
        plane.kubectl("apply", *files)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *files)
        plane.kubectl("create", "namespace", NAMESPACE)
        release = Release(plane, helm, tmp_path, address="192.0.2.1")
        release.apply(a_policy("stored", namespace="default"), a_registration("stored"))
        before = _stored(release)
        where = ("--namespace", NAMESPACE)
        said = helm.run("install", RELEASE, str(CHART), *where, plane=plane, check=False)
        assert "cannot be imported into the current release" in said
        helm.run("install", RELEASE, str(CHART), *where, "--take-ownership", plane=plane)
        assert _is_kept(before, release)
        release.wait("baselines are served", lambda: plane.kubectl("get", "csbp", check=False).returncode == 0)


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


def _may(release: Release, *questions: tuple[str, str, str, str]) -> list[bool]:
    """Whether each user may do each verb to a resource in a namespace."""
    reviews = []
    for user, verb, resource, namespace in questions:
        kind, _, sub = resource.partition("/")
        group = {
            "secrets": "",
            "configmaps": "",
            "pods": "",
            "namespaces": "",
            "serviceaccounts": "",
            "users": "",
            "deployments": "apps",
            "validatingwebhookconfigurations": "admissionregistration.k8s.io",
            "validatingadmissionpolicies": "admissionregistration.k8s.io",
            "customresourcedefinitions": "apiextensions.k8s.io",
            "clusterroles": "rbac.authorization.k8s.io",
        }.get(kind, OURS)
        attributes = {"verb": verb, "group": group, "resource": kind, "subresource": sub, "namespace": namespace}
        groups = ["system:authenticated", *(["system:serviceaccounts"] if user.startswith("system:") else [])]
        reviews.append(
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "metadata": {},
                "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
            }
        )
    answers = release.plane.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(_list(reviews))).stdout
    return [bool(answer["status"]["allowed"]) for answer in _each(answers)]


def _each(text: str) -> Iterator[Document]:
    """JSON documents, one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        found, at = decoder.raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        yield found


def _list(items: list[Document]) -> Document:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _wrongly(
    release: Release, questions: list[tuple[str, str, str, str]], *, wanted: bool
) -> list[tuple[str, str, str, str]]:
    answers = _may(release, *questions)
    assert len(answers) == len(questions)
    return [q for q, answer in zip(questions, answers, strict=True) if answer is not wanted]


def _earlier_chart(directory: Path) -> Path:
    """This chart with the CRDs of an earlier release, and without a status field of it."""
    chart = directory / "earlier"
    shutil.copytree(CHART, chart)
    definitions = chart / "templates" / "crds"
    shutil.rmtree(definitions)
    definitions.mkdir()
    for path in PREVIOUS.glob("*.yaml"):
        definition: dict[str, Any] = yaml.safe_load(path.read_text())
        definition["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
        (version,) = definition["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        properties.get("status", {}).get("properties", {}).pop("supervisors", None)
        (definitions / path.name).write_text(yaml.safe_dump(definition))
    return chart


def _set_status(plane: ControlPlane, status: Mapping[str, Any]) -> None:
    patch = json.dumps({"status": status})
    plane.kubectl("patch", "sbp", "stored", "--subresource=status", "--type=merge", "-p", patch)


def _stored(release: Release) -> dict[str, Document]:
    """What people and the operator wrote."""
    found = {}
    for kind in ("sbp", "smw"):
        (item,) = release.items(kind)
        found[kind] = {"uid": item["metadata"]["uid"], "spec": item["spec"], "status": item.get("status", {})}
    return found


def _is_kept(before: Mapping[str, Document], release: Release) -> bool:
    """Nothing was lost; a later schema may have defaults for what was not there."""
    after = _stored(release)
    return all(
        (after[kind]["uid"], after[kind]["spec"]) == (was["uid"], was["spec"])
        and was["status"].items() <= after[kind]["status"].items()
        for kind, was in before.items()
    )
