"""Three replicas: one leads, whatever becomes of it; all review; sandboxes run what they ran, under the next leader."""

import json
import logging
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import OPERATOR_NAMESPACE, Installation, a_pod, listens
from e2e.objects import Document, a_policy, a_registration, an_entry
from e2e.replicas import EPOCH, HOSTS, LEASE, Replicas, address_of
from e2e.services import Host, Scripted, a_manifest
from supervisor_middleware.cli.processes import Process, echo_upstream, post

_log = logging.getLogger(__name__)
_KEY = "sk-0123456789abcdefghij"
_UNKNOWN = "no accepted registration serves this binding"
_PROGRAMMED = "Programmed=True/Programmed"


@dataclass(frozen=True, slots=True)
class World:
    """The replicas, and a namespace with a policy and two sandboxes with their supervisors."""

    replicas: Replicas
    namespace: str
    proxies: tuple[int, int]
    supervisors: tuple[Process, Process]

    @property
    def installation(self) -> Installation:
        return self.replicas.installation

    def standing(self) -> tuple[Document, tuple[str, ...]]:
        """What is accepted, and which generations supervisors have taken up so far."""
        accepted: Document = self.installation.get("sbp", "outbound", namespace=self.namespace)["status"]["accepted"]
        return accepted, tuple(d for s in self.supervisors for d in _activated(s))

    def await_served(self, leader: str) -> None:
        """Until both supervisors have a stream to `leader` and the policy's status says so."""
        self.replicas.wait("supervisors found it", lambda: self.installation.connected(host=leader) == 2, seconds=90)
        self.installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=self.namespace)
        self.replicas.wait(
            "the Service leads there", lambda: self.replicas.reached_by_service() == {address_of(leader)}
        )

    def is_redacted(self) -> bool:
        return all(post(proxy, "www.example.com", _KEY).body == "[REDACTED]" for proxy in self.proxies)


def _activated(supervisor: Process) -> list[str]:
    lines = (supervisor.log.parent / "audit.jsonl").read_text().splitlines()
    events = [line for line in lines if "generation_activated" in line]
    return [json.dumps(json.loads(line).get("unmapped"), sort_keys=True) for line in events]


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    installation = Installation(control_plane, tmp_path_factory.mktemp("replicas"))
    replicas = Replicas(installation)
    try:
        replicas.install()
        replicas.start()
        namespace = installation.plane.create_namespace("led")
        pods = [a_pod(f"agent-{n}", namespace=namespace, sandbox=f"agent-{n}") for n in range(2)]
        installation.apply(a_policy("outbound", namespace=namespace), *pods)
        with echo_upstream() as upstream:
            installation.wait("the trust bundle is there", lambda: _has_bundle(control_plane))
            started = [
                installation.supervisor(
                    namespace=namespace, sandbox=f"agent-{n}", pod=f"agent-{n}", upstream=upstream, operators=HOSTS
                )
                for n in range(2)
            ]
            made = World(
                replicas,
                namespace,
                proxies=(started[0][1], started[1][1]),
                supervisors=(started[0][0], started[1][0]),
            )
            made.await_served(replicas.leader())
            yield made
        installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")
    finally:
        installation.stop()
        installation.uninstall()
        installation.plane.kubectl("delete", "service", "supervisor-middleware", "-n", OPERATOR_NAMESPACE)


def _has_bundle(plane: ControlPlane) -> bool:
    bundle = ("get", "configmap", "supervisor-middleware-trust", "-n", OPERATOR_NAMESPACE)
    return plane.kubectl(*bundle, check=False).returncode == 0


@pytest.fixture(autouse=True)
def everybody_is_well(world: World) -> Iterator[None]:
    """Each test begins and ends with three replicas, both sandboxes served, and nothing changed for them."""
    world.replicas.start()
    world.await_served(world.replicas.await_leader())
    before = world.standing()
    yield
    world.replicas.start()
    world.await_served(world.replicas.await_leader())
    assert world.standing() == before
    assert world.is_redacted()


def test_three_started_at_once_are_one_leader_and_one_authority(world: World) -> None:
    replicas = world.replicas
    leader = replicas.leader()
    for host in HOSTS:
        assert replicas.is_ready(host)
        assert replicas.leads(host) == (host == leader)
        assert listens(host, world.installation.discovery_port) == (host == leader)
        assert listens(host, world.installation.enrollment_port) == (host == leader)
    made = [line for host in HOSTS for line in replicas.log(host).splitlines() if "new certificate authority" in line]
    assert len(made) == len({json.loads(line)["secret"] for line in made})
    assert replicas.epoch() >= world.standing()[0]["epoch"]
    assert '"leadership_acquired"' in _audit(world, leader)


