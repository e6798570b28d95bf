"""Whatever the API server, its store or the way to it do: no restart, nothing lost, sandboxes run what they ran."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from e2e.controlplane.certificates import Authority
from e2e.controlplane.cluster import ControlPlane
from e2e.flaky_proxy import FlakyProxy, Gone
from e2e.harness import Installation, a_pod, read
from e2e.objects import Document, a_policy, a_registration, an_entry
from supervisor_middleware.cli.processes import Answer, Process, echo_upstream, free_port, post

_KEY = "sk-0123456789abcdefghij"
_PROGRAMMED = "Programmed=True/Programmed"
_TERMS = {"terms": ["Project Heron"], "action": "redact"}
_PATIENCE = 90.0


@dataclass(slots=True)
class World:
    """An operator that reaches its API server through a proxy, one sandbox with its supervisor, one service."""

    installation: Installation
    proxy: FlakyProxy
    namespace: str
    service: Process
    port: int = 0
    edits: int = field(default=0)

    @property
    def plane(self) -> ControlPlane:
        """Reached directly."""
        return self.installation.plane

    def accepted(self) -> Document:
        """What the policy's status says is in force."""
        found = self.installation.get("sbp", "outbound", namespace=self.namespace)
        accepted: Document = found["status"]["accepted"]
        return accepted

    def edit(self) -> None:
        """Change the policy, which is admitted at once or a little later."""
        self.edits += 1
        policy = an_outbound(self.namespace, host=f"host-{self.edits}.example.com")
        self.installation.wait("the edit is admitted", lambda: self._is_applied(policy), seconds=_PATIENCE)

    def await_edit(self) -> None:
        """Until what was edited last is what the supervisor does."""
        self.installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=self.namespace, seconds=_PATIENCE)
        assert self.send(f"host-{self.edits}.example.com").body == "[REDACTED]"
        assert self.send("host-0.example.com").body == _KEY

    def send(self, host: str = "www.example.org", body: str = _KEY) -> Answer:
        """A request of the sandbox."""
        return post(self.port, host, body)

    def await_leader(self, *, leads: bool) -> None:
        """Until the operator leads, or does not."""
        wanted = float(leads)
        self.installation.wait(
            f"leads: {leads}", lambda: self.installation.metrics().get("leader") == wanted, seconds=_PATIENCE
        )

    def await_recovery(self) -> None:
        """The same operator goes on where it was: an edit is one revision more and reaches the sandbox."""
        before, since = self.accepted(), self.watches()
        self.await_leader(leads=True)
        self.installation.operator.check()
        self.edit()
        self.await_edit()
        after = self.accepted()
        assert after["revision"] == before["revision"] + 1
        assert after["epoch"] >= before["epoch"]
        assert self.send().body == "[REDACTED]"
        assert self.watches() >= since

    def watches(self) -> int:
        """How many watches were asked for."""
        return self.proxy.count(lambda seen: seen.is_watch)

    def assert_alive(self) -> None:
        """Nothing asks for a restart, and sandboxes are served."""
        assert read(self.installation.health_port, "/healthz")[0] == 200
        assert self.send().body == "[REDACTED]"
        self.installation.operator.check()

    def _is_applied(self, policy: Document) -> bool:
        text = yaml.safe_dump(policy)
        return self.plane.kubectl("apply", "-f", "-", input=text, check=False).returncode == 0


def an_outbound(namespace: str, *, host: str) -> Document:
    return a_policy(
        "outbound",
        namespace=namespace,
        keys=an_entry(order=10, include=["www.example.org"]),
        more=an_entry(order=15, include=[host]),
        codenames=an_entry("acme/terms", order=20, config=_TERMS, include=["api.example.com"]),
    )


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    plane, directory = control_plane, tmp_path_factory.mktemp("api")
    with FlakyProxy(plane.url, authority=plane.authority) as proxy:
        installation = Installation(plane, directory)
        installation.install()
        point(directory / "operator.kubeconfig", url=proxy.url)
        try:
            installation.start()
            yield from _made(installation, proxy)
        finally:
            proxy.calm()
            installation.stop()
            installation.uninstall()


