"""Identity without a cluster, in real processes: what joins, what is revoked, and files for supervisors that read them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor_middleware.cli.processes import Process
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.pki.files import locked
from supervisor_middleware.pki.pending_key import PENDING_KEY
from supervisor_middleware.pki.rotation_files import read_status
from supervisor_middleware.pki.store import TOKENS_FILE
from tests.apps.rig import NAMESPACE, Rig, Supervised, metrics, probe

KEY_HEADER = "PRIVATE KEY"


def smw(rig: Rig, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command that ends, in the surroundings of the rig's."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor_middleware.cli", *map(str, arguments)],
        env=rig.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_connected(supervisor: Supervised) -> bool:
    return metrics(supervisor.health).get("connected") == 1


def test_whoever_is_revoked_loses_its_stream_within_seconds_and_joins_again_by_a_new_token_alone(rig: Rig) -> None:
    agent, other = rig.supervisor(), rig.supervisor("other")
    rig.run(agent, other)
    done = smw(rig, "token", "revoke", f"{NAMESPACE}/agent", "--state", rig.state)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NAMESPACE}/agent: 1 ended\n", "")
    rig.until("its stream is gone", lambda: not is_connected(agent))
    rig.until("it asked for another certificate", lambda: "refused the token in" in agent.process.log.read_text())
    # What it runs it goes on to run: revocation ends its part in what is distributed, and policy never falls open.
    assert probe(agent.health, "/readyz")[0] == 200
    assert is_connected(other)
    assert "join of sandbox team-a/agent was revoked" in rig.control.log.read_text()
    agent.process.stop()
    agent.process.start()
    rig.until("it is back with what it kept", lambda: probe(agent.health, "/readyz")[0] == 200)
    assert not is_connected(agent)
    (agent.folder / "token").write_text(rig.token())
    rig.until("it joined again", lambda: is_connected(agent))
    for process in (rig.control, agent.process):
        log = process.log.read_text()
        assert "smw-join." not in log
        assert KEY_HEADER not in log


def test_a_sandbox_that_leaves_the_folder_loses_its_stream_and_cannot_join(rig: Rig) -> None:
    agent, other = rig.supervisor(), rig.supervisor("other")
    rig.run(agent, other)
    (rig.config / "sandbox-agent.yaml").unlink()
    rig.until("its stream is gone", lambda: not is_connected(agent))
    (agent.folder / "token").write_text(rig.token())
    said = "there is no sandbox team-a/agent in the folder"
    rig.until("its token is refused", lambda: said in rig.control.log.read_text())
    before = (rig.state / TOKENS_FILE).read_text()
    agent.process.stop()  # it keeps the key of its enrolment there
    shutil.rmtree(agent.folder / "state" / "identity")
    agent.process.start()
    rig.until("it is refused again", lambda: rig.control.log.read_text().count(said) > 1)
    assert (rig.state / TOKENS_FILE).read_text() == before
    assert is_connected(other)


def test_a_supervisor_that_is_killed_before_it_saved_its_certificate_joins_by_the_same_token(rig: Rig) -> None:
    agent = rig.supervisor()
    identity = agent.folder / "state" / "identity"
    identity.mkdir(parents=True)
    rig.control.start()
    rig.until("it is served", lambda: probe(rig.health, "/readyz")[0] == 200)
    with locked(identity):  # it has its answer then, and cannot save it
        agent.process.start()
        rig.until("the token is spent", lambda: '"holderSha256": "' in (rig.state / TOKENS_FILE).read_text())
        agent.process.kill()
    assert read_credentials(identity) is None
    agent.process.start()
    rig.until("it joined all the same", lambda: is_connected(agent))
    assert "join token: used" not in rig.control.log.read_text()
    assert not (identity / PENDING_KEY).exists()
    # Somebody else who has the token finds it used.
    refused = enroll(rig, rig.folder / "elsewhere", agent.folder / "token", "--once")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"run `smw token create {NAMESPACE}/agent --state DIR`" in refused.stderr
    assert '"join_refused"' in (rig.state / "audit.jsonl").read_text()


def test_whoever_a_forced_rotation_left_behind_is_named_with_what_to_do_which_is_enough(rig: Rig) -> None:
    rig.control.environment = {**rig.control.environment, "SMW_ROOT_OVERLAP": "1s"}
    agent = rig.supervisor()
    copy = agent.folder / "ca.crt"
    copy.write_bytes((rig.state / "ca.crt").read_bytes())
    agent.process.environment = {**agent.process.environment, "SMW_TRUST_BUNDLE": str(copy)}
    arguments = [a for a in agent.process.arguments if a not in {"--trust-bundle", str(rig.state / "ca.crt")}]
    agent.process.arguments = tuple(arguments)
    rig.run(agent)
    agent.process.stop()
    assert smw(rig, "ca", "rotate", "--state", rig.state).returncode == 0
    for _ in range(3):  # prepared, activated and tainted; it may go on by itself where nobody is missing
        if read_status(rig.state)["stage"] in {"prepared", "activated", "tainted"}:
            smw(rig, "ca", "rotate", "--force", "--state", rig.state)
    rig.until("the old root is gone", lambda: (rig.state / "ca.crt").read_bytes().count(b"BEGIN") == 1)
    agent.process.start()
    log = agent.process.log
    rig.until("it says what it needs", lambda: "ca.crt of its state directory" in log.read_text())
    told = "team-a/agent needs a new join token: the root of its certificate was given up"
    for command in ("status", "ca status"):
        shown = smw(rig, *command.split(), "--state", rig.state).stdout
        assert told in shown
        assert f"smw token create team-a/agent --state {rig.state}" in shown
        assert f"where --trust-bundle is a copy of {rig.state / 'ca.crt'}" in shown
    # Exactly that, with a supervisor that runs on.
    copy.write_bytes((rig.state / "ca.crt").read_bytes())
    rig.until("it says what is missing", lambda: f"run `smw token create {NAMESPACE}/agent" in log.read_text())
    created = smw(rig, "token", "create", f"{NAMESPACE}/agent", "--state", rig.state)
    (agent.folder / "token").write_text(created.stdout)
    rig.until("it is back", lambda: is_connected(agent))
    assert told not in smw(rig, "status", "--state", rig.state).stdout


@pytest.fixture
def files(rig: Rig) -> tuple[Rig, Path]:
    """A control plane that knows the sandbox, and a folder for its files."""
    rig.supervisor()  # never started: its sandbox is in the folder
    rig.control.start()
    rig.until("it is served", lambda: probe(rig.health, "/readyz")[0] == 200)
    return rig, rig.folder / "certs"


def enroll(rig: Rig, out: Path, token: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    given = ("--out", out, "--namespace", NAMESPACE, "--sandbox", "agent", "--token-file", token)
    return smw(rig, "enroll", *given, "--trust-bundle", rig.state / "ca.crt", *flags)


def test_a_certificate_in_files_is_got_once_and_left_alone(files: tuple[Rig, Path]) -> None:
    rig, out = files
    token = rig.folder / "token"
    token.write_text(rig.token())
    first = enroll(rig, out, token)
    assert (first.returncode, first.stdout.count("\n")) == (0, 1), first.stderr
    credentials = read_credentials(out)
    assert credentials is not None
    assert first.stdout.startswith(f"{out}: spiffe://openshell.internal/ns/{NAMESPACE}/sandbox/agent, good until ")
    # The token is spent, and nobody needs it.
    again = enroll(rig, out, token, "--once")
    assert (again.returncode, again.stdout, read_credentials(out)) == (0, first.stdout, credentials)
    shutil.rmtree(out)
    refused = enroll(rig, out, token)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"run `smw token create {NAMESPACE}/agent --state DIR`" in refused.stderr
    rig.control.stop()
    away = enroll(rig, out, token, "--once")
    assert (away.returncode, away.stdout) == (2, "")
    for done in (first, again, refused, away):
        assert token.read_text() not in done.stderr
        assert KEY_HEADER not in done.stdout + done.stderr


def test_a_sidecar_stays_and_ends_when_it_is_told(files: tuple[Rig, Path]) -> None:
    rig, out = files
    token = rig.folder / "token"
    sidecar = rig.process(
        "sidecar",
        *("enroll", "--out", out, "--namespace", NAMESPACE, "--sandbox", "agent", "--token-file", token),
        *("--trust-bundle", rig.state / "ca.crt", "--keep"),
    )
    sidecar.start()
    rig.until("it has no token", lambda: "a token is needed to enrol" in sidecar.log.read_text())
    token.write_text(rig.token())
    rig.until("the files are there", lambda: (out / "tls.crt").exists() and read_credentials(out) is not None)
    assert _ended_by_request(sidecar) == 0


def _ended_by_request(process: Process) -> int:
    assert process.running is not None
    assert process.running.poll() is None
    process.running.terminate()
    return process.running.wait(30)
