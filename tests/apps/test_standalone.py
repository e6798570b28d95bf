"""The whole loop without a cluster: what is taken away, broken or lost, and what is served all the while."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor_middleware.cli.processes import Process, free_port, wait_until
from supervisor_middleware.supervisor.record import Record, decode
from tests.apps.rig import (
    KEY,
    NAMESPACE,
    POLICY,
    SANDBOX,
    SECRET,
    Rig,
    Supervised,
    children,
    is_running,
    metrics,
    pid_of,
    probe,
)

TEXT = f"{KEY}: {SECRET}"
REDACTED = (200, "[REDACTED]: [REDACTED]")


def answer(supervisor: Supervised, host: str, body: str = TEXT) -> tuple[int, str]:
    got = supervisor.send(host, body)
    return got.status, got.error or got.body


def ended(process: Process) -> int:
    assert process.running is not None
    return process.running.wait(30)


def last_line(process: Process) -> str:
    return process.log.read_text().splitlines()[-1]


# ---------------------------------------------------------------------------------------------------------- the demo


def test_the_demo_goes_as_expected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor_middleware.cli", "demo"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    closing = done.stdout.splitlines()[-1]
    steps = done.stdout.count("✓")
    assert steps > 10
    assert closing == f"demo: {steps} of {steps} steps as expected"
    assert "\x1b" not in done.stdout


def test_a_demo_that_is_told_to_stop_leaves_nothing_running(tmp_path: Path) -> None:
    demo = Process(name="demo", arguments=("demo",), log=tmp_path / "log", environment={"TMPDIR": str(tmp_path)})
    demo.start()
    started: set[int] = set()

    def are_all_up() -> bool:
        started.update(children(pid_of(demo)))
        return any("envoy" in _command(pid) for pid in started)

    try:
        wait_until("Envoy runs", are_all_up, processes=(demo,))
        demo.running.terminate()  # type: ignore[union-attr]
        assert ended(demo) == 128 + signal.SIGTERM
    finally:
        demo.stop()
    wait_until("all have ended", lambda: not any(map(is_running, started)), processes=())
    assert list(tmp_path.glob("smw-*")) == []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------- what is taken away


def test_a_control_plane_that_was_killed_comes_back_to_the_same_decisions(rig: Rig) -> None:
    agent = rig.supervisor()
    rig.run(agent)
    accepted, rank = rig.accepted(), _generation(agent)
    rig.control.kill()
    rig.service.kill()
    rig.write("policy.yaml", "spec: [")
    status = rig.state / "status.json"
    status.unlink()
    rig.control.start()
    rig.until("it decides again", lambda: bool(rig.summary()["problems"]) and bool(rig.status()))
    rig.until("the supervisor is back", lambda: rig.status()["supervisors"]["summary"] == "1/1")
    assert rig.accepted() == accepted
    assert _generation(agent) == rank
    assert answer(agent, "www.example.com") == (200, f"[REDACTED]: {SECRET}")
    assert answer(agent, "api.example.com") == (403, "middleware_failed")
    assert answer(agent, "telemetry.example.com") == (200, f"[REDACTED]: {SECRET}")
    (problem,) = rig.summary()["problems"]
    assert problem["subject"].endswith("policy.yaml")


def _generation(supervisor: Supervised) -> str:
    """The digest of what a supervisor keeps on disk. Its rank may grow; what it serves must not change."""
    content = (supervisor.folder / "state" / "generation" / "last-known-good").read_bytes()
    record = decode(content, owner=f"spiffe://openshell.internal/ns/{NAMESPACE}/sandbox/agent")
    assert isinstance(record, Record)
    assert record.sealed is not None
    return record.sealed.digest


def test_a_killed_supervisor_takes_envoy_along_and_comes_back_alone(rig: Rig) -> None:
    agent = rig.supervisor()
    rig.run(agent)
    below = children(pid_of(agent.process))
    assert any("envoy" in _command(pid) for pid in below)
    agent.process.kill()
    rig.until("Envoy is gone too", lambda: not any(map(is_running, below)))
    rig.control.kill()
    agent.process.start()
    rig.until("it serves what it kept", lambda: probe(agent.health, "/readyz")[0] == 200)
    rig.until("its proxy listens", lambda: _is_listening(agent.proxy))
    assert answer(agent, "api.example.com") == REDACTED
    assert metrics(agent.health)["connected"] == 0


def _is_listening(port: int) -> bool:
    with socket.socket() as probing:
        return probing.connect_ex(("127.0.0.1", port)) == 0


def test_a_folder_that_is_deleted_takes_nothing_with_it(rig: Rig) -> None:
    agent = rig.supervisor()
    rig.run(agent)
    accepted = rig.accepted()
    shutil.move(rig.config, rig.folder / "away")
    rig.until("it is noticed", lambda: "holding everything as it is" in rig.control.log.read_text())
    assert answer(agent, "api.example.com") == REDACTED
    assert rig.accepted() == accepted
    shutil.move(rig.folder / "away", rig.config)
    changed = POLICY.replace("Project Heron", "Project Osprey")
    rig.write("policy.yaml", changed)
    rig.until("it is read again", lambda: rig.accepted()[0] == 2 and rig.is_programmed())
    assert answer(agent, "api.example.com", "Project Osprey") == (200, "[REDACTED]")


def test_a_policy_that_outgrows_its_file_stays_as_it_was(rig: Rig) -> None:
    agent = rig.supervisor()
    rig.run(agent)
    accepted = rig.accepted()
    rig.write("policy.yaml", POLICY + "  padding: " + "x" * (2 * 1024 * 1024))
    rig.until("it is refused", lambda: bool(rig.summary()["problems"]) or bool(rig.status()["violations"]))
    (problem,) = rig.summary()["problems"] or rig.status()["violations"]
    assert problem["reason"] == "TooLarge"
    assert rig.accepted() == accepted
    assert answer(agent, "api.example.com") == REDACTED


# ------------------------------------------------------------------------------------------------------- health


def test_a_supervisor_says_how_it_stands(rig: Rig) -> None:
    agent = rig.supervisor(token="")
    rig.control.start()
    rig.service.start()
    agent.process.start()
    rig.until("its health port answers", lambda: probe(agent.health, "/healthz")[0] == 200)
    rig.until("its proxy listens", lambda: _is_listening(agent.proxy))
    assert probe(agent.health, "/readyz") == (503, "never configured: no known-good generation is served\n")
    assert answer(agent, "api.example.com") == (503, "supervisor_not_configured")
    before = metrics(agent.health)
    assert [before[n] for n in ("configured", "connected", "waiting", "saved")] == [0, 0, 0, 1]
    (agent.folder / "token").write_text(rig.token())
    rig.until("the policy is served", rig.is_programmed)
    assert probe(agent.health, "/readyz") == (200, "ok\n")
    assert answer(agent, "api.example.com") == REDACTED
    rig.service.kill()
    assert answer(agent, "telemetry.example.com") == (200, f"[REDACTED]: {SECRET}")
    after = metrics(agent.health)
    assert [after[n] for n in ("configured", "connected", "waiting", "saved")] == [1, 1, 0, 1]
    assert after['stage_duration_seconds_count{outcome="allow"}'] >= 3
    assert after['stage_duration_seconds_count{outcome="bypassed"}'] == 1
    assert [v for n, v in after.items() if n.startswith("bypass_total{") and v] == [1]


# -------------------------------------------------------------------------------------------------------- who may what


def test_a_join_token_is_for_one_supervisor_and_once(rig: Rig) -> None:
    token = rig.token("agent")
    rig.run(rig.supervisor("agent", token=token))
    rig.write("sandbox-other.yaml", SANDBOX.format(name="other"))
    thief, late = rig.supervisor("thief", token=rig.token("other")), rig.supervisor("late", token=token)
    thief.process.start()
    late.process.start()
    rig.until("another's token is refused", lambda: "give it a token of its own" in thief.process.log.read_text())
    rig.until("a spent token is refused", lambda: "refused the token in" in late.process.log.read_text())
    assert probe(thief.health, "/readyz")[0] == probe(late.health, "/readyz")[0] == 503
    logs = "".join(p.log.read_text() for p in (rig.control, thief.process, late.process))
    assert token not in logs


def test_an_unselected_sandbox_is_refused_where_the_platform_says_so(rig: Rig) -> None:
    (rig.config / "policy.yaml").unlink()
    agent = rig.supervisor()
    rig.control.environment = {**rig.control.environment, "SMW_UNSELECTED": "Deny"}
    rig.control.start()
    agent.process.start()
    rig.until("it is configured", lambda: probe(agent.health, "/readyz")[0] == 200)
    rig.until("its proxy listens", lambda: _is_listening(agent.proxy))
    assert answer(agent, "api.example.com") == (403, "middleware_failed")


# ----------------------------------------------------------------------------------------------------------- the end


def test_everything_ends_well_when_it_is_told_to(rig: Rig) -> None:
    agent = rig.supervisor()
    rig.run(agent)
    processes = (agent.process, rig.control, rig.service)
    below = {pid for p in processes for pid in (pid_of(p), *children(pid_of(p)))}
    assert len(below) > len(processes)
    # The control plane and the service while a stream to them is open, so not one after the other.
    for process in processes:
        process.running.terminate()  # type: ignore[union-attr]
    assert [ended(p) for p in processes] == [0, 0, 0]
    assert [pid for pid in below if is_running(pid)] == []
    for process in processes:
        assert "Traceback" not in process.log.read_text()


# ------------------------------------------------------------------------------------------------- what is in the way


@contextmanager
def a_taken_port() -> Iterator[int]:
    port = free_port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        yield port


@pytest.mark.parametrize("setting", ["SMW_ENROLLMENT_PORT", "SMW_DISCOVERY_PORT", "SMW_HEALTH_PORT"])
def test_a_control_plane_says_which_port_is_taken(rig: Rig, setting: str) -> None:
    with a_taken_port() as port:
        rig.control.environment = {**rig.control.environment, setting: str(port)}
        rig.control.start()
        assert ended(rig.control) == 2
    assert last_line(rig.control).startswith(f"smw: cannot listen on 127.0.0.1:{port}: ")
    assert "Traceback" not in rig.control.log.read_text()


@pytest.mark.parametrize("what", ["proxy", "health"])
def test_a_supervisor_says_which_port_is_taken(rig: Rig, what: str) -> None:
    agent = rig.supervisor()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", getattr(agent, what)))
        holder.listen()
        agent.process.start()
        assert ended(agent.process) == 2
    assert f"127.0.0.1:{getattr(agent, what)}" in last_line(agent.process)
    assert last_line(agent.process).startswith("smw: ")
    assert "Traceback" not in agent.process.log.read_text()


def test_a_service_says_that_its_port_is_taken(rig: Rig) -> None:
    with a_taken_port() as port:
        service = rig.process("second", "serve", "terms", "--address", f"127.0.0.1:{port}")
        service.start()
        assert ended(service) == 2
    assert service.log.read_text() == (
        f"smw: cannot listen on 127.0.0.1:{port}: it is taken, or not an address of this machine\n"
    )


def test_a_state_directory_belongs_to_one_control_plane(rig: Rig) -> None:
    rig.control.start()
    rig.until("the first runs", lambda: probe(rig.health, "/readyz")[0] == 200)
    second = rig.process("second", "standalone", rig.config, "--state", rig.state, SMW_HEALTH_PORT="0")
    second.start()
    assert ended(second) == 2
    assert second.log.read_text() == (
        f"smw: {rig.state}: in use by another standalone, process {pid_of(rig.control)}: stop it, or use another state\n"
    )


def test_a_state_directory_belongs_to_one_supervisor(rig: Rig) -> None:
    agent = rig.supervisor()
    agent.process.start()
    rig.until("the first runs", lambda: probe(agent.health, "/healthz")[0] == 200)
    second = rig.process("second", *agent.process.arguments, SMW_HEALTH_PORT="0")
    second.start()
    assert ended(second) == 2
    assert last_line(second).startswith(f"smw: {agent.folder}/state/generation: in use by another supervisor")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("standalone", "{}/nothing", "--state", "{}/s"), "nothing: no such folder"),
        (("standalone", "{}", "--state", "{}/file/state"), "file/state: Not a directory"),
        (("supervisor", "--sandbox", "a", "--state", "{}/file/state"), "file/state: Not a directory"),
        (("supervisor", "--sandbox", "a", "--state", "{}/s", "--trust-bundle", "{}/none"), "none: No such file"),
        (("serve", "nothing"), "there is no service of that name: terms can be served"),
        (("serve", "terms", "--address", "nowhere"), "nowhere"),
        (("serve", "terms", "--tls", "{}/none"), "none/"),
        (("serve", "terms", "--client-ca", "{}/none"), "a client CA needs a TLS directory"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "supervisor_middleware.cli", *(a.format(tmp_path) for a in arguments)],
        env={**os.environ, "SMW_HEALTH_PORT": "0", "SMW_ENROLLMENT_PORT": "0", "SMW_DISCOVERY_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("smw: ")
    assert problem in line
