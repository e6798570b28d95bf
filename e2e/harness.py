"""The operator installed on a real API server, with real processes around it: what e2e tests and the demo stand on.

The operator runs as its ServiceAccount with the chart's RBAC, never as admin. Everything ends with `stop`.
"""

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.reading import everyone, one, there_is
from supervisor_middleware.cli.processes import Process, free_port, wait_until
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.pki.credentials import Credentials

LOOPBACK: Final = "127.0.0.1"
OPERATOR_NAMESPACE: Final = "smw-system"
TRUST_DOMAIN: Final = "openshell.internal"
_MANIFESTS: Final = Path(__file__).parent / "manifests"
_RBAC: Final = Path(__file__).parents[1] / "charts" / "supervisor-middleware" / "templates" / "operator-rbac.yaml"
_ACCOUNT: Final = "supervisor-middleware"
_PATIENCE: Final = 90.0
"""A busy machine is slow, not wrong; only who fails waits that long."""


@dataclass(slots=True)
class Installation:
    """One operator on one API server, and the services and supervisors started beside it."""

    plane: ControlPlane
    directory: Path
    webhook_port: int = field(default_factory=free_port)
    enrollment_port: int = field(default_factory=free_port)
    discovery_port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    environment: Mapping[str, str] = field(default_factory=dict)
    operator: Process = field(init=False)
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.operator = self.replica("operator", host=LOOPBACK)

    def replica(self, name: str, *, host: str, environment: Mapping[str, str] | None = None) -> Process:
        """One process of the operator on a loopback address of its own; not started."""
        return Process(
            name=name,
            arguments=("operator", "--kubeconfig", str(self.directory / "operator.kubeconfig"), "--allow-loopback"),
            log=self.directory / f"{name}.log",
            environment={
                "SMW_NAMESPACE": OPERATOR_NAMESPACE,
                "SMW_HOST": host,
                "SMW_WEBHOOK_PORT": str(self.webhook_port),
                "SMW_WEBHOOK_NAMES": f'["{host}"]',
                "SMW_WEBHOOK_CONFIGURATION": f"supervisor-middleware-{OPERATOR_NAMESPACE}",
                "SMW_ENROLLMENT_PORT": str(self.enrollment_port),
                "SMW_DISCOVERY_PORT": str(self.discovery_port),
                "SMW_HEALTH_PORT": str(self.health_port),
                "SMW_AUDIT_FILE": str(self.directory / f"{name}-audit.jsonl"),
                **self.environment,
                **(environment or {}),
            },
        )

    def __enter__(self) -> Self:
        self.install()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def install(self) -> None:
        """Namespace, RBAC, webhook configuration, and a kubeconfig of the operator's ServiceAccount."""
        self.plane.kubectl("apply", "-f", "-", input=_document("Namespace", OPERATOR_NAMESPACE))
        webhook = (_MANIFESTS / "webhook.yaml").read_text()
        webhook = webhook.replace("OPERATOR_NAMESPACE", OPERATOR_NAMESPACE)
        webhook = webhook.replace("WEBHOOK_PORT", str(self.webhook_port))
        for text in (operator_rbac(OPERATOR_NAMESPACE), webhook):
            self.plane.kubectl("apply", "-f", "-", input=text)
        token = self.plane.token_for(_ACCOUNT, OPERATOR_NAMESPACE)
        admin = yaml.safe_load(self.plane.kubeconfig.read_text())
        admin["users"][0]["user"] = {"token": token}
        (self.directory / "operator.kubeconfig").write_text(yaml.safe_dump(admin))

    def start(self) -> None:
        """Start the operator and return once it is ready and leads."""
        self.operator.start()
        self.wait("the operator is ready", self.is_ready)

    def is_ready(self) -> bool:
        """Whether `/readyz` says so, supervisors are served, and the webhook answers reviews."""
        if read(self.health_port, "/readyz")[0] != 200 or not listens(LOOPBACK, self.discovery_port):
            return False
        return self.has_bundle() and self._webhook_answers()

    def has_bundle(self) -> bool:
        """Whether the trust bundle is published."""
        return there_is(self.plane, "configmap", "supervisor-middleware-trust", namespace=OPERATOR_NAMESPACE)

    def stop(self) -> None:
        """End every process; the API server is its owner's."""
        for process in [*self.processes, self.operator]:
            process.stop()

    def uninstall(self) -> None:
        """Take away what others on this API server would trip over: the webhook, and every object of ours."""
        webhook = ("validatingwebhookconfiguration", f"supervisor-middleware-{OPERATOR_NAMESPACE}")
        self.plane.kubectl("delete", *webhook, "--ignore-not-found")
        for kind in ("sandboxpolicies", "clustersandboxpolicies", "supervisormiddlewares", "policyrevisions"):
            everywhere = ("--all-namespaces",) if kind == "sandboxpolicies" else ()
            self.plane.kubectl("delete", kind, "--all", "--wait=false", *everywhere)

    def wait(self, what: str, is_so: Callable[[], bool], *, seconds: float = _PATIENCE) -> None:
        """Poll until `is_so`, or fail with the log of whatever ended."""
        running = [p for p in [self.operator, *self.processes] if p.running is not None and p.running.poll() is None]
        wait_until(what, is_so, processes=tuple(running), seconds=seconds)

    # -------------------------------------------------------------------------------------------------------- objects

    def apply(self, *documents: Mapping[str, Any]) -> None:
        """`kubectl apply` that must succeed."""
        self.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))

    def refusal(self, *documents: Mapping[str, Any]) -> str:
        """What `kubectl apply` says when it must fail."""
        result = self.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents), check=False)
        assert result.returncode != 0, f"applied, but should have been refused: {result.stdout}"
        return result.stderr

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """One object."""
        return one(self.plane, kind, name, namespace=namespace)

    def condition(self, kind: str, name: str, condition: str, *, namespace: str | None = None) -> str:
        """`status/reason` of a condition; empty if there is none."""
        return _condition(self.get(kind, name, namespace=namespace), condition)

    def await_condition(
        self, kind: str, name: str, condition: str, *, namespace: str | None = None, seconds: float = _PATIENCE
    ) -> None:
        """Wait until `condition` (`Programmed=True/NoSandboxes`) holds of the object as it stands now."""
        wanted, _, value = condition.partition("=")

        def holds() -> bool:
            found = self.get(kind, name, namespace=namespace)
            is_observed = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
            return is_observed and _condition(found, wanted) == value

        try:
            self.wait(f"{kind} {name} {condition}", holds, seconds=seconds)
        except Unavailable as error:
            status = self.get(kind, name, namespace=namespace).get("status")
            raise Unavailable(f"{error}; its status is {json.dumps(status)}") from error

    def revisions(self, *, of: str | None = None) -> list[str]:
        """Names of all PolicyRevisions, or of those of one policy, by its UID."""
        return sorted(
            i["metadata"]["name"] for i in everyone(self.plane, "prev") if of in {None, i["spec"]["policy"]["uid"]}
        )

    # --------------------------------------------------------------------------------------------------------- probes

    def metrics(self, *, host: str = LOOPBACK) -> dict[str, float]:
        """What `/metrics` shows, by name and labels as written, without our prefix; nothing if nobody answers."""
        status, text = read(self.health_port, "/metrics", host=host)
        if status != 200:
            return {}
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name.removeprefix("supervisor_middleware_"): float(value) for name, _, value in lines}

    def connected(self, *, host: str = LOOPBACK) -> int:
        """How many supervisors have a stream to the replica there."""
        found = {k: v for k, v in self.metrics(host=host).items() if k.startswith("supervisors{")}
        return int(sum(v for k, v in found.items() if "not_connected" not in k))

    # ----------------------------------------------------------------------------------------------- around the operator

    def trust_bundle(self) -> Path:
        """The published trust bundle, as a file."""
        data = self.get("configmap", "supervisor-middleware-trust", namespace=OPERATOR_NAMESPACE)["data"]
        path = self.directory / "trust-bundle.crt"
        path.write_text(data["ca.crt"])
        return path

    def terms_service(self, *, port: int, name: str = "terms") -> tuple[Process, str]:
        """Start the terms service with a certificate of its own authority; returns it and that authority's PEM."""
        credentials = service_credentials()
        folder = self.directory / f"{name}-tls"
        write_credentials(folder, credentials)
        arguments = ("serve", "terms", "--address", f"127.0.0.1:{port}", "--tls", str(folder))
        trusted = ("--client-ca", str(self.trust_bundle()), "--trust-domain", TRUST_DOMAIN)
        process = Process(name=name, arguments=(*arguments, *trusted), log=self.directory / f"{name}.log")
        process.start()
        self.processes.append(process)
        return process, credentials.trust_bundle_pem.decode()

    def supervisor(
        self, *, namespace: str, sandbox: str, pod: str, upstream: int, operators: tuple[str, ...] = (LOOPBACK,)
    ) -> tuple[Process, int]:
        """Start a supervisor for a Pod, with a token bound to it; returns it and its proxy's port."""
        folder = self.directory / f"supervisor-{namespace}-{pod}"
        folder.mkdir(exist_ok=True)
        token = self.plane.token_for("default", namespace, bound_pod=pod, audience="supervisor-middleware")
        (folder / "token").write_text(token)
        proxy = free_port()
        process = Process(
            name=f"supervisor {sandbox}",
            arguments=(
                *("supervisor", *(a for o in operators for a in ("--operator", o))),
                *("--namespace", namespace, "--sandbox", sandbox),
                *("--trust-bundle", str(self.trust_bundle()), "--token-file", str(folder / "token")),
                *("--state", str(folder / "state"), "--listen", f"127.0.0.1:{proxy}"),
                *("--upstream", f"127.0.0.1:{upstream}"),
            ),
            log=folder / "supervisor.log",
            environment={
                "SMW_ENROLLMENT_PORT": str(self.enrollment_port),
                "SMW_DISCOVERY_PORT": str(self.discovery_port),
                "SMW_HEALTH_PORT": str(free_port()),
                "SMW_AUDIT_FILE": str(folder / "audit.jsonl"),
            },
        )
        process.start()
        self.processes.append(process)
        return process, proxy

    def _webhook_answers(self) -> bool:
        """A dry run through the API server: what counts is that *it* gets an answer."""
        probe = {
            "apiVersion": "middleware.openshell.io/v1alpha1",
            "kind": "SandboxPolicy",
            "metadata": {"name": "probe", "namespace": "default"},
            "spec": {"sandboxSelector": {}},
        }
        result = self.plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(probe), check=False)
        return result.returncode == 0


