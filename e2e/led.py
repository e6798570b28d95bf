"""Three replicas on the shared control plane with whom they lead: one sandbox with its whole supervisor, and a crowd."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.controlplane.cluster import ControlPlane
from e2e.crowd import Grounds, grounds
from e2e.harness import OPERATOR_NAMESPACE, Installation, a_pod
from e2e.objects import Document, a_policy
from e2e.replicas import HOSTS, Replicas, address_of
from supervisor_middleware.cli.processes import Process, echo_upstream, post

_KEY: Final = "sk-0123456789abcdefghij"
_PROGRAMMED: Final = "Programmed=True/Programmed"


@dataclass(frozen=True, slots=True)
class World:
    """The replicas, a namespace with a policy and a sandbox with its supervisor, and one for a crowd."""

    replicas: Replicas
    namespace: str
    proxy: int
    supervisor: Process
    grounds: Grounds

    @property
    def installation(self) -> Installation:
        return self.replicas.installation

    def standing(self) -> tuple[Document, tuple[str, ...]]:
        """What is accepted, and which generations supervisors have taken up so far."""
        accepted: Document = self.installation.get("sbp", "outbound", namespace=self.namespace)["status"]["accepted"]
        return accepted, tuple(_activated(self.supervisor))

    def await_served(self, leader: str, *, crowd: int = 0) -> None:
        """Until everybody has a stream to `leader` and the policy's status says so."""
        count = 1 + crowd
        self.replicas.wait("all found it", lambda: self.installation.connected(host=leader) == count, seconds=90)
        self.installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=self.namespace)
        self.replicas.wait(
            "the Service leads there", lambda: self.replicas.reached_by_service() == {address_of(leader)}
        )

    def is_redacted(self) -> bool:
        return post(self.proxy, "www.example.com", _KEY).body == "[REDACTED]"

    def audited(self, host: str) -> str:
        """What a replica has audited so far."""
        return (self.installation.directory / f"operator-{host}-audit.jsonl").read_text()


def _activated(supervisor: Process) -> list[str]:
    lines = (supervisor.log.parent / "audit.jsonl").read_text().splitlines()
    events = [line for line in lines if "generation_activated" in line]
    return [json.dumps(json.loads(line).get("unmapped"), sort_keys=True) for line in events]


@contextmanager
def led(control_plane: ControlPlane, folder: Path) -> Iterator[World]:
    """Install and start everything; nothing of it stays behind."""
    installation = Installation(control_plane, folder)
    replicas = Replicas(installation)
    try:
        replicas.install()
        replicas.start()
        namespace = installation.plane.create_namespace("led")
        pod = a_pod("agent", namespace=namespace, sandbox="agent")
        installation.apply(a_policy("outbound", namespace=namespace), pod)
        installation.wait("the trust bundle is there", lambda: _has_bundle(control_plane))
        around = grounds(replicas)
        with echo_upstream() as upstream:
            process, proxy = installation.supervisor(
                namespace=namespace, sandbox="agent", pod="agent", upstream=upstream, operators=HOSTS
            )
            made = World(replicas, namespace, proxy, process, around)
            made.await_served(replicas.leader())
            yield made
        installation.plane.kubectl("delete", "namespace", namespace, around.namespace, "--wait=false")
    finally:
        installation.stop()
        installation.uninstall()
        installation.plane.kubectl("delete", "service", "supervisor-middleware", "-n", OPERATOR_NAMESPACE)


def _has_bundle(plane: ControlPlane) -> bool:
    bundle = ("get", "configmap", "supervisor-middleware-trust", "-n", OPERATOR_NAMESPACE)
    return plane.kubectl(*bundle, check=False).returncode == 0