def _made(installation: Installation, proxy: FlakyProxy) -> Iterator[World]:
    namespace, port = installation.plane.create_namespace("api"), free_port()
    service, authority = installation.terms_service(port=port)
    installation.apply(
        a_registration("terms", endpoint=f"https://127.0.0.1:{port}", tls={"caBundle": authority}, timeout="2s"),
        a_pod("agent-0", namespace=namespace, sandbox="agent"),
    )
    installation.await_condition("smw", "terms", "Ready=True/Ready", seconds=_PATIENCE)
    world = World(installation, proxy, namespace, service)
    world.edit()
    with echo_upstream() as upstream:
        _, world.port = installation.supervisor(
            namespace=namespace, sandbox="agent", pod="agent-0", upstream=upstream
        )
        installation.wait("the supervisor is connected", lambda: installation.connected() == 1, seconds=_PATIENCE)
        world.await_edit()
        yield world
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def point(kubeconfig: Path, *, url: str = "", authority: Authority | None = None) -> None:
    """Have it name another address, or another CA."""
    import base64

    document = yaml.safe_load(kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    cluster["server"] = url or cluster["server"]
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority.certificate).decode()
    kubeconfig.write_text(yaml.safe_dump(document))


def test_a_network_that_swallows_every_byte(world: World) -> None:
    world.proxy.black_hole()
    world.await_leader(leads=False)
    world.assert_alive()
    world.proxy.calm()
    world.await_recovery()


def test_a_throttled_api(world: World) -> None:
    world.proxy.throttle(retry_after=1)
    world.await_leader(leads=False)
    world.assert_alive()
    world.proxy.calm()
    world.await_recovery()


@pytest.mark.parametrize("how", list(Gone))
def test_a_version_that_is_too_old_to_watch_from(world: World, how: Gone) -> None:
    before = world.watches()
    world.proxy.expire_watches(how)
    world.installation.wait("a watch is told so", lambda: world.watches() > before, seconds=_PATIENCE)
    world.assert_alive()
    world.proxy.calm()
    world.await_recovery()


def test_an_api_server_with_another_certificate_of_its_ca(world: World) -> None:
    world.proxy.certify(world.plane.authority.server("127.0.0.1"))
    world.await_recovery()


def test_an_api_server_with_a_certificate_of_another_ca(world: World) -> None:
    kubeconfig = world.installation.directory / "operator.kubeconfig"
    before, other = kubeconfig.read_text(), Authority()
    world.proxy.certify(other.server("127.0.0.1"))
    world.await_leader(leads=False)
    world.assert_alive()
    assert "not of the CA that we have" in world.installation.operator.log.read_text()
    since = world.watches()
    point(kubeconfig, authority=other)
    world.await_recovery()
    world.installation.wait("the watcher trusts it too", lambda: world.watches() > since, seconds=_PATIENCE)
    world.await_recovery()

    kubeconfig.write_text(before)
    world.proxy.certify(world.plane.authority.server("127.0.0.1"))
    world.await_recovery()


def test_a_store_that_is_full(world: World) -> None:
    world.plane.refuse_writes()
    world.await_leader(leads=False)
    world.service.stop()
    world.assert_alive()
    world.installation.condition("smw", "terms", "Ready")
    before = world.accepted()
    world.plane.take_writes()
    world.await_leader(leads=True)
    world.installation.await_condition("smw", "terms", "Reachable=False/Unreachable", seconds=_PATIENCE)
    assert world.accepted() == before
    world.service.start()
    world.installation.await_condition("smw", "terms", "Ready=True/Ready", seconds=_PATIENCE)
    world.await_recovery()


def test_a_store_that_is_gone_for_a_while(world: World) -> None:
    world.plane.stop_etcd()
    world.await_leader(leads=False)
    world.assert_alive()
    world.plane.start_etcd()
    world.await_recovery()
