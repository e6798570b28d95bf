"""The webhook's certificate at a real API server: roots in a Secret, `caBundle`, rotation under load, three replicas.

Load is creates for a try, a dozen a second: a review that cannot reach its webhook fails one.
"""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from e2e.cluster_support import apply, kubectl, operator_kubeconfig
from e2e.controlplane.cluster import ControlPlane
from e2e.harness import LOOPBACK, OPERATOR_NAMESPACE, Installation, read
from e2e.objects import Document, a_policy
from e2e.reading import collection, one
from supervisor_middleware.cli.processes import Process
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.succession import split_roots
from supervisor_middleware.sources.cluster_api import ClusterApi, connect
from supervisor_middleware.sources.cluster_serving import WEBHOOK_SECRET, ServingSecret, WebhookTrust

_DOMAIN = "webhook.cluster.example"
_CONFIGURATION = f"supervisor-middleware-{OPERATOR_NAMESPACE}"
_OVERLAP = "6s"


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def api(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[ClusterApi]:
    async with await connect(operator_kubeconfig(control_plane, namespace, tmp_path)) as opened:
        yield opened


# --------------------------------------------------------------------------------------------------------- the Secret


async def test_of_several_that_write_one_wins_and_the_others_read_it(api: ClusterApi, namespace: str) -> None:
    secrets = [ServingSecret(api, namespace=namespace, trust_domain=_DOMAIN) for _ in range(3)]
    assert await secrets[0].read(now=now()) is None
    made = await asyncio.gather(*(s.write(s.first(trusted=(), now=now()), over=None) for s in secrets))
    assert sorted(made) == [False, False, True]
    stored = await secrets[0].read(now=now())
    assert stored is not None
    following = [stored.succession.with_successor(now=now()) for _ in secrets]
    written = await asyncio.gather(
        *(s.write(f, over=stored.version) for s, f in zip(secrets, following, strict=True))
    )
    assert sorted(written) == [False, False, True]
    after = await secrets[1].read(now=now())
    assert after is not None
    assert after.succession.roots == following[written.index(True)].roots
    assert len(after.succession.roots) == 2


async def test_a_secret_that_cannot_serve_says_so_without_its_content(
    control_plane: ControlPlane, api: ClusterApi, namespace: str
) -> None:
    secret = ServingSecret(api, namespace=namespace, trust_domain=_DOMAIN)
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": WEBHOOK_SECRET, "namespace": namespace}}
    await apply(control_plane, {**body, "data": {"tls.crt": "bm9uZQ=="}})
    with pytest.raises(InvalidInput, match="supervisor-middleware-webhook: "):
        await secret.read(now=now())


async def test_a_root_that_has_ended_is_replaced_at_once(api: ClusterApi, namespace: str) -> None:
    secret = ServingSecret(api, namespace=namespace, trust_domain=_DOMAIN)
    first = secret.first(trusted=(), now=now())
    assert await secret.write(first, over=None)
    later = await secret.read(now=first.current.expires_at)
    assert later is not None
    assert not later.is_stored
    assert first.current.certificate_pem not in later.succession.roots
    assert await secret.write(later.succession, over=later.version)


async def test_only_ca_bundle_of_each_webhook_is_patched(
    control_plane: ControlPlane, namespace: str, api: ClusterApi
) -> None:
    name = f"supervisor-middleware-{namespace}"
    trust = WebhookTrust(api, configuration=name)
    pem = Authority.create(trust_domain="webhook.example", now=now()).certificate_pem
    assert await trust.ensure(pem)  # absent: logged, no error, and nothing is made
    assert await trust.roots() == ()
    listed = await kubectl(control_plane, "get", "validatingwebhookconfigurations", "--output=name")
    assert name not in listed

    webhooks = [
        {
            "name": f"{which}.middleware.openshell.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "matchPolicy": "Exact",
            "namespaceSelector": {"matchLabels": {"none": "such"}},
            "clientConfig": {"service": {"name": "webhook", "namespace": namespace, "path": f"/{which}"}},
        }
        for which in ("policies", "registrations")
    ]
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": webhooks,
    }
    (before,) = await apply(control_plane, configuration)
    try:
        assert not await trust.ensure(pem)
        assert await trust.ensure(pem)
        assert await trust.roots() == (pem,)
        text = await kubectl(
            control_plane, "get", "validatingwebhookconfiguration", name, "--show-managed-fields", "--output=json"
        )
        after = json.loads(text)
        bundle = base64.b64encode(pem).decode()
        for old, new in zip(before["webhooks"], after["webhooks"], strict=True):
            assert new == {**old, "clientConfig": {**old["clientConfig"], "caBundle": bundle}}
        managers = {m["manager"]: m for m in after["metadata"]["managedFields"]}
        ours = json.dumps(managers["supervisor-middleware"]["fieldsV1"])
        assert "caBundle" in ours
        assert "f:service" not in ours
        # The chart applies again without a bundle: no conflict, and the bundle stays.
        await apply(control_plane, configuration)
        assert await trust.ensure(pem)
        again = await kubectl(control_plane, "get", "validatingwebhookconfiguration", name, "--output=json")
        assert json.loads(again)["webhooks"] == after["webhooks"]
    finally:
        await kubectl(control_plane, "delete", "validatingwebhookconfiguration", name)


