"""`smw demo`: the whole loop on this machine, embedded, with real processes, real TLS and real Envoy.

It copies the quickstart, runs a control plane, a service and a supervisor over it, sends requests as an agent would,
and then breaks things: what was expected stands beside what happened.
"""

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import yaml

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.cli.processes import Process, echo_upstream, free_port, post, wait_until
from supervisor_middleware.cli.status.objects import read_state
from supervisor_middleware.cli.timeline import Timeline
from supervisor_middleware.cli.tokens import create
from supervisor_middleware.errors import SupervisorMiddlewareError
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credential_files import write_credentials

_KEY: Final = "sk-0123456789abcdefghij"
_POLICY: Final = ("SandboxPolicy", "quickstart", "outbound")


def run(*, keep: bool) -> int:
    """Tell the story; 0 if every step went as expected. On SIGTERM too nothing is left running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    timeline = Timeline("demo")
    folder = Path(tempfile.mkdtemp(prefix="smw-demo-"))
    try:
        with ExitStack() as stack, echo_upstream() as upstream:
            story = _Story(folder, timeline, upstream=upstream, stack=stack)
            try:
                story.tell()
            except SupervisorMiddlewareError as error:
                timeline.step("the story goes on", expected="yes", happened=str(error))
    finally:
        if keep:
            timeline.note(f"logs and state are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return timeline.finish()


class _Story:
    def __init__(self, folder: Path, timeline: Timeline, *, upstream: int, stack: ExitStack) -> None:
        self._folder, self._timeline, self._stack = folder, timeline, stack
        self._upstream = upstream
        self._config, self._state = folder / "config", folder / "state"
        self._audit = folder / "audit.jsonl"
        self._service_port, self._proxy_port = free_port(), free_port()
        ports = {"enrollment": free_port(), "discovery": free_port()}
        environment = {f"SMW_{name.upper()}_PORT": str(port) for name, port in ports.items()}
        self._control = self._process(
            "control plane",
            ("standalone", str(self._config), "--state", str(self._state)),
            environment | {"SMW_HEALTH_PORT": str(free_port())},
        )
        self._service = self._process(
            "service",
            (
                *("serve", "terms", "--address", f"127.0.0.1:{self._service_port}"),
                *("--tls", str(folder / "service-tls"), "--client-ca", str(self._state / "ca.crt")),
            ),
        )
        self._supervisor = self._process(
            "supervisor",
            (
                *("supervisor", "--namespace", "quickstart", "--sandbox", "agent", "--operator", "127.0.0.1"),
                *("--trust-bundle", str(self._state / "ca.crt"), "--token-file", str(folder / "token")),
                *("--state", str(folder / "supervisor"), "--listen", f"127.0.0.1:{self._proxy_port}"),
                *("--upstream", f"127.0.0.1:{upstream}"),
            ),
            environment | {"SMW_HEALTH_PORT": str(free_port()), "SMW_AUDIT_FILE": str(self._audit)},
        )

    def tell(self) -> None:
        """Chapter by chapter."""
        self._bring_up()
        self._serve()
        self._break_policy()
        self._mend_policy()
        self._lose_service()
        self._lose_control_plane()

    # ------------------------------------------------------------------------------------------------- chapters

    def _bring_up(self) -> None:
        self._timeline.chapter("Bring up a control plane over a folder, a service, and a supervisor with Envoy")
        self._write_quickstart()
        self._control.start()
        self._wait("the control plane publishes its trust bundle", (self._state / "ca.crt").exists)
        self._service.start()
        self._supervisor.start()
        self._wait("Envoy listens", self._is_listening)
        self._send(
            "before the supervisor has any generation", "api.example.com", "hello", "503, supervisor_not_configured"
        )
        (self._folder / "token").write_text(create("quickstart/agent", state=self._state, lifetime="10m"))
        self._wait("the supervisor serves the policy", lambda: self._condition("Programmed") == "True")
        self._timeline.step(
            "the service is described, the policy compiled, the supervisor enrolled",
            expected="Ready, Programmed, 1/1 active",
            happened=self._summary(),
        )

    def _serve(self) -> None:
        self._timeline.chapter("Real requests go through the chain")
        self._send("a host no policy selects", "example.org", f"{_KEY}: Project Heron", "200, untouched")
        self._send(
            "a key and a code name", "api.example.com", f"{_KEY}: Project Heron", "200, [REDACTED]: [REDACTED]"
        )
        self._send("what is confidential", "api.example.com", "CONFIDENTIAL plans", "403, middleware_denied")

    def _break_policy(self) -> None:
        self._timeline.chapter("The policy file is broken: every problem is shown, last-known-good serves on")
        before = self._accepted()
        policy = self._quickstart("20-policy.yaml")
        entries = policy["spec"]["networkMiddlewares"]
        entries["api-keys"]["config"] = {"mode": "reveal"}
        entries["codenames"]["middleware"] = "acme/term"
        entries["confidential"]["order"] = entries["codenames"]["order"]
        entries["telemetry"]["onEror"] = entries["telemetry"].pop("onError")
        self._write(policy)
        self._wait("the broken policy is seen", lambda: self._condition("Accepted") == "False")
        violations = self._status(*_POLICY).get("violations", ())
        self._timeline.step(
            "four mistakes in one edit (one shows on both entries it concerns)",
            expected="Accepted=False, 5 violations, revision kept",
            happened=f"Accepted=False, {len(violations)} violations, "
            + ("revision kept" if self._accepted() == before else "another revision"),
            details=tuple(f"{v['path']}: {v['message']}" for v in violations),
        )
        (self._config / "20-policy.yaml").write_text("spec:\n  sandboxSelector: {\n")
        self._wait("the unreadable file is seen", lambda: bool(self._file_problems()))
        self._timeline.step(
            "then it is no YAML at all",
            expected="1 problem in 20-policy.yaml, revision kept",
            happened=f"{len(self._file_problems())} problem in 20-policy.yaml, "
            + ("revision kept" if self._accepted() == before else "another revision"),
            details=self._file_problems(),
        )
        self._send("still redacted", "api.example.com", f"{_KEY}: Project Heron", "200, [REDACTED]: [REDACTED]")

    def _mend_policy(self) -> None:
        self._timeline.chapter("The policy is mended, with one term more: the new generation becomes active")
        policy = self._quickstart("20-policy.yaml")
        policy["spec"]["networkMiddlewares"]["codenames"]["config"]["terms"].append("Project Osprey")
        self._write(policy)
        self._wait("the new generation is served", self._is_second_revision_served)
        self._timeline.step("the new revision", expected="revision 2, 1/1 active", happened=self._revision())
        self._send("the new term", "api.example.com", "Project Osprey", "200, [REDACTED]")

    def _lose_service(self) -> None:
        self._timeline.chapter("The service dies (SIGKILL): each entry follows its onError")
        self._service.kill()
        self._send("FailClosed", "api.example.com", "hello", "403, middleware_failed")
        self._send("FailOpen", "telemetry.example.com", "hello", "200, untouched")
        self._timeline.step("the bypass is an audit event", expected="audited", happened=self._bypass_audited())

    def _lose_control_plane(self) -> None:
        self._timeline.chapter("The control plane dies (SIGKILL): the data plane serves on")
        self._control.kill()
        self._send("redacted by the built-in", "www.example.com", f"{_KEY}.", "200, [REDACTED].")

    # -------------------------------------------------------------------------------------------------- helpers

    def _process(
        self, name: str, arguments: tuple[str, ...], environment: Mapping[str, str] | None = None
    ) -> Process:
        process = Process(
            name=name,
            arguments=arguments,
            log=self._folder / f"{name.replace(' ', '-')}.log",
            environment=environment or {},
        )
        self._stack.callback(process.stop)
        return process

    def _write_quickstart(self) -> None:
        authority = Authority.create(trust_domain="services.example.internal", now=utc_now())
        credentials = authority.issue_server(
            dns_names=("localhost",),
            ip_addresses=(ip_address("127.0.0.1"),),
            now=utc_now(),
            lifetime=timedelta(days=1),
        )
        write_credentials(self._folder / "service-tls", credentials)
        self._config.mkdir()
        for name in ("20-policy.yaml", "30-sandbox.yaml"):
            shutil.copy(_examples() / name, self._config / name)
        documents = list(yaml.safe_load_all((_examples() / "10-registration.yaml").read_text()))
        documents[0]["spec"]["grpcEndpoint"] = f"https://127.0.0.1:{self._service_port}"
        documents[1]["data"]["ca.crt"] = authority.certificate_pem.decode()
        (self._config / "10-registration.yaml").write_text(yaml.safe_dump_all(documents))

    def _quickstart(self, name: str) -> dict[str, Any]:
        policy: dict[str, Any] = yaml.safe_load((_examples() / name).read_text())
        return policy

    def _write(self, policy: Mapping[str, Any]) -> None:
        (self._config / "20-policy.yaml").write_text(yaml.safe_dump(dict(policy)))

    def _send(self, what: str, host: str, body: str, expected: str) -> None:
        answer = post(self._proxy_port, host, body)
        self._timeline.step(f"POST {host}: {what}", expected=expected, happened=answer.shown(sent=body))

    def _wait(self, what: str, is_so: Any) -> None:
        self._timeline.note(f"waiting: {what}")
        running = (p for p in (self._control, self._service, self._supervisor) if p.running is not None)
        wait_until(what, is_so, processes=tuple(running))

    def _is_listening(self) -> bool:
        try:
            return post(self._proxy_port, "example.org", "").status > 0
        except OSError:
            return False

    def _status(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        return next(
            (o.status for o in read_state(self._state) if (o.kind, o.namespace, o.name) == (kind, namespace, name)),
            {},
        )

    def _file_problems(self) -> tuple[str, ...]:
        files = (o for o in read_state(self._state) if o.kind == "File" and o.name.endswith("20-policy.yaml"))
        return tuple(v["message"] for f in files for v in f.status["violations"])

    def _condition(self, kind: str) -> str:
        conditions = self._status(*_POLICY).get("conditions", ())
        return next((c["status"] for c in conditions if c["type"] == kind), "")

    def _summary(self) -> str:
        ready = "Ready" if self._condition("Ready") == "True" else "not Ready"
        programmed = "Programmed" if self._condition("Programmed") == "True" else "not Programmed"
        return f"{ready}, {programmed}, {self._status(*_POLICY)['supervisors']['summary']} active"

    def _accepted(self) -> Mapping[str, Any]:
        accepted: Mapping[str, Any] = self._status(*_POLICY)["accepted"]
        return {k: accepted[k] for k in ("revision", "digest")}

    def _is_second_revision_served(self) -> bool:
        return self._accepted()["revision"] == 2 and self._condition("Programmed") == "True"

    def _revision(self) -> str:
        status = self._status(*_POLICY)
        return f"revision {status['accepted']['revision']}, {status['supervisors']['summary']} active"

    def _bypass_audited(self) -> str:
        events = [json.loads(line) for line in self._audit.read_text().splitlines()]
        findings = [e for e in events if e["class_uid"] == 2004 and "telemetry" in json.dumps(e)]
        return "audited" if findings else "no audit event"


def _examples() -> Path:
    """The quickstart: beside the package in a checkout, inside it when installed."""
    inside = Path(str(resources.files("supervisor_middleware"))) / "examples" / "quickstart"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "examples" / "quickstart"