def operator_rbac(namespace: str) -> str:
    """The chart's RBAC for an operator in `namespace`, as Helm renders it: it holds no other template."""
    return _RBAC.read_text().replace("{{ .Release.Namespace }}", namespace)


def service_credentials() -> Credentials:
    """A serving certificate for 127.0.0.1, of an authority made for it."""
    now = datetime.now(UTC)
    authority = Authority.create(trust_domain="services.example.internal", now=now)
    from ipaddress import ip_address

    return authority.issue_server(dns_names=("localhost",), ip_addresses=(ip_address("127.0.0.1"),), now=now)


def a_pod(name: str, *, namespace: str, sandbox: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A sandbox's Pod. There is no kubelet: it stays Pending, which is alive enough to enrol."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"middleware.openshell.io/sandbox": sandbox, **(labels or {})},
        },
        "spec": {"containers": [{"name": "agent", "image": "example.invalid/agent"}]},
    }


def _document(kind: str, name: str) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})


def _condition(found: Mapping[str, Any], condition: str) -> str:
    for known in found.get("status", {}).get("conditions", ()):
        if known["type"] == condition:
            return f"{known['status']}/{known['reason']}"
    return ""


def listens(host: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=2):
        return True
    return False


def read(port: int, path: str, *, host: str = LOOPBACK) -> tuple[int, str]:
    """Status and text of a GET on loopback; 0 if nobody answers."""
    import http.client

    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError as error:
        return 0, str(error)
    finally:
        connection.close()