# ----------------------------------------------------------------------------------------------------------- rotation


@dataclass(slots=True)
class Load:
    """Reviews all the time, of several clients."""

    plane: ControlPlane
    policy: Document
    asked: int = 0
    failures: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def has_asked(self) -> bool:
        """Whether there were a few."""
        return self.asked >= 4

    def run(self) -> None:
        """Until it is ended."""
        while not self.ended.wait(0.15):
            refusal = self.plane.refusal(collection("sbp"), self.policy)
            self.asked += 1
            if refusal:
                self.failures.append(refusal)


@contextmanager
def load(plane: ControlPlane) -> Iterator[Load]:
    running = Load(plane, a_policy("load", namespace="default"))
    threads = [threading.Thread(target=running.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running.ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def installation(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An operator whose roots overlap for seconds."""
    installed = Installation(
        control_plane,
        tmp_path_factory.mktemp("installation"),
        environment={"SMW_WEBHOOK_CA_OVERLAP": _OVERLAP, "SMW_LEAF_LIFETIME": "1m"},
    )
    try:
        with installed:
            yield installed
    finally:
        installed.uninstall()


def _bundle(plane: ControlPlane) -> tuple[bytes, ...]:
    found = one(plane, "validatingwebhookconfiguration", _CONFIGURATION)
    encoded = found["webhooks"][0]["clientConfig"].get("caBundle", "")
    return split_roots(base64.b64decode(encoded))


def _leaf_issuer(host: str, port: int) -> str:
    import ssl

    from cryptography import x509

    leaf = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, port)).encode())
    return leaf.issuer.rfc4514_string()


def _subject(pem: bytes) -> str:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem).subject.rfc4514_string()


def test_a_new_root_takes_over_under_load_and_no_review_is_refused(
    installation: Installation, control_plane: ControlPlane
) -> None:
    (old,) = _bundle(control_plane)
    with load(control_plane) as reviews:
        control_plane.kubectl("delete", "secret", WEBHOOK_SECRET, "-n", OPERATOR_NAMESPACE)
        installation.wait("both are trusted", lambda: len(_bundle(control_plane)) == 2, seconds=60)
        new = _bundle(control_plane)[1]
        assert _bundle(control_plane)[0] == old
        # A server without the old root's leaf would be refused by an API server that has not heard of the new one.
        assert _leaf_issuer(LOOPBACK, installation.webhook_port) == _subject(old)
        installation.wait(
            "the new root's leaf is served",
            lambda: _leaf_issuer(LOOPBACK, installation.webhook_port) == _subject(new),
            seconds=90,
        )
        installation.wait("only the new one is trusted", lambda: _bundle(control_plane) == (new,), seconds=120)
    assert reviews.failures == []
    assert reviews.asked > 20


def test_a_leaf_is_renewed_under_load_and_no_review_is_refused(
    installation: Installation, control_plane: ControlPlane
) -> None:
    import ssl

    before = ssl.get_server_certificate((LOOPBACK, installation.webhook_port))
    with load(control_plane) as reviews:
        installation.wait(
            "a renewed leaf is served",
            lambda: ssl.get_server_certificate((LOOPBACK, installation.webhook_port)) != before,
            seconds=90,
        )
    assert reviews.failures == []


def test_a_bundle_that_somebody_removes_comes_back(installation: Installation, control_plane: ControlPlane) -> None:
    before = _bundle(control_plane)
    removal = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    configuration = ("validatingwebhookconfiguration", _CONFIGURATION)
    control_plane.kubectl("patch", *configuration, "--type=json", "-p", json.dumps(removal))
    installation.wait("the bundle is back", lambda: _bundle(control_plane) == before, seconds=60)


def test_a_configuration_that_is_made_anew_is_trusted_again(
    installation: Installation, control_plane: ControlPlane
) -> None:
    configuration = ("validatingwebhookconfiguration", _CONFIGURATION)
    before = _bundle(control_plane)
    control_plane.kubectl("delete", *configuration)
    installation.install()
    installation.wait("the bundle is set", lambda: _bundle(control_plane) == before, seconds=60)
    installation.apply(a_policy("again", namespace="default"))


def test_three_replicas_that_start_at_once_have_one_root_and_change_it_together(
    installation: Installation, control_plane: ControlPlane
) -> None:
    installation.operator.stop()
    control_plane.kubectl("delete", "secret", WEBHOOK_SECRET, "-n", OPERATOR_NAMESPACE)
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    replicas: list[Process] = []
    try:
        for number, host in enumerate(hosts):
            replica = installation.replica(f"replica-{number}", host=host)
            replica.start()
            replicas.append(replica)
        _wait_for(replicas, installation, hosts)
        issuers = {_leaf_issuer(host, installation.webhook_port) for host in hosts}
        assert len(issuers) == 1
        new = _subject(_bundle(control_plane)[-1])
        assert issuers == {new}
        # Deleted while they run: in stages, and together.
        control_plane.kubectl("delete", "secret", WEBHOOK_SECRET, "-n", OPERATOR_NAMESPACE)
        installation.wait("another root is trusted", lambda: _subject(_bundle(control_plane)[-1]) != new, seconds=60)
        next_root = _subject(_bundle(control_plane)[-1])
        installation.wait(
            "all serve by it",
            lambda: {_leaf_issuer(host, installation.webhook_port) for host in hosts} == {next_root},
            seconds=120,
        )
        for host in hosts:
            _point_at(installation, host)
            with load(control_plane) as reviews:
                installation.wait("some reviews", reviews.has_asked)
            assert reviews.failures == []
    finally:
        for replica in replicas:
            replica.stop()
        _name_url(installation, LOOPBACK)
        installation.start()


def _wait_for(replicas: list[Process], installation: Installation, hosts: list[str]) -> None:
    def are_ready() -> bool:
        return all(read(installation.health_port, "/readyz", host=host)[0] == 200 for host in hosts)

    installation.wait("all are ready", are_ready, seconds=90)
    assert all(r.running is not None and r.running.poll() is None for r in replicas)


def _point_at(installation: Installation, host: str) -> None:
    """The API server asks that replica from now on."""
    before = _reviews_at(installation, host)
    _name_url(installation, host)
    # Its own cache hears of that a moment later.
    installation.wait("it is asked", lambda: _ask(installation) and _reviews_at(installation, host) > before)


def _name_url(installation: Installation, host: str) -> None:
    url = f"https://{host}:{installation.webhook_port}/validate"
    change = [{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": url}]
    configuration = ("validatingwebhookconfiguration", _CONFIGURATION)
    installation.plane.kubectl("patch", *configuration, "--type=json", "-p", json.dumps(change))


def _ask(installation: Installation) -> bool:
    policy = yaml.safe_dump(a_policy("load", namespace="default"))
    installation.plane.kubectl("apply", "--dry-run=server", "-f", "-", input=policy, check=False)
    return True


def _reviews_at(installation: Installation, host: str) -> float:
    counts = installation.metrics(host=host)
    return sum(v for k, v in counts.items() if k.startswith("admission_review_duration_seconds_count{"))