def test_every_replica_reviews(world: World) -> None:
    bad = a_policy("bad", namespace=world.namespace, one=an_entry("acme/nobody"))
    edited = a_policy("outbound", namespace=world.namespace, redact=an_entry(include=["*.example.com"]))
    for host in HOSTS:
        world.replicas.review_at(host)
        before = _denials(world, host)

        def is_refused_here(host: str = host, before: int = before) -> bool:
            # The API server may ask the one before once more.
            assert _UNKNOWN in world.installation.refusal(bad)
            return _denials(world, host) > before

        world.replicas.wait(f"{host} is asked", is_refused_here)
        dry_run = ("apply", "--dry-run=server", "-f", "-")
        world.installation.plane.kubectl(*dry_run, input=yaml.safe_dump(edited))


def test_a_follower_stands_on_what_was_accepted_and_asks_services_itself(world: World, services: Host) -> None:
    installation = world.installation
    service = services.serve(Scripted(a_manifest("acme/led")))
    installation.apply(a_registration("led", endpoint=service.endpoint))
    installation.await_condition("smw", "led", "Ready=True/Ready")
    policy = a_policy("served", namespace=world.namespace, selector={"no": "body"}, one=an_entry("acme/led"))
    installation.apply(policy)
    installation.await_condition("sbp", "served", "Programmed=True/NoSandboxes", namespace=world.namespace)
    asked = len(service.validated)
    follower = next(h for h in HOSTS if h != world.replicas.leader())
    world.replicas.review_at(follower)
    seen = world.replicas.log(follower).count('"outcome": "allowed"')

    def apply(config: Document, *, order: int) -> str:
        entry = an_entry("acme/led", config=config, order=order)
        edited = a_policy("served", namespace=world.namespace, selector={"no": "body"}, one=entry)
        dry_run = ("apply", "--dry-run=server", "-f", "-")
        return installation.plane.kubectl(*dry_run, input=yaml.safe_dump(edited), check=False).stderr

    def is_asked() -> bool:
        assert not apply({}, order=7)
        return world.replicas.log(follower).count('"outcome": "allowed"') > seen

    world.replicas.wait("the follower is asked", is_asked)
    assert len(service.validated) == asked, "the accepted revision holds that verdict"
    assert not apply({"mode": "new"}, order=7)
    assert service.validated[asked:] == [{"mode": "new"}]
    services.stop(service)
    assert not apply({}, order=8)
    assert "led" in apply({"mode": "other"}, order=8), "which could not be asked"
    installation.plane.kubectl("delete", "sbp", "served", "-n", world.namespace)
    installation.plane.kubectl("delete", "smw", "led")


def _audit(world: World, host: str) -> str:
    return (world.installation.directory / f"operator-{host}-audit.jsonl").read_text()


def _denials(world: World, host: str) -> int:
    return world.replicas.log(host).count('"outcome": "denied"')


def test_a_leader_that_ends_cleanly_hands_over(world: World) -> None:
    replicas = world.replicas
    old, epoch = replicas.leader(), replicas.epoch()
    transitions = replicas.lease()["spec"]["leaseTransitions"]
    began = time.monotonic()
    replicas.processes[old].stop()
    running = replicas.processes[old].running
    assert running is not None
    assert running.returncode == 0, "by itself, not by force"
    assert "the lease is released" in replicas.log(old)
    assert '"leadership_lost"' in _audit(world, old)
    new = replicas.await_leader(other_than=old)
    _log.info("another led %.2f s after SIGTERM", time.monotonic() - began)
    assert replicas.epoch() > epoch
    assert replicas.lease()["spec"]["leaseTransitions"] == transitions + 1
    world.await_served(new)


def test_a_leader_that_is_killed_is_replaced(world: World) -> None:
    replicas = world.replicas
    old, epoch = replicas.leader(), replicas.epoch()
    began = time.monotonic()
    replicas.processes[old].kill()
    assert world.is_redacted()
    new = replicas.await_leader(other_than=old)
    _log.info("another led and served %.2f s after SIGKILL", time.monotonic() - began)
    assert replicas.epoch() > epoch
    world.await_served(new)


