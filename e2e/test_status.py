"""Statuses on a real API server: what `kubectl wait` waits for, how often they are written, what is told and audited."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import Installation, a_pod
from e2e.objects import a_policy, a_registration, an_entry
from e2e.services import Host, Scripted, a_manifest
from supervisor_middleware.cli.processes import echo_upstream
from supervisor_middleware.model.canonical import short
from tests.audit.schema import problems

PATIENT = 90.0
POLICY_CONDITIONS = ("Accepted", "ResolvedRefs", "Programmed", "Ready", "Reconciling=False", "Stalled=False")
REGISTRATION_CONDITIONS = ("Reachable", "Accepted", "Ready", "Reconciling=False", "Stalled=False", "Drifted=False")


def wait_for(installation: Installation, condition: str, target: str, *where: str) -> None:
    """`kubectl wait`, as people type it."""
    installation.plane.kubectl("wait", f"--for=condition={condition}", target, *where, "--timeout=90s")


def audited(installation: Installation, subject: str) -> list[tuple[str, str]]:
    """Changes of one object in the audit trail, each with its reason; every line is valid OCSF."""
    lines = (installation.directory / "operator-audit.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [p for record in records for p in problems(record)] == []
    found = [r["unmapped"] for r in records if r["unmapped"]["subject"] == subject]
    return [(f["change"], f.get("reason", "")) for f in found]


def message(found: dict[str, Any], condition: str) -> str:
    return next(str(c["message"]) for c in found["status"]["conditions"] if c["type"] == condition)


@contextmanager
def watched(plane: ControlPlane, namespace: str, log: Path) -> Iterator[Path]:
    """Every state of the policies that the API server sends, one JSON object after the other."""
    command = [str(plane.binaries.kubectl), "get", "sbp", "-n", namespace, "--watch", "-o", "json"]
    surroundings = {"KUBECONFIG": str(plane.kubeconfig), "KUBECACHEDIR": str(plane.directory / "watch-cache")}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL, env=surroundings)
        try:
            yield log
        finally:
            process.terminate()
            process.wait()


def states(log: Path) -> list[dict[str, Any]]:
    decoder, text, found = json.JSONDecoder(), log.read_text().lstrip(), []
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError:
            break  # still being written
        found.append(value)
        text = text[end:].lstrip()
    return found


def test_kubectl_waits_for_each_condition(installation: Installation, services: Host, namespace: str) -> None:
    service = services.serve(Scripted(a_manifest("status/waits")))
    installation.apply(a_registration(namespace, endpoint=service.endpoint))
    for condition in (*REGISTRATION_CONDITIONS, "InsecureTransport"):
        wait_for(installation, condition, f"smw/{namespace}")
    installation.apply(a_policy("waited", namespace=namespace, one=an_entry("status/waits")))
    for condition in POLICY_CONDITIONS:
        wait_for(installation, condition, "sbp/waited", "-n", namespace)
    # A policy that comes before its Pods has nothing to wait for.
    found = installation.condition("sbp", "waited", "Programmed", namespace=namespace)
    assert found == "True/NoSandboxes"
    assert installation.get("sbp", "waited", namespace=namespace)["status"]["supervisors"]["summary"] == "0/0"


def test_what_cannot_come_right_by_itself_is_stalled_and_what_can_is_not(
    installation: Installation, services: Host, namespace: str
) -> None:
    installation.apply(a_registration(f"{namespace}-away", endpoint="http://127.0.0.1:1"))
    wait_for(installation, "Reachable=False", f"smw/{namespace}-away")
    wait_for(installation, "Reconciling", f"smw/{namespace}-away")
    assert installation.condition("smw", f"{namespace}-away", "Stalled") == "False/Unreachable"
    small = services.serve(Scripted(a_manifest("status/small", max_body_bytes=1024)))
    installation.apply(a_registration(f"{namespace}-small", endpoint=small.endpoint))
    wait_for(installation, "Stalled", f"smw/{namespace}-small")
    wait_for(installation, "Accepted=False", f"smw/{namespace}-small")
    assert installation.condition("smw", f"{namespace}-small", "Reachable") == "True/Reachable"
    rejected = [("registration_rejected", "Invalid")]
    installation.wait(
        "it is audited",
        lambda: audited(installation, f"SupervisorMiddleware {namespace}-small") == rejected,
        seconds=PATIENT,
    )
    installation.plane.kubectl("delete", "smw", f"{namespace}-away", f"{namespace}-small")


def test_an_object_nobody_has_looked_at_says_so(control_plane: ControlPlane, namespace: str) -> None:
    policy = json.dumps(a_policy("early", namespace=namespace))
    made = json.loads(
        control_plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=policy).stdout
    )
    assert made["status"]["observedGeneration"] == -1
    registration = json.dumps(a_registration(namespace))
    made = json.loads(
        control_plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=registration).stdout
    )
    assert made["status"]["observedGeneration"] == -1


def test_from_apply_to_programmed_a_status_is_written_twice(
    installation: Installation, services: Host, namespace: str, tmp_path: Path
) -> None:
    service = services.serve(Scripted(a_manifest("status/twice")))
    installation.apply(
        a_registration(namespace, endpoint=service.endpoint), a_pod("agent", namespace=namespace, sandbox="agent")
    )
    wait_for(installation, "Ready", f"smw/{namespace}")
    with echo_upstream() as upstream:
        installation.supervisor(namespace=namespace, sandbox="agent", pod="agent", upstream=upstream)
        installation.apply(a_policy("before", namespace=namespace, before=an_entry(order=9)))
        wait_for(installation, "Programmed", "sbp/before", "-n", namespace)
        with watched(installation.plane, namespace, tmp_path / "watch.json") as log:
            for order in range(2):
                entries = {"one": an_entry("status/twice", order=order)}
                installation.apply(a_policy("twice", namespace=namespace, **entries))
                installation.await_condition(
                    "sbp", "twice", "Programmed=True/Programmed", namespace=namespace, seconds=PATIENT
                )
            version = installation.get("sbp", "twice", namespace=namespace)["metadata"]["resourceVersion"]
            installation.wait(
                "all is heard",
                lambda: any(s["metadata"]["resourceVersion"] == version for s in states(log)),
                seconds=PATIENT,
            )
            seen = [s for s in states(log) if s["metadata"]["name"] == "twice"]
    for generation in (1, 2):
        # The edit itself changes the object, not its status.
        written = {json.dumps(s["status"]) for s in seen if s["status"].get("observedGeneration") == generation}
        assert 1 <= len(written) <= 2, written
    assert audited(installation, f"SandboxPolicy {namespace}/twice") == [("policy_accepted", "Accepted")] * 2
    assert ("generation_published", "") in audited(installation, f"Sandbox {namespace}/agent")
    assert ("credentials_issued", "") in audited(installation, f"Sandbox {namespace}/agent")


def test_pods_without_a_supervisor_are_named(installation: Installation, namespace: str) -> None:
    names = [f"agent-{n}" for n in range(7)]
    installation.apply(
        a_policy("named", namespace=namespace), *(a_pod(n, namespace=namespace, sandbox=n) for n in names)
    )

    def says_it() -> bool:
        found = installation.get("sbp", "named", namespace=namespace)
        shown = ", ".join(f"{namespace}/{n}" for n in names[:5])
        return "conditions" in found["status"] and f"not connected: {shown} and 2 more" in message(
            found, "Programmed"
        )

    installation.wait("they are named", says_it, seconds=PATIENT)
    # They keep no roll-out tool waiting.
    wait_for(installation, "Ready", "sbp/named", "-n", namespace)
    wait_for(installation, "Reconciling=False", "sbp/named", "-n", namespace)


def test_a_service_that_is_redeployed_smaller_degrades_its_users_at_once(
    installation: Installation, services: Host, namespace: str
) -> None:
    service = services.serve(Scripted(a_manifest("status/kept", "status/shrinks")))
    installation.apply(a_registration(namespace, endpoint=service.endpoint))
    wait_for(installation, "Ready", f"smw/{namespace}")
    installation.apply(
        a_policy("user", namespace=namespace, one=an_entry("status/shrinks")),
        a_policy("sibling", namespace=namespace, two=an_entry("status/kept", order=1)),
    )
    for name in ("user", "sibling"):
        wait_for(installation, "Ready", f"sbp/{name}", "-n", namespace)
    before = installation.get("smw", namespace)["status"]["manifest"]["digest"]
    accepted = installation.get("sbp", "user", namespace=namespace)["status"]["accepted"]
    service.manifest = a_manifest("status/kept")
    service.described = 0
    services.restart(service)
    wait_for(installation, "Drifted", f"smw/{namespace}")
    wait_for(installation, "Degraded", "sbp/user", "-n", namespace)
    drifted = message(installation.get("smw", namespace), "Drifted")
    assert "binding status/shrinks is gone" in drifted
    assert short(before) in drifted
    found = installation.get("sbp", "user", namespace=namespace)
    assert found["status"]["accepted"] == accepted
    assert "one" in message(found, "Degraded")
    assert installation.condition("sbp", "user", "Ready", namespace=namespace) == "True/Ready"
    assert installation.condition("sbp", "sibling", "Degraded", namespace=namespace) == ""
    changes = [
        ("registration_accepted", "Accepted"),
        ("registration_insecure", "InsecureTransport"),
        ("registration_rejected", "Invalid"),
        ("registration_drifted", "Drifted"),
    ]
    subject = f"SupervisorMiddleware {namespace}"
    installation.wait("it is audited", lambda: audited(installation, subject) == changes, seconds=PATIENT)


def test_nothing_that_anybody_typed_or_a_service_said_is_told(
    installation: Installation, services: Host, namespace: str
) -> None:
    canary = "canary-5f1e"
    service = services.serve(Scripted(a_manifest("status/secret")))
    installation.apply(a_registration(namespace, endpoint=service.endpoint))
    wait_for(installation, "Ready", f"smw/{namespace}")
    good = a_policy("secret", namespace=namespace, one=an_entry("status/secret", config={"key": canary}))
    installation.apply(good)
    wait_for(installation, "Ready", "sbp/secret", "-n", namespace)
    wrong = an_entry("status/secret", config={"wrong": canary})
    refusal = installation.refusal(a_policy("secret", namespace=namespace, one=wrong))
    assert canary not in refusal
    status = json.dumps(installation.get("sbp", "secret", namespace=namespace)["status"])
    events = installation.plane.kubectl("get", "events", "-A", "-o", "json").stdout
    metrics = json.dumps(installation.metrics())
    logs = "".join(path.read_text() for path in installation.directory.glob("operator*.*"))
    for told in (status, events, metrics, logs):
        assert canary not in told
