"""The chart, installed by Helm, and the operator of its first Pod: what tests of the chart stand on.

There is no kubelet, so the operator of a Pod runs beside the test: with that Pod's environment, under that Pod's token;
and where no node is, no controller takes a Pod for an endpoint, so this writes the webhook Service's EndpointSlice. All
else is the cluster's own work, the way of a review from the API server through the Service to the operator too.
"""

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.absent import absent
from e2e.chart import CHART, Document, Helm
from e2e.controlplane.cluster import ControlPlane
from e2e.harness import read
from e2e.objects import a_policy
from supervisor_middleware.cli.processes import Process, free_port, wait_until

NAMESPACE: Final = "supervisor-middleware"
RELEASE: Final = "smw"
WEBHOOK_SERVICE: Final = "supervisor-middleware-webhook"
BREAK_GLASS: Final = ("--as=oncall", "--as-group=system:masters", "--as-group=middleware.openshell.io:break-glass")
RESTRICTED: Final = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}


@dataclass(slots=True)
class Release:
    """The chart, installed, and the operator of its first Pod."""

    plane: ControlPlane
    helm: Helm
    directory: Path
    address: str = field(default_factory=lambda: _address())  # noqa: PLW0108 - defined below, as private things are
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
        service = json.loads(self.plane.kubectl("get", "svc", WEBHOOK_SERVICE, "-n", NAMESPACE, "-o", "json").stdout)[
            "spec"
        ]
        (port,) = service["ports"]
        (container,) = pod["spec"]["containers"]
        assert service["selector"].items() <= pod["metadata"]["labels"].items()
        numbers = {p["name"]: p["containerPort"] for p in container["ports"]}
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{WEBHOOK_SERVICE}-test",
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": WEBHOOK_SERVICE},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": [{"name": port["name"], "port": numbers[port["targetPort"]], "protocol": "TCP"}],
        }

    def _webhook_answers(self) -> bool:
        probe = yaml.safe_dump(a_policy("probe", namespace="default"))
        return self.plane.kubectl("create", "--dry-run=server", "-f", "-", input=probe, check=False).returncode == 0


def _address() -> str:
    """An address of this machine that is no loopback: EndpointSlices take no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("198.51.100.1", 9))  # nothing is sent: it only chooses a route
        address: str = probe.getsockname()[0]
        if not address.startswith("127."):
            return address
    return absent("NO ADDRESS BUT LOOPBACK: the way of a review through the chart's Service cannot be tested here")
