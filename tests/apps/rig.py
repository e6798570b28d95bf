"""The whole loop on loopback, every part a process of its own: control plane over a folder, service, supervisors."""

import http.client
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor_middleware.cli.processes import Answer, Process, echo_upstream, free_port, post, wait_until
from supervisor_middleware.cli.tokens import create
from supervisor_middleware.pki.store import load_or_create_authority

NAMESPACE = "team-a"
SECRET = "Project Heron"
KEY = "sk-0123456789abcdefghij"
REGISTRATION = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: SupervisorMiddleware
metadata: {{name: terms}}
spec: {{grpcEndpoint: "http://127.0.0.1:{port}", allowInsecure: true, maxBodyBytes: 65536, timeout: 1s}}
"""
POLICY = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {name: outbound, namespace: team-a}
spec:
  sandboxSelector: {}
  networkMiddlewares:
    keys:
      middleware: openshell/regex
      order: 1
      endpoints: {include: ["**.example.com"]}
    names:
      middleware: acme/terms
      order: 2
      config: {terms: [Project Heron], action: redact}
      endpoints: {include: [api.example.com]}
    telemetry:
      middleware: acme/terms
      order: 3
      config: {terms: [Project Heron], action: redact}
      onError: FailOpen
      endpoints: {include: [telemetry.example.com]}
"""
SANDBOX = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: Sandbox
metadata: {{name: {name}, namespace: team-a}}
"""


@dataclass(kw_only=True)
class Supervised:
    """A supervisor, its proxy and what it keeps."""

    process: Process
    folder: Path
    proxy: int
    health: int

    def send(self, host: str, body: str) -> Answer:
        return post(self.proxy, host, body)

    @property
    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]


class Rig:
    """Writes the folder, starts and stops what runs over it, and waits until things are so."""

    def __init__(self, folder: Path, stack: ExitStack, *, upstream: int) -> None:
        self.folder, self._stack, self._upstream = folder, stack, upstream
        self.config, self.state = folder / "config", folder / "state"
        self.config.mkdir(parents=True)
        self.health, self.service_port = free_port(), free_port()
        self._ports = {
            "SMW_ENROLLMENT_PORT": str(free_port()),
            "SMW_DISCOVERY_PORT": str(free_port()),
        }
        self._processes: list[Process] = []
        # Made before anybody runs, so that all can start at once.
        load_or_create_authority(self.state, trust_domain="openshell.internal", now=datetime.now(UTC))
        self.control = self.process(
            "control", "standalone", self.config, "--state", self.state, SMW_HEALTH_PORT=str(self.health)
        )
        self.service = self.process("service", "serve", "terms", "--address", f"127.0.0.1:{self.service_port}")
        self.write("registration.yaml", REGISTRATION.format(port=self.service_port))
        self.write("policy.yaml", POLICY)

    @property
    def environment(self) -> dict[str, str]:
        """Of a command that is to find what runs here."""
        return {**os.environ, **self._ports}

    def process(self, name: str, *arguments: str | Path, **environment: str) -> Process:
        process = Process(
            name=name,
            arguments=tuple(map(str, arguments)),
            log=self.folder / f"{name}.log",
            environment={**self._ports, **environment},
        )
        self._processes.append(process)
        self._stack.callback(process.stop)
        return process

    def supervisor(self, name: str = "agent", *, token: str | None = None) -> Supervised:
        """One for the sandbox `name`, which the folder gets to know; not started yet."""
        folder = self.folder / name
        folder.mkdir()
        self.write(f"sandbox-{name}.yaml", SANDBOX.format(name=name))
        (folder / "token").write_text(self.token(name) if token is None else token)
        proxy, health = free_port(), free_port()
        process = self.process(
            name,
            *("supervisor", "--namespace", NAMESPACE, "--sandbox", name, "--state", folder / "state"),
            *("--trust-bundle", self.state / "ca.crt", "--token-file", folder / "token"),
            *("--listen", f"127.0.0.1:{proxy}", "--upstream", f"127.0.0.1:{self._upstream}"),
            SMW_HEALTH_PORT=str(health),
            SMW_AUDIT_FILE=str(folder / "audit.jsonl"),
        )
        return Supervised(process=process, folder=folder, proxy=proxy, health=health)

    def token(self, name: str = "agent") -> str:
        return create(f"{NAMESPACE}/{name}", state=self.state, lifetime="10m")

    def write(self, name: str, content: str) -> None:
        (self.config / name).write_text(content)

    def until(self, what: str, is_so: Callable[[], bool], *, seconds: float = 40.0) -> None:
        running = tuple(p for p in self._processes if p.running is not None and p.running.returncode is None)
        wait_until(what, is_so, processes=running, seconds=seconds)

    # ------------------------------------------------------------------------------------------------ what is so

    def status(self, kind: str = "SandboxPolicy", name: str = "outbound") -> Mapping[str, Any]:
        summary = self.summary()
        return next((o["status"] for o in summary["objects"] if (o["kind"], o["name"]) == (kind, name)), {})

    def summary(self) -> Mapping[str, Any]:
        try:
            summary: Mapping[str, Any] = json.loads((self.state / "status.json").read_text())
        except FileNotFoundError:
            return {"objects": [], "problems": []}
        return summary

    def condition(self, kind: str) -> str:
        return next((c["status"] for c in self.status().get("conditions", ()) if c["type"] == kind), "")

    def is_programmed(self, active: str = "1/1") -> bool:
        status = self.status()
        return self.condition("Programmed") == "True" and status["supervisors"]["summary"] == active

    def accepted(self) -> tuple[int, str]:
        accepted = self.status()["accepted"]
        return accepted["revision"], accepted["digest"]

    def run(self, *supervisors: Supervised) -> None:
        """Start everything, and wait until all supervisors serve the policy."""
        for process in (self.control, self.service, *(s.process for s in supervisors)):
            process.start()
        self.until("the policy is served", lambda: self.is_programmed(f"{len(supervisors)}/{len(supervisors)}"))


@contextmanager
def a_rig(folder: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        upstream = stack.enter_context(echo_upstream())
        yield Rig(folder, stack, upstream=upstream)


def probe(port: int, path: str) -> tuple[int, str]:
    """What a health port says; 0 where nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except ConnectionError:
        return 0, ""
    finally:
        connection.close()


def metrics(port: int) -> dict[str, float]:
    """Samples by name and labels, as they are written."""
    _, text = probe(port, "/metrics")
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("supervisor_middleware_"): float(value) for name, _, value in samples}


def pid_of(process: Process) -> int:
    assert process.running is not None
    return process.running.pid


def children(pid: int) -> set[int]:
    """Everything that descends from a process."""
    parents = {int(e.name): _parent(int(e.name)) for e in Path("/proc").iterdir() if e.name.isdecimal()}
    found, frontier = set[int](), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found |= frontier
    return found


def is_running(pid: int) -> bool:
    return _state(pid) not in {"", "Z", "X"}


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
