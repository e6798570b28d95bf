"""Three replicas of the operator, each on a loopback address of its own with the same ports."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from e2e.harness import OPERATOR_NAMESPACE, Installation, listens, read
from supervisor_middleware.cli.processes import Process

HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SERVICE: Final = "supervisor-middleware"
LEASE: Final = ("lease", "supervisor-middleware", "-n", OPERATOR_NAMESPACE)
EPOCH: Final = "middleware.openshell.io/epoch"


def address_of(host: str) -> str:
    """What a replica says its Pod's address is: an EndpointSlice takes no loopback address."""
    return host.replace("127.0.0", "192.0.2")


@dataclass(slots=True)
class Replicas:
    """The replicas of an installation, by host."""

    installation: Installation
    processes: dict[str, Process] = field(init=False)

    def __post_init__(self) -> None:
        self.processes = {
            host: self.installation.replica(
                f"operator-{host}", host=host, environment={"SMW_POD_IP": address_of(host)}
            )
            for host in HOSTS
        }
        self.installation.processes.extend(self.processes.values())

    def install(self) -> None:
        """What the chart would, with the Service of the leader."""
        self.installation.install()
        ports = [{"name": "enrollment", "port": 8443}, {"name": "discovery", "port": 8444}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE}, "spec": {"ports": ports}}
        service["metadata"] = {"name": SERVICE, "namespace": OPERATOR_NAMESPACE}
        self.installation.apply(service)

    def start(self) -> None:
        """All at once; returns when each is ready and one serves."""
        for process in self.processes.values():
            if not self.is_running(process):
                process.start()
        self.await_leader()
        for host in HOSTS:
            self.wait(f"{host} is ready", lambda host=host: self.is_ready(host))

    def stop(self) -> None:
        """All of them, cleanly."""
        for process in self.processes.values():
            process.stop()

    def await_leader(self, *, other_than: str = "") -> str:
        """Until exactly one leads and serves, and the API server asks a webhook that answers; its host."""
        self.wait("one leads", lambda: self.leader() not in {"", other_than}, seconds=60)
        leader = self.leader()
        self.review_at(leader)
        return leader

    def leader(self) -> str:
        """Who leads and serves; nobody, if it is not exactly one."""
        found = [h for h in HOSTS if self.leads(h) and listens(h, self.installation.discovery_port)]
        return found[0] if len(found) == 1 else ""

    def leads(self, host: str) -> bool:
        """Whether a replica says that it leads. One that is stopped says nothing."""
        return self.installation.metrics(host=host).get("leader") == 1

    def is_ready(self, host: str) -> bool:
        """Whether a replica says that it is."""
        return read(self.installation.health_port, "/readyz", host=host)[0] == 200

    def is_running(self, process: Process) -> bool:
        """Whether it was started and has not ended."""
        return process.running is not None and process.running.poll() is None

    def send(self, host: str, number: signal.Signals) -> None:
        """A signal to one replica."""
        running = self.processes[host].running
        assert running is not None
        running.send_signal(number)

    def log(self, host: str) -> str:
        """What a replica has said so far."""
        return self.processes[host].log.read_text()

    def review_at(self, host: str) -> None:
        """Have the API server ask this replica."""
        url = f"https://{host}:{self.installation.webhook_port}/validate"
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": url}]
        name = f"supervisor-middleware-{OPERATOR_NAMESPACE}"
        configuration = ("validatingwebhookconfiguration", name)
        self.installation.plane.kubectl("patch", *configuration, "--type=json", "-p", yaml.safe_dump(patch))

    def wait(self, what: str, is_so: Any, *, seconds: float = 30.0) -> None:
        """As the installation's."""
        self.installation.wait(what, is_so, seconds=seconds)

    # ----------------------------------------------------------------------------------------------------------- Lease

    def lease(self) -> Mapping[str, Any]:
        """The Lease, as it is stored."""
        return self.installation.get("lease", "supervisor-middleware", namespace=OPERATOR_NAMESPACE)

    def epoch(self) -> int:
        """Of the Lease."""
        return int(self.lease()["metadata"]["annotations"][EPOCH])

    def reached_by_service(self) -> set[str]:
        """Where the Service of the leader leads, as the API server has it."""
        found = self.installation.get("endpointslice", f"{SERVICE}-leader", namespace=OPERATOR_NAMESPACE)
        assert found["metadata"]["labels"]["kubernetes.io/service-name"] == SERVICE
        return {address for endpoint in found["endpoints"] for address in endpoint["addresses"]}
