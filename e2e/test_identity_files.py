"""Certificates that live a minute, on a real API server: renewed at half-life, got anew after expiry, and in files.

The example of `examples/enroll` is what runs. No key and no token is ever where it does not belong.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.controlplane.etcd import post
from e2e.harness import LOOPBACK, OPERATOR_NAMESPACE, Installation, a_pod
from e2e.objects import a_policy, an_entry
from supervisor_middleware.cli.processes import Process, echo_upstream
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.settings import AUDIENCE

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "enroll" / "agent.yaml"
TOKEN = Path("/var/run/secrets/smw/token")
TRUST = Path("/etc/supervisor-middleware/trust/ca.crt")
KEY = b"PRIVATE KEY"
HOLDERS = {
    f"/registry/secrets/{OPERATOR_NAMESPACE}/supervisor-middleware-ca",
    f"/registry/secrets/{OPERATOR_NAMESPACE}/supervisor-middleware-webhook",
}
"""Where a private key may be kept: the CA's Secret, and that of the webhook's."""


@dataclass(slots=True)
class World:
    """An operator whose certificates live a minute, and the example's Pod."""

    installation: Installation
    pod: dict[str, Any]
    folder: Path
    tokens: list[str]

    @property
    def out(self) -> Path:
        return self.folder / "certs"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def token(self) -> str:
        namespace, name = self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]
        token = self.installation.plane.token_for("default", namespace, bound_pod=name, audience=AUDIENCE)
        self.tokens.append(token)
        return token

    def container(self, name: str) -> Process:
        """An init container of the example, its mounts in our folder; not started."""
        (container,) = (c for c in self.pod["spec"]["initContainers"] if c["name"] == name)
        given = {v["name"]: v["value"] for v in container["env"]}
        assert given.pop("SMW_OPERATORS").endswith(".svc")
        assert Path(given.pop("SMW_TOKEN_FILE")) == TOKEN
        assert given == {}
        arguments = tuple(str(self.out) if argument == "/certs" else argument for argument in container["args"])
        process = Process(
            name=name,
            arguments=arguments,
            log=self.folder / f"{name}.log",
            environment={
                "SMW_OPERATORS": LOOPBACK,
                "SMW_TOKEN_FILE": str(self.token_file),
                "SMW_TRUST_BUNDLE": str(self.installation.trust_bundle()),
                "SMW_ENROLLMENT_PORT": str(self.installation.enrollment_port),
                "SMW_DISCOVERY_PORT": str(self.installation.discovery_port),
                "SMW_AUDIT_FILE": str(self.folder / f"{name}-audit.jsonl"),
            },
        )
        self.installation.processes.append(process)
        return process

    def kept(self) -> Credentials:
        credentials = read_credentials(self.out)
        assert credentials is not None
        return credentials


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    pod = yaml.safe_load(EXAMPLE.read_text())
    directory = tmp_path_factory.mktemp("files")
    namespace = control_plane.create_namespace("files")
    pod["metadata"]["namespace"] = namespace
    for container in pod["spec"]["initContainers"]:
        container["args"] = [namespace if a == "agents" else a for a in container["args"]]
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        # Whatever may be said is said.
        patch.setenv("SMW_LOG_LEVEL", "DEBUG")
        installation = Installation(control_plane, directory, environment={"SMW_LEAF_LIFETIME": "1m"})
        stack.callback(installation.uninstall)
        stack.callback(control_plane.kubectl, "delete", "namespace", namespace, "--wait=false")
        with installation:
            installation.apply(pod, a_policy("outbound", namespace=namespace, keys=an_entry()))
            yield World(installation, pod, directory, [])


def ended(process: Process) -> int:
    assert process.running is not None
    return process.running.wait(90)


def test_the_example_gets_its_files_and_keeps_them_good(world: World) -> None:
    world.token_file.write_text(world.token())
    init = world.container("enroll")
    init.start()
    assert ended(init) == 0, init.log.read_text()
    first = world.kept()
    assert str(first.spiffe_id).endswith(f"/ns/{world.pod['metadata']['namespace']}/sandbox/agent-0")
    # From here on its certificate must do.
    world.token_file.write_text("spent")
    again = world.container("enroll")
    again.start()
    assert ended(again) == 0
    sidecar = world.container("renew")
    sidecar.start()
    world.installation.wait("the files are renewed", lambda: world.kept().leaf != first.leaf, seconds=60)
    second = world.kept()
    assert second.not_before < first.expires_at
    assert second.spiffe_id == first.spiffe_id
    world.installation.wait("and again", lambda: world.kept().leaf != second.leaf, seconds=60)


