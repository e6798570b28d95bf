"""Who runs what in a cluster, and who is told: by the API server's own users, roles and tokens."""

import base64
import json
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from e2e.controlplane.cluster import ControlPlane
from e2e.fake_kubelet import kubelet
from e2e.harness import OPERATOR_NAMESPACE, Installation, a_pod
from e2e.objects import a_policy
from supervisor_middleware.cli.processes import free_port
from supervisor_middleware.distribution.inspection import AUDIENCE
from supervisor_middleware.model.sandbox import GROUP
from supervisor_middleware.settings import AUDIENCE as ENROLMENT
from tests.cli.commands import MODULE, Outcome, in_a_process

ROLES: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {
        "name": "status-of-supervisors",
        "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"},
    },
    "rules": [
        {"apiGroups": [GROUP], "resources": ["sandboxpolicies"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [GROUP], "resources": ["sandboxpolicies/supervisors"], "verbs": ["list"]},
    ],
}
"""What the chart grants by `supervisor-middleware-view`; that it does is tested with the chart."""


@dataclass(frozen=True, slots=True)
class Tenants:
    """Two namespaces, each with a policy and a sandbox; the one of red is served."""

    red: str
    blue: str


@pytest.fixture(scope="module")
def installation(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(own_control_plane, tmp_path_factory.mktemp("installation")) as installed:
        yield installed


@pytest.fixture(scope="module")
def tenants(installation: Installation) -> Tenants:
    plane = installation.plane
    both = Tenants(*(plane.create_namespace(n) for n in ("red", "blue")))
    installation.apply(ROLES)
    for namespace in (both.red, both.blue):
        installation.apply(a_pod("agent-0", namespace=namespace, sandbox="agent"))
        installation.apply(a_policy("outbound", namespace=namespace))
        plane.kubectl("create", "serviceaccount", "viewer", "-n", namespace)
        plane.kubectl("create", "serviceaccount", "nobody", "-n", namespace)
        viewer = f"--serviceaccount={namespace}:viewer"
        plane.kubectl("create", "rolebinding", "viewer", "--clusterrole=view", viewer, "-n", namespace)
    plane.kubectl("create", "serviceaccount", "supervisor-middleware-status", "-n", OPERATOR_NAMESPACE)
    everybody = f"--serviceaccount={OPERATOR_NAMESPACE}:supervisor-middleware-status"
    plane.kubectl("create", "clusterrolebinding", "smw-status", "--clusterrole=status-of-supervisors", everybody)
    installation.supervisor(namespace=both.red, sandbox="agent", pod="agent-0", upstream=free_port())
    installation.await_condition("sbp", "outbound", "Programmed=True/Programmed", namespace=both.red)
    return both


class Asking:
    """`smw status` as somebody, towards the operator's port on loopback."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.installation, self.folder = installation, folder

    def arguments(self, *more: str | Path, kubeconfig: Path | None = None, reach: bool = True) -> Sequence[str]:
        where = ("--operator", f"127.0.0.1:{self.installation.enrollment_port}") if reach else ()
        config = str(kubeconfig or self.installation.plane.kubeconfig)
        own = ("--operator-namespace", OPERATOR_NAMESPACE)
        return ("status", "--kubeconfig", config, *own, *where, *map(str, more))

    def __call__(self, *more: str | Path, kubeconfig: Path | None = None, reach: bool = True) -> Outcome:
        return in_a_process(*self.arguments(*more, kubeconfig=kubeconfig, reach=reach))

    def kubeconfig(self, account: str, namespace: str) -> Path:
        """Of a ServiceAccount, as a person's with a bearer token."""
        document = yaml.safe_load(self.installation.plane.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": self.installation.plane.token_for(account, namespace)}
        path = self.folder / f"{namespace}-{account}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def with_token(self, token: str, namespace: str) -> Outcome:
        """As the administrator towards the API server, and with `token` towards the operator."""
        path = self.folder / "token"
        path.write_text(token)
        return self("--namespace", namespace, "--sandbox", "agent", "--token-file", path)


@pytest.fixture
def ask(installation: Installation, tmp_path: Path) -> Asking:
    return Asking(installation, tmp_path)


def supervisors_of(shown: Outcome) -> list[dict[str, Any]]:
    return [o for o in json.loads(shown.out) if o["kind"] == "Supervisor"]


def titles(shown: Outcome) -> set[str]:
    return {o["namespace"] for o in supervisors_of(shown)}


def test_an_administrator_with_a_client_certificate_sees_everybody(ask: Asking, tenants: Tenants) -> None:
    shown = ask()
    assert (shown.code, shown.err) == (1, "")
    rows = [line.split() for line in shown.out.splitlines()]
    (served,) = (row for row in rows if row[:1] == [f"{tenants.red}/agent"])
    (absent,) = (row for row in rows if row[:1] == [f"{tenants.blue}/agent"])
    assert served[1] == "Active"
    assert served[2] == served[3] != "-"
    assert absent[1] == "NotConnected"
    assert "supervisors: 1/2 on desired, 1 NotConnected" in shown.out


def test_machines_are_told_all_there_is(ask: Asking, tenants: Tenants, installation: Installation) -> None:
    shown = ask("--namespace", tenants.red, "-o", "json")
    assert shown.code == 0
    (supervisor,) = supervisors_of(shown)
    status = supervisor["status"]
    pod = installation.get("pod", "agent-0", namespace=tenants.red)["metadata"]
    assert status["pod"] == {"name": "agent-0", "uid": pod["uid"]}
    assert status["desired"]["digest"] == status["active"]
    assert status["desired"]["epoch"] >= 1
    assert (status["state"], status["trustBundle"], status["reconnects"]) == ("Active", "Current", 0)
    assert status["certificate"]["expiresAt"] > status["connectedSince"]


def test_a_tenant_with_the_view_role_sees_its_own_namespace_and_no_other(ask: Asking, tenants: Tenants) -> None:
    viewer = ask.kubeconfig("viewer", tenants.red)
    own = ask("--namespace", tenants.red, "-o", "json", kubeconfig=viewer)
    assert (own.code, titles(own)) == (0, {tenants.red})
    assert own.err == "smw: not shown, since you may not list them: SupervisorMiddleware, ClusterSandboxPolicy\n"
    other = ask("--sandbox", f"{tenants.blue}/agent", kubeconfig=viewer)
    assert (other.code, other.out) == (2, "")
    # The trust bundle of its own namespace is not there to be read either.
    assert "trust bundle" in other.err
    bundle = ask.installation.trust_bundle()
    other = ask("--sandbox", f"{tenants.blue}/agent", "--trust-bundle", bundle, kubeconfig=viewer)
    assert (other.code, other.out) == (2, "")
    assert f"PERMISSION_DENIED: the token's bearer may not list sandboxpolicies/supervisors.{GROUP}" in other.err
    everywhere = ask("--trust-bundle", bundle, kubeconfig=viewer)
    assert everywhere.code == 2
    assert "in all namespaces" in everywhere.err


def test_an_account_is_asked_as_with_a_token_made_for_that(ask: Asking, tenants: Tenants) -> None:
    shown = ask("--namespace", tenants.red, "--service-account", f"{tenants.red}/viewer", "-o", "json")
    assert titles(shown) == {tenants.red}
    refused = ask("--sandbox", f"{tenants.blue}/agent", "--service-account", f"{tenants.red}/viewer")
    assert (refused.code, refused.out) == (2, "")
    assert "PERMISSION_DENIED" in refused.err


def test_without_the_right_nothing_is_told_and_the_rest_is_shown(ask: Asking, tenants: Tenants) -> None:
    shown = ask("--namespace", tenants.red, "--service-account", f"{tenants.red}/nobody")
    assert "PERMISSION_DENIED" in shown.err
    assert f"{tenants.red}/outbound" in shown.out
    assert f"{tenants.red}/agent" not in shown.out


@pytest.mark.parametrize(
    "flaw", ["forged", "expired", "another audience", "what a Pod enrols with", "a deleted account"]
)
def test_a_token_that_proves_nothing_is_told_nothing(
    ask: Asking, tenants: Tenants, installation: Installation, flaw: str
) -> None:
    plane, namespace = installation.plane, tenants.red
    good = plane.token_for("viewer", namespace, audience=AUDIENCE)
    assert ask.with_token(good, namespace).code == 0
    match flaw:
        case "forged":
            token = signed_anew(good, ec.generate_private_key(ec.SECP256R1()))
        case "expired":
            token = signed_anew(
                good, signing_key(installation), iat=1_700_000_000, nbf=1_700_000_000, exp=1_700_000_600
            )
        case "another audience":
            token = plane.token_for("viewer", namespace, audience="somebody-else")
        case "what a Pod enrols with":
            token = plane.token_for("default", namespace, audience=ENROLMENT, bound_pod="agent-0")
        case _:
            plane.kubectl("create", "serviceaccount", "brief", "-n", namespace)
            token = plane.token_for("brief", namespace, audience=AUDIENCE)
            plane.kubectl("delete", "serviceaccount", "brief", "-n", namespace)
    shown = ask.with_token(token, namespace)
    assert (shown.code, shown.out) == (2, "")
    assert "UNAUTHENTICATED: the token proves nothing" in shown.err
    assert token not in shown.err + installation.operator.log.read_text()


def test_an_operator_of_another_authority_is_shown_no_token(ask: Asking, tenants: Tenants) -> None:
    from e2e.harness import service_credentials

    path = ask.folder / "strangers.crt"
    path.write_bytes(service_credentials().trust_bundle_pem)
    shown = ask("--namespace", tenants.red, "--trust-bundle", path)
    assert "supervisors are not shown: operator 127.0.0.1" in shown.err
    assert f"{tenants.red}/outbound" in shown.out


def test_where_nobody_answers_objects_are_shown_and_why_the_rest_is_not(ask: Asking, tenants: Tenants) -> None:
    shown = ask("--namespace", tenants.red, "--operator", f"127.0.0.1:{free_port()}")
    assert f"{tenants.red}/outbound" in shown.out
    assert shown.err.startswith("smw: supervisors are not shown: operator 127.0.0.1:")
    elsewhere = ask("--namespace", tenants.red, "--operator-namespace", "default", reach=False)
    assert "give --operator-namespace NAME, or --operator HOST:PORT" in elsewhere.err
    watched = ask("--namespace", tenants.red, "--operator", f"127.0.0.1:{free_port()}", "--watch")
    assert (watched.code, watched.out) == (2, "")


def test_the_port_of_the_pod_that_leads_is_forwarded(
    ask: Asking, tenants: Tenants, installation: Installation, tmp_path: Path
) -> None:
    plane, pod = installation.plane, socket.gethostname()
    leading = a_pod(pod, namespace=OPERATOR_NAMESPACE, sandbox="x")
    del leading["metadata"]["labels"]
    leading["spec"]["nodeName"] = "node-1"
    with kubelet(plane, node="node-1", directory=tmp_path):
        slices = ("apply", "-f", "-")
        plane.kubectl(*slices, input=yaml.safe_dump(a_slice(installation.enrollment_port)))
        plane.kubectl(*slices, input=yaml.safe_dump(leading))
        try:
            shown = ask("--namespace", tenants.red, "-o", "json", reach=False)
            assert (shown.code, shown.err, titles(shown)) == (0, "", {tenants.red})
            plane.kubectl(*slices, input=yaml.safe_dump(a_slice(free_port())))
            closed = ask("--namespace", tenants.red, reach=False)
            assert "cannot be forwarded: error forwarding port" in closed.err
        finally:
            plane.kubectl("delete", "pod", pod, "-n", OPERATOR_NAMESPACE, "--grace-period=0", "--force")
            plane.kubectl("delete", "endpointslice", "supervisor-middleware-leader", "-n", OPERATOR_NAMESPACE)
    absent = ask("--namespace", tenants.red, reach=False)
    assert f"of Pod {OPERATOR_NAMESPACE}/{pod} cannot be forwarded: the API server answered 404" in absent.err


def test_changes_are_told_as_they_happen_also_over_a_restart_of_the_operator(
    ask: Asking, tenants: Tenants, installation: Installation
) -> None:
    plane, log = installation.plane, ask.folder / "watch.log"
    arguments = ask.arguments("--namespace", tenants.blue, "--watch")
    with log.open("w") as out:
        watch = subprocess.Popen([*MODULE, *arguments], stdout=out, stderr=subprocess.STDOUT)
    try:
        installation.wait("the first answer", lambda: "0/1 on desired" in log.read_text())
        installation.apply(a_pod("late-0", namespace=tenants.blue, sandbox="late"))
        installation.wait("a new sandbox", lambda: f"{tenants.blue}/late  NotConnected" in log.read_text())
        plane.kubectl("delete", "pod", "late-0", "-n", tenants.blue, "--grace-period=0", "--force")
        installation.wait("it is gone", lambda: f"{tenants.blue}/late  NotConnected -> Gone" in log.read_text())
        installation.operator.stop()
        installation.start()
        installation.apply(a_pod("last-0", namespace=tenants.blue, sandbox="last"))
        installation.wait("it goes on", lambda: f"{tenants.blue}/last  NotConnected" in log.read_text())
        assert watch.poll() is None
        assert "smw: operator 127.0.0.1:" in log.read_text()
    finally:
        watch.terminate()
        watch.wait(10)


def a_slice(port: int) -> dict[str, Any]:
    """What the leader writes where it knows its Pod's address."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "supervisor-middleware-leader", "namespace": OPERATOR_NAMESPACE},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"]}],
        "ports": [{"name": "enrollment", "port": port, "protocol": "TCP"}],
    }


def signing_key(installation: Installation) -> ec.EllipticCurvePrivateKey:
    """What the API server signs tokens with."""
    pem = (installation.plane.directory / "pki" / "service-accounts.key").read_bytes()
    key = load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def signed_anew(token: str, key: ec.EllipticCurvePrivateKey, **claims: int) -> str:
    """The same token with other claims, or another signature (ES256)."""
    header, payload, _ = token.split(".")
    content = json.loads(base64.urlsafe_b64decode(payload + "=="))
    changed = _encoded(json.dumps(content | claims).encode())
    r, s = decode_dss_signature(key.sign(f"{header}.{changed}".encode(), ec.ECDSA(SHA256())))
    return f"{header}.{changed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
