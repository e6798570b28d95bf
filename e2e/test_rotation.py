"""The root of identities rotates on a real API server, with three replicas, a service and a sandbox that notice nothing."""

import base64
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import OPERATOR_NAMESPACE, TRUST_DOMAIN, Installation, a_pod
from e2e.objects import a_policy, a_registration, an_entry
from e2e.replicas import HOSTS, Replicas
from supervisor_middleware.cli.processes import Process, echo_upstream, free_port, post
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.pki.keys import new_key
from supervisor_middleware.sources.cluster_authority import CA_SECRET
from supervisor_middleware.sources.cluster_bodies import ROTATION_STATUS

_SECRET = "Project Heron"
_SERVED = (200, "[REDACTED]")
_PATIENCE = 120.0


@dataclass(slots=True)
class World:
    """The replicas, and a namespace with a sandbox whose requests a service looks at, over mutual TLS."""

    replicas: Replicas
    namespace: str
    proxy: int
    supervisor: Process
    answers: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def installation(self) -> Installation:
        return self.replicas.installation

    def ca(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`smw ca`, with an administrator's kubeconfig."""
        where = ("--kubeconfig", str(self.installation.plane.kubeconfig), "--namespace", OPERATOR_NAMESPACE)
        command = (sys.executable, "-m", "supervisor_middleware.cli", "ca", *arguments, *where)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def status(self) -> dict[str, Any]:
        """What `smw ca status` reads."""
        published = self.installation.get("configmap", "supervisor-middleware-trust", namespace=OPERATOR_NAMESPACE)
        found: dict[str, Any] = json.loads(published["metadata"]["annotations"][ROTATION_STATUS])
        return found

    def waits(self) -> dict[str, Any]:
        return {wait["reason"]: wait["names"] or wait["count"] for wait in self.status()["waitsFor"]}

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        self.replicas.wait(what, is_so, seconds=_PATIENCE)

    def await_stage(self, *stages: str) -> None:
        self.wait(f"the root is {stages}", lambda: self.status()["stage"] in stages)

    def sync(self) -> None:
        """What the kubelet does: mounted files become what the ConfigMap says."""
        self.installation.trust_bundle()

    def await_steady(self) -> None:
        def is_steady() -> bool:
            self.sync()
            return bool(self.status()["stage"] == "steady")

        self.wait("the root is steady", is_steady)
        for host in HOSTS:
            self.wait(f"{host} knows", lambda host=host: self._stage(host, "steady") == 1)  # type: ignore[misc]

    def _stage(self, host: str, stage: str) -> float | None:
        return self.installation.metrics(host=host).get(f'root_rotation_stage{{stage="{stage}"}}')

    def usable(self) -> set[float | None]:
        return {self.installation.metrics(host=host).get("root_usable") for host in HOSTS}

    def secret(self) -> dict[str, Any]:
        return self.installation.get("secret", CA_SECRET, namespace=OPERATOR_NAMESPACE)

    def kept(self) -> bytes:
        return base64.b64decode(self.secret()["data"]["tls.crt"])

    def bundle(self) -> tuple[x509.Certificate, ...]:
        """As the sandbox's namespace has it."""
        data = self.installation.get("configmap", "supervisor-middleware-trust", namespace=self.namespace)["data"]
        return parse_bundle(data["ca.crt"].encode())

    def leaf(self) -> x509.Certificate:
        held = read_credentials(self.supervisor.log.parent / "state" / "identity")
        assert held is not None
        return held.leaf

    def audited(self) -> list[str]:
        """Changes of the root, of whoever led."""
        files = self.installation.directory.glob("operator-*-audit.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines() if '"root_' in line]
        records = sorted(map(json.loads, lines), key=lambda record: record["time"])
        return [record["unmapped"]["change"] for record in records]

    def put(self, root: Authority, *, key: Authority | None = None) -> None:
        """What cert-manager writes."""
        parts = {
            "tls.crt": root.certificate_pem,
            "tls.key": (key or root).private_key_pem.reveal(),
            "ca.crt": root.certificate_pem,
        }
        data = {name: base64.b64encode(value).decode() for name, value in parts.items()}
        where = ("secret", CA_SECRET, "-n", OPERATOR_NAMESPACE)
        self.installation.plane.kubectl("patch", *where, "--type=merge", "-p", json.dumps({"data": data}))

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Requests all the time; none may fail."""
        is_over = threading.Event()

        def send() -> None:
            while not is_over.wait(0.1):
                answer = post(self.proxy, "api.example.com", _SECRET)
                self.answers[answer.status, answer.error or answer.body] += 1

        client = threading.Thread(target=send)
        client.start()
        try:
            yield
        finally:
            is_over.set()
            client.join()
        assert set(self.answers) == {_SERVED}
        assert self.answers[_SERVED] > 10


@pytest.fixture(scope="module")
def world(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    environment = {"SMW_ROOT_OVERLAP": "2s"}
    installation = Installation(own_control_plane, tmp_path_factory.mktemp("rotation"), environment=environment)
    replicas = Replicas(installation)
    try:
        replicas.install()
        replicas.start()
        namespace = installation.plane.create_namespace("rotating")
        installation.wait("the trust bundle is there", installation.has_bundle)
        port = free_port()
        _, authority = installation.terms_service(port=port)
        registration = a_registration("terms", endpoint=f"https://127.0.0.1:{port}", tls={"caBundle": authority})
        entry = an_entry("acme/terms", order=1, config={"terms": [_SECRET], "action": "redact"})
        installation.apply(registration)
        installation.await_condition("smw", "terms", "Ready=True/Ready")
        installation.apply(
            a_policy("outbound", namespace=namespace, terms=entry),
            a_pod("agent-0", namespace=namespace, sandbox="agent"),
        )
        with echo_upstream() as upstream:
            process, proxy = installation.supervisor(
                namespace=namespace, sandbox="agent", pod="agent-0", upstream=upstream, operators=HOSTS
            )
            made = World(replicas, namespace, proxy, process)
            installation.await_condition("sbp", "outbound", "Programmed=True/Programmed", namespace=namespace)
            yield made
    finally:
        installation.stop()


def a_root_of_somebody_else() -> Authority:
    """As cert-manager makes one."""
    key, now = new_key(), datetime.now(UTC) - timedelta(minutes=5)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "platform identities")])
    usages = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*usages, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=90))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "digital_signature": True}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(trust_domain=TRUST_DOMAIN, certificate=certificate, private_key=key)


def test_a_rotation_names_the_service_that_lags_survives_its_leader_and_fails_no_request(world: World) -> None:
    before = world.kept()
    with world.traffic():
        asked = world.ca("rotate")
        assert asked.returncode == 0, asked.stderr
        assert "prepared" in asked.stdout
        assert "PRIVATE" not in asked.stdout
        # Nobody has given the service the new bundle yet.
        world.wait("the service is named", lambda: world.waits().get("services_refusing") == ["terms"])
        world.wait("it is all there is", lambda: set(world.waits()) == {"services_refusing"})
        again = world.ca("rotate")
        assert again.returncode == 1
        assert "a rotation is under way: prepared" in again.stderr
        assert "services that refuse certificates of that root: terms" in world.ca("status").stdout
        leader = world.replicas.leader()
        world.replicas.processes[leader].kill()
        world.replicas.await_leader(other_than=leader)
        world.wait("the next leader knows it too", lambda: world.waits().get("services_refusing") == ["terms"])
        assert world.kept() == before
        world.sync()
        world.await_stage("activated", "tainted", "revoked", "steady")
        world.replicas.start()
        world.await_steady()
    after = parse_bundle(world.kept())
    assert world.bundle() == after
    assert world.kept() != before
    world.wait("the supervisor has a certificate of it", lambda: _is_issued(world.leaf(), after[0]))
    data = world.secret()["data"]
    assert set(data) == {"tls.crt", "tls.key"}
    audited = world.audited()
    assert [kind for kind in audited if kind != "root_request_refused"] == [
        "root_prepared",
        "root_activated",
        "root_tainted",
        "root_revoked",
        "root_steady",
    ]


def _is_issued(leaf: x509.Certificate, root: x509.Certificate) -> bool:
    return leaf.issuer == root.subject


def test_followers_go_by_the_new_root_at_services_too(world: World) -> None:
    follower = next(host for host in HOSTS if host != world.replicas.leader())
    world.replicas.review_at(follower)
    entry = an_entry("acme/terms", order=2, config={"terms": ["another"], "action": "redact"})
    # Its review asks the service, which believes the new root alone.
    world.installation.apply(a_policy("reviewed", namespace=world.namespace, reviewed=entry))
    world.installation.plane.kubectl("delete", "sbp", "reviewed", "-n", world.namespace)
    world.replicas.review_at(world.replicas.leader())


def test_a_secret_that_is_deleted_is_not_made_anew_and_everything_goes_on(world: World) -> None:
    kept = world.secret()
    world.installation.plane.kubectl("delete", "secret", CA_SECRET, "-n", OPERATOR_NAMESPACE)
    with world.traffic():
        world.wait("every replica says so", lambda: world.usable() == {0})
        assert "root_missing" in world.audited()
        asked = world.ca("rotate")
        assert asked.returncode == 2
        assert "is missing" in asked.stderr
        gone = world.installation.plane.kubectl("get", "secret", CA_SECRET, "-n", OPERATOR_NAMESPACE, check=False)
        assert gone.returncode != 0
        # One that starts now has nothing to start with.
        host = next(h for h in HOSTS if h != world.replicas.leader())
        world.replicas.processes[host].kill()
        stopped = world.replicas.processes[host]
        stopped.start()
        world.wait("it refuses to start", lambda: "restore the Secret" in world.replicas.log(host))
        metadata = {key: kept["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
        world.installation.apply({**kept, "metadata": metadata})
        stopped.stop()
        stopped.start()
        world.wait("it is back", lambda: world.usable() == {1})
    world.await_steady()
    assert world.bundle() == parse_bundle(world.kept())


def test_a_root_whose_key_does_not_fit_is_refused_and_ours_goes_on(world: World) -> None:
    before = world.secret()["data"]
    world.put(a_root_of_somebody_else(), key=a_root_of_somebody_else())
    with world.traffic():
        world.wait("every replica says so", lambda: world.usable() == {0})
        world.wait("it is shown", lambda: "another certificate" in world.status()["problem"])
        assert world.ca("status").returncode == 1
        restored = {"data": {name: before[name] for name in ("tls.crt", "tls.key")}}
        where = ("secret", CA_SECRET, "-n", OPERATOR_NAMESPACE)
        world.installation.plane.kubectl("patch", *where, "--type=merge", "-p", json.dumps(restored))
        world.wait("it is well again", lambda: world.usable() == {1})
        world.await_steady()
    assert set(world.secret()["data"]) == {"tls.crt", "tls.key", "ca.crt"}


def test_a_root_that_somebody_supplies_takes_over_in_stages_and_is_theirs_from_then_on(world: World) -> None:
    supplied = a_root_of_somebody_else()
    with world.traffic():
        world.put(supplied)
        world.await_stage("prepared")
        assert "held.key" in world.secret()["data"]
        world.await_steady()
    assert world.kept() == supplied.certificate_pem
    assert world.bundle() == (supplied.certificate,)
    assert set(world.secret()["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    world.wait("the supervisor follows", lambda: _is_issued(world.leaf(), supplied.certificate))
    refused = world.ca("rotate")
    assert refused.returncode == 1
    assert "supplied from outside" in refused.stderr
