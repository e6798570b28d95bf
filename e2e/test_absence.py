"""Absence of data is not absence of policy: what cannot be read leaves everything as it is, and is loud about it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import LOOPBACK, OPERATOR_NAMESPACE, Installation, a_pod, listens, operator_rbac, read
from e2e.objects import Document, a_baseline, a_policy, a_registration, an_entry
from supervisor_middleware.cli.processes import echo_upstream, free_port, post

_KEY = "sk-0123456789abcdefghij"
_PROGRAMMED = "Programmed=True/Programmed"
_PATIENCE = 90.0
_CRDS = Path(__file__).resolve().parents[1] / "crds"
_PLURALS = {
    "SupervisorMiddleware": "supervisormiddlewares",
    "SandboxPolicy": "sandboxpolicies",
    "ClusterSandboxPolicy": "clustersandboxpolicies",
    "PolicyRevision": "policyrevisions",
    "Namespace": "namespaces",
    "Sandbox": "pods",
}
_OURS = ("SupervisorMiddleware", "SandboxPolicy", "ClusterSandboxPolicy", "PolicyRevision")


@dataclass(slots=True)
class World:
    """A sandbox that a baseline and a policy of its namespace redact for; the operator runs and may do everything."""

    installation: Installation
    namespace: str
    objects: tuple[Document, ...]
    port: int

    @property
    def plane(self) -> ControlPlane:
        return self.installation.plane

    def unknown(self) -> set[str]:
        """Kinds that the metric calls unknown."""
        metrics = self.installation.metrics()
        return {kind for kind in _PLURALS if metrics.get(f'kind_unknown{{kind="{kind}"}}') == 1}

    def await_unknown(self, *kinds: str) -> None:
        """Until the metric calls exactly these unknown."""
        self.installation.wait(
            f"unknown: {kinds}", lambda: self.unknown() == set(kinds) and self._answers(), seconds=_PATIENCE
        )

    def assert_served(self) -> None:
        """By the baseline's stage and by the policy's."""
        for host in ("www.example.org", "www.example.com"):
            assert post(self.port, host, _KEY).body == "[REDACTED]"

    def await_programmed(self) -> None:
        """Until the supervisor serves what policy and baseline say."""
        self.installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=self.namespace, seconds=_PATIENCE)
        self.installation.await_condition("csbp", "baseline", _PROGRAMMED, seconds=_PATIENCE)

    def accepted(self) -> Document:
        found = self.installation.get("sbp", "outbound", namespace=self.namespace)
        accepted: Document = found["status"]["accepted"]
        return accepted

    def apply(self, *documents: Document) -> None:
        """As soon as somebody admits them."""
        text = yaml.safe_dump_all(documents)
        self.installation.wait(
            "it is admitted",
            lambda: self.plane.kubectl("apply", "-f", "-", input=text, check=False).returncode == 0,
            seconds=_PATIENCE,
        )

    def log(self) -> str:
        return self.installation.operator.log.read_text()

    def _answers(self) -> bool:
        return read(self.installation.health_port, "/healthz")[0] == 200


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    installation = Installation(control_plane, tmp_path_factory.mktemp("absence"))
    try:
        with installation, echo_upstream() as upstream:
            namespace = control_plane.create_namespace("absence")
            control_plane.kubectl("label", "namespace", namespace, "tier=prod")
            objects = (
                a_registration("doomed", endpoint=f"http://127.0.0.1:{free_port()}"),
                a_baseline(
                    "baseline",
                    selector={"tier": "prod"},
                    keys=an_entry(order=10, include=["*.example.org"]),
                ),
                a_policy("outbound", namespace=namespace, redact=an_entry(order=20, include=["www.example.com"])),
            )
            installation.apply(*objects, a_pod("agent-0", namespace=namespace, sandbox="agent"))
            _, port = installation.supervisor(namespace=namespace, sandbox="agent", pod="agent-0", upstream=upstream)
            world = World(installation, namespace, objects, port)
            installation.wait("the supervisor is connected", lambda: installation.connected() == 1)
            world.await_programmed()
            yield world
    finally:
        control_plane.kubectl("apply", "-f", "-", input=operator_rbac(OPERATOR_NAMESPACE), check=False)
        installation.uninstall()


def forbid(plane: ControlPlane, *plurals: str) -> None:
    """Take the rights on these collections from the operator."""
    role = f"supervisor-middleware-{OPERATOR_NAMESPACE}"
    found = json.loads(plane.kubectl("get", "clusterrole", role, "-o", "json").stdout)
    for rule in found["rules"]:
        rule["resources"] = [r for r in rule["resources"] if r not in plurals]
    found["rules"] = [rule for rule in found["rules"] if rule["resources"]]
    plane.kubectl("replace", "-f", "-", input=json.dumps(found))


def permit(plane: ControlPlane) -> None:
    """Give all rights back."""
    plane.kubectl("apply", "-f", "-", input=operator_rbac(OPERATOR_NAMESPACE))


@pytest.mark.parametrize("kind", ["Sandbox", "Namespace", "SandboxPolicy", "PolicyRevision"])
def test_of_a_cache_that_is_half_synced_at_the_start_nothing_is_published(world: World, kind: str) -> None:
    installation, before = world.installation, world.accepted()
    installation.operator.kill()
    forbid(world.plane, _PLURALS[kind])
    try:
        installation.operator.start()
        world.await_unknown(kind)
        installation.wait(
            "it says why", lambda: "403 Forbidden" in read(installation.health_port, "/readyz")[1], seconds=_PATIENCE
        )
        status, text = read(installation.health_port, "/readyz")
        assert (status, text.partition(":")[0]) == (503, kind)
        assert not listens(LOOPBACK, installation.discovery_port)
        assert installation.metrics()["leader"] == 0
        assert world.accepted() == before
        world.assert_served()
    finally:
        permit(world.plane)
    installation.wait("the operator is ready", installation.is_ready, seconds=_PATIENCE)
    world.await_unknown()
    world.await_programmed()
    assert world.accepted()["revision"] == before["revision"]


def test_a_right_that_is_taken_from_a_running_operator_holds_everything_until_it_is_back(world: World) -> None:
    before = world.accepted()
    forbid(world.plane, "namespaces", "pods")
    try:
        world.await_unknown("Namespace", "Sandbox")
        world.assert_served()
        # Whoever could not be read must not look as if it were gone, nor as if it were new.
        world.plane.kubectl("label", "namespace", world.namespace, "tier=test", "--overwrite")
        edited = a_policy("outbound", namespace=world.namespace, redact=an_entry(order=20, include=["a.example.com"]))
        world.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(edited), check=False)
        world.installation.wait("it is loud", lambda: "holding everything as it is" in world.log(), seconds=_PATIENCE)
        world.assert_served()
        assert world.accepted() == before
        assert read(world.installation.health_port, "/healthz")[0] == 200
        world.plane.kubectl("label", "namespace", world.namespace, "tier=prod", "--overwrite")
    finally:
        permit(world.plane)
    world.apply(edited)
    world.await_unknown()
    world.await_programmed()
    assert post(world.port, "a.example.com", _KEY).body == "[REDACTED]"
    world.apply(*world.objects)
    world.await_programmed()
    world.assert_served()


@pytest.mark.parametrize("kind", _OURS)
def test_a_kind_that_is_deleted_takes_nothing_from_a_sandbox(world: World, kind: str) -> None:
    plane, definition = world.plane, f"{_PLURALS[kind]}.middleware.openshell.io"
    manifest = _CRDS / f"middleware.openshell.io_{_PLURALS[kind]}.yaml"
    plane.kubectl("delete", "crd", definition, "--timeout=60s")
    world.await_unknown(kind)
    assert f'"kind": "{kind}"' in world.log()
    world.assert_served()

    plane.kubectl("apply", "--server-side", "-f", str(manifest))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(manifest))
    world.apply(*world.objects)
    world.assert_served()
    world.await_unknown()
    world.await_programmed()
    world.assert_served()
