"""RFC 0009 "Audit and logging": what requests, configs and services say reaches no log, event, status or metric.

Words that stand nowhere else go in at every end; then everything that comes out is searched for them. What stores
configs on purpose (revisions, the folder's memory, last-known-good) is not searched: it is the store.
"""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.rig import NAMESPACE, REGISTRATION, Rig, Supervised, a_rig, metrics, probe
from tests.cli.commands import Outcome, in_a_process

ROOT = Path(__file__).parents[2]
CANARY = "canary"
POLICY = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {{name: outbound, namespace: team-a}}
spec:
  sandboxSelector: {{}}
  networkMiddlewares:
    allows: {{middleware: acme/talk, order: 1, config: {{mode: allow, a: canary-config}}, endpoints: {{include: [allow.example.com]}}}}
    denies: {{middleware: acme/talk, order: 2, config: {{mode: deny, a: canary-config}}, endpoints: {{include: [deny.example.com]}}}}
    raises: {{middleware: acme/talk, order: 3, config: {{mode: raise, a: canary-config}}, endpoints: {{include: [raise.example.com]}}}}
    passes: {{middleware: acme/talk, order: 4, onError: FailOpen, config: {{mode: raise, a: canary-config}}, endpoints: {{include: [pass.example.com]}}}}
    keys: {{middleware: openshell/regex, order: 5, endpoints: {{include: ["**.example.com"]}}}}
    {extra}
"""
REFUSED = (
    "extra: {middleware: acme/talk, order: 6, config: {mode: canary-bad-config}, endpoints: {include: [x.test]}}"
)
WRONG = "extra: {middleware: acme/talk, order: canary-order, onError: canary-on-error, endpoints: {include: ['canary host']}}"
OURS = "apiVersion: middleware.openshell.io/v1alpha1\nkind: Sandbox\nmetadata: {name: x}\n"
BROKEN = (
    f'a: "{CANARY} \\q"',
    f"a: {CANARY}\n\tb: c",
    f"a: *{CANARY}",
    f"{CANARY}: [",
    f"a: !!binary {CANARY}-",
    f"{OURS}  labels: {CANARY}",
    f"{OURS.replace('Sandbox', CANARY)}",
    f"a: {CANARY} \x00",
    f"a: 1{CANARY}: 2: 3",
)
SECRET = f"{CANARY} sk-{CANARY}0123456789abcdef"
HOSTS = ("allow", "deny", "raise", "pass")


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[tuple[Rig, Supervised]]:
    """A rig whose service says what it should not, with one supervisor that serves the policy."""
    with a_rig(tmp_path / "rig") as rig:
        rig.service.module = "tests.apps.canary_service"
        rig.service.arguments = (f"127.0.0.1:{rig.service_port}",)
        rig.service.environment = {"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"}
        rig.write("policy.yaml", POLICY.format(extra=""))
        agent = rig.supervisor()
        rig.run(agent)
        yield rig, agent


def send(agent: Supervised, host: str, *, body: str = SECRET) -> tuple[int, str]:
    """A request that holds a canary wherever one fits; what came back of it."""
    connection = http.client.HTTPConnection("127.0.0.1", agent.proxy, timeout=20)
    headers = {
        "host": host,
        "authorization": f"Bearer {SECRET}",
        "cookie": f"session={SECRET}",
        "x-api-key": SECRET,
        "x-openshell-middleware-forged": SECRET,
        "content-type": f"text/plain; x={CANARY}",
    }
    try:
        connection.request("POST", f"http://{host}/notes?q={CANARY}-query", body=body, headers=headers)
        response = connection.getresponse()
        answered = "".join(f"{k}: {v}\n" for k, v in response.getheaders())
        return response.status, answered + response.read().decode()
    finally:
        connection.close()


def send_raw(agent: Supervised, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", agent.proxy), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def said(rig: Rig, agent: Supervised) -> Iterator[tuple[str, str]]:
    """Everything that comes out, by where."""
    for process in (rig.control, rig.service, agent.process):
        yield f"log of {process.name}", process.log.read_text()
    yield "audit of the control plane", (rig.state / "audit.jsonl").read_text()
    yield "audit of the supervisor", (agent.folder / "audit.jsonl").read_text()
    for path in (rig.state / "status.json", *(rig.state / "status").iterdir()):
        yield f"status {path.name}", path.read_text()
    for name, port in (("control plane", rig.health), ("supervisor", agent.health)):
        for page in ("/metrics", "/readyz", "/healthz"):
            yield f"{page} of the {name}", probe(port, page)[1]
    for form in ("table", "json", "yaml"):
        yield f"smw status -o {form}", in_a_process("status", "--state", rig.state, "-o", form).out


def leaks(rig: Rig, agent: Supervised) -> list[tuple[str, str]]:
    return [(where, line) for where, text in said(rig, agent) for line in text.splitlines() if CANARY in line.lower()]


def live(rig: Rig) -> Outcome:
    return in_a_process("validate", rig.config, "--live", "--allow-loopback")


def test_nothing_of_requests_configs_or_services_words_comes_out(talking: tuple[Rig, Supervised]) -> None:
    rig, agent = talking
    answers = {name: send(agent, f"{name}.example.com") for name in HOSTS}
    assert {name: status for name, (status, _) in answers.items()} == {
        "allow": 200,
        "deny": 403,
        "raise": 403,
        "pass": 200,
    }
    denied = [answers["deny"][1], answers["raise"][1], send(agent, "allow.example.com", body=SECRET * 5000)[1]]
    denied.append(send_raw(agent, f"POST /{CANARY} HTTP/1.1\r\n{CANARY} {CANARY}\r\n\r\n{CANARY}".encode()).decode())
    denied.append(
        send_raw(agent, f"CONNECT {CANARY}.test:443 HTTP/1.1\r\nhost: {CANARY}.test:443\r\n\r\n".encode()).decode()
    )
    assert [text for text in denied if CANARY in text.lower()] == []

    rig.write("policy.yaml", POLICY.format(extra=REFUSED))
    rig.until("the service refuses a config", lambda: rig.condition("Accepted") == "False")
    assert "canary-validate-reason" in live(rig).out  # it is for whoever submits it, and did say so
    rig.write("policy.yaml", POLICY.format(extra=WRONG))
    rig.until("values are refused", lambda: any("onError" in v["path"] for v in rig.status()["violations"]))
    for number, broken in enumerate(BROKEN):
        rig.write(f"broken-{number}.yaml", broken)
    rig.until("all broken files are seen", lambda: len(rig.summary()["problems"]) == len(BROKEN))

    rig.service.kill()
    assert send(agent, "deny.example.com")[0] == 403
    assert send(agent, "pass.example.com")[0] == 200
    assert metrics(agent.health)['stage_duration_seconds_count{outcome="failed"}'] >= 2
    events = [e for e in agent.audit if e["class_uid"] == 2004]
    assert len(events) >= 4
    rig.write("registration.yaml", REGISTRATION.format(port=rig.service_port).replace("1s", CANARY))
    rig.until("the registration is refused", lambda: bool(rig.status("SupervisorMiddleware", "terms")["violations"]))
    assert leaks(rig, agent) == []
    assert NAMESPACE in json.dumps(rig.summary())
    for supervisor_or_control in (agent.process, rig.control):
        supervisor_or_control.stop()
    assert [
        line for p in (agent.process, rig.control) for line in p.log.read_text().splitlines() if CANARY in line
    ] == []