def test_a_leader_that_was_stopped_past_its_lease_neither_writes_nor_serves_when_it_wakes(world: World) -> None:
    replicas, installation = world.replicas, world.installation
    old = replicas.leader()
    replicas.send(old, signal.SIGSTOP)
    try:
        new = replicas.await_leader(other_than=old)
        # What it does not know when it wakes: it will want to accept this one.
        installation.apply(a_policy("meanwhile", namespace=world.namespace, selector={"no": "body"}))
        installation.await_condition("sbp", "meanwhile", "Programmed=True/NoSandboxes", namespace=world.namespace)
        epoch = installation.get("sbp", "meanwhile", namespace=world.namespace)["status"]["accepted"]["epoch"]
        assert epoch == replicas.epoch()
        before = _versions(installation)
        holder = replicas.lease()["spec"]["holderIdentity"]
        said = len(replicas.log(old))
    finally:
        replicas.send(old, signal.SIGCONT)
    replicas.wait("it knows", lambda: "this operator leads no more" in replicas.log(old)[said:])
    ports = installation.discovery_port, installation.enrollment_port
    replicas.wait("it serves nobody", lambda: not any(listens(old, port) for port in ports))
    world.await_served(new)
    after = _versions(installation)
    outbound = f"sandboxpolicies/{world.namespace}/outbound"
    # Supervisors whose stream to it ended came to the new leader, which counts them.
    assert {k: v for k, v in after.items() if k != outbound} == {k: v for k, v in before.items() if k != outbound}
    assert replicas.lease()["spec"]["holderIdentity"] == holder
    assert replicas.leader() == new
    assert replicas.is_ready(old)
    replicas.review_at(old)
    installation.plane.kubectl("delete", "sbp", "meanwhile", "-n", world.namespace)
    bad = a_policy("bad", namespace=world.namespace, one=an_entry("acme/nobody"))
    assert _UNKNOWN in installation.refusal(bad)


def _versions(installation: Installation) -> dict[str, str]:
    """The resourceVersion of everything an operator writes, but the Lease."""
    found = {}
    for kind in ("sandboxpolicies", "policyrevisions", "configmaps", "secrets", "endpointslices"):
        listed = json.loads(installation.plane.kubectl("get", kind, "-A", "-o", "json").stdout)["items"]
        for item in listed:
            metadata = item["metadata"]
            found[f"{kind}/{metadata.get('namespace', '')}/{metadata['name']}"] = metadata["resourceVersion"]
    return found


def test_a_lease_that_is_deleted_is_written_again(world: World) -> None:
    replicas = world.replicas
    epoch = replicas.epoch()
    world.installation.plane.kubectl("delete", *LEASE)
    replicas.wait("there is a lease", lambda: _holder(replicas) != "")
    replicas.await_leader()
    assert replicas.epoch() >= epoch


def test_a_stranger_who_holds_the_lease_is_respected_for_as_long_as_it_renews(world: World) -> None:
    replicas = world.replicas
    old, epoch = replicas.leader(), replicas.epoch()
    _put(world, holder="stranger", epoch=epoch)
    replicas.wait("nobody leads", lambda: not any(replicas.leads(h) for h in HOSTS))
    assert not any(listens(h, world.installation.discovery_port) for h in HOSTS)
    assert "somebody else holds the lease" in replicas.log(old)
    assert world.is_redacted()
    replicas.await_leader()
    assert replicas.epoch() > epoch
    assert _holder(replicas) != "stranger"


def test_a_reinstall_and_a_restored_lease_move_forward(world: World) -> None:
    replicas, plane = world.replicas, world.installation.plane
    # A leader whose clock was ahead has accepted a policy; then there is no Lease any more.
    replicas.stop()
    ahead = int(time.time()) + 1_000_000
    _put(world, holder="", epoch=ahead)
    replicas.start()
    assert replicas.epoch() == ahead + 1
    world.installation.apply(a_policy("ahead", namespace=world.namespace, selector={"no": "body"}))
    world.installation.await_condition("sbp", "ahead", "Programmed=True/NoSandboxes", namespace=world.namespace)
    replicas.stop()
    plane.kubectl("delete", *LEASE)
    replicas.start()
    assert replicas.epoch() == ahead + 2
    assert replicas.lease()["spec"]["leaseTransitions"] == 0

    # etcd was restored in part, as it were: the Lease is older than what it once protected.
    replicas.stop()
    _put(world, holder="", epoch=5)
    replicas.start()
    assert replicas.epoch() > ahead + 1
    world.await_served(replicas.leader())
    plane.kubectl("delete", "sbp", "ahead", "-n", world.namespace)


def _holder(replicas: Replicas) -> str:
    found = replicas.installation.plane.kubectl("get", *LEASE, "-o", "json", check=False).stdout
    return str(json.loads(found)["spec"].get("holderIdentity", "")) if found else ""


def _put(world: World, *, holder: str, epoch: int) -> None:
    """Write the Lease as its holder would."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    patch = {
        "metadata": {"annotations": {EPOCH: str(epoch)}},
        "spec": {"holderIdentity": holder or None, "renewTime": now, "leaseDurationSeconds": 10},
    }
    world.installation.plane.kubectl("patch", *LEASE, "--type=merge", "-p", json.dumps(patch))