def test_a_certificate_that_expired_while_nobody_was_there_is_got_anew_with_a_token_read_then(world: World) -> None:
    world.installation.operator.stop()
    last = world.kept()
    process = next(p for p in world.installation.processes if p.name == "renew")

    world.installation.wait("the certificate has expired", lambda: datetime.now(UTC) > last.expires_at, seconds=90)
    world.installation.operator.start()
    world.installation.wait(
        "it shows what it has", lambda: "refused the token in" in process.log.read_text(), seconds=90
    )
    world.token_file.write_text(world.token())
    world.installation.wait("it has another one", lambda: world.kept().leaf != last.leaf, seconds=90)


def test_no_key_and_no_token_is_where_it_does_not_belong(world: World) -> None:
    installation, namespace = world.installation, world.pod["metadata"]["namespace"]
    installation.apply(a_pod("other-0", namespace=namespace, sandbox="other"))
    with echo_upstream() as upstream:
        supervisor, _ = installation.supervisor(
            namespace=namespace, sandbox="other", pod="other-0", upstream=upstream
        )
        installation.wait("it is connected", lambda: installation.connected() > 0, seconds=90)
        folder = supervisor.log.parent
        tokens = [*world.tokens, (folder / "token").read_text()]
        assert not [p for p in (supervisor, installation.operator) if _command_line(p, tokens)]
    keys = [path.read_bytes() for path in (world.out / "tls.key", folder / "state" / "identity" / "tls.key")]
    stored = _everything(installation.plane)
    holding = {path for path, value in stored.items() if KEY in value}
    # Other tests' operators have Secrets of their own on this API server; nothing but a Secret holds a key.
    assert {path for path in holding if not path.startswith("/registry/secrets/")} == set()
    assert {path for path in holding if path.split("/")[3] in {OPERATOR_NAMESPACE, namespace}} == HOLDERS
    authority = installation.get("secret", "supervisor-middleware-ca", namespace=OPERATOR_NAMESPACE)
    keys.append(base64.b64decode(authority["data"]["tls.key"]))
    secrets = [t.encode() for t in tokens] + [t.rpartition(".")[2].encode() for t in tokens]
    secrets += [line for key in keys for line in key.splitlines() if line and not line.startswith(b"---")]
    assert len(secrets) > 10
    for path, value in stored.items():
        found = [s for s in secrets if s in value or base64.b64encode(s)[:-4] in value]
        assert not found or path in HOLDERS, path
    # Logs and audit files at their most talkative, and whatever else was left behind.
    texts = [file for file in world.folder.rglob("*") if file.suffix in {".log", ".jsonl"}]
    assert len(texts) > 6
    for file in texts:
        content = file.read_bytes()
        assert KEY not in content, file
        assert not [s for s in secrets if s in content], file


def test_every_key_in_a_state_directory_is_its_owners_alone(world: World) -> None:
    looked_at = 0
    for path in world.folder.rglob("*"):
        if not path.is_file() or KEY not in path.read_bytes() or path.parent.name.endswith("-tls"):
            continue
        looked_at += 1
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert looked_at >= 4


def _everything(plane: ControlPlane) -> dict[str, bytes]:
    """Every key of etcd with its value."""
    everything = {"key": base64.b64encode(b"\0").decode(), "range_end": base64.b64encode(b"\0").decode()}
    answer = json.loads(post(plane.directory / "etcd.sock", "/v3/kv/range", everything))
    return {base64.b64decode(e["key"]).decode(): base64.b64decode(e.get("value", "")) for e in answer["kvs"]}


def _command_line(process: Process, tokens: list[str]) -> list[str]:
    """Tokens that others on the machine could read of a process."""
    assert process.running is not None
    text = "".join(Path(f"/proc/{process.running.pid}/{n}").read_text() for n in ("cmdline", "environ"))
    return [token for token in tokens if token in text]
