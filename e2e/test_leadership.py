"""Three replicas: one leads, whatever becomes of it; all review; sandboxes run what they ran, under the next leader.

Beside one whole sandbox a fleet of supervisors stands where leaders change hands: all of them come to whoever leads next,
and are offered what they do not run yet, once, and nothing else.
"""

import json
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.crowd import CHANGED, GROUPS, RACING, UNSEEN, Crowd, members_of
from e2e.fleet import most_within
from e2e.harness import Installation, listens
from e2e.led import World, led
from e2e.objects import Document, a_policy, a_registration, an_entry
from e2e.replicas import EPOCH, HOSTS, LEASE, Replicas
from e2e.services import Host, Scripted, a_manifest

_UNKNOWN = "no accepted registration serves this binding"


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with led(control_plane, tmp_path_factory.mktemp("replicas")) as made:
        yield made


@pytest.fixture(autouse=True)
def everybody_is_well(world: World) -> Iterator[None]:
    """Each test begins and ends with three replicas, the sandbox served, and nothing changed for it."""
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
    assert '"leadership_acquired"' in world.audited(leader)


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


def _denials(world: World, host: str) -> int:
    return world.replicas.log(host).count('"outcome": "denied"')


@pytest.fixture
def crowd(world: World) -> Iterator[Crowd]:
    with world.grounds.crowd() as crowd:
        world.await_served(world.replicas.leader(), crowd=len(crowd.fleet.members))
        yield crowd


def test_every_stream_moves_from_a_killed_leader_to_the_next_and_from_one_that_ends_well_to_the_third(
    world: World, crowd: Crowd
) -> None:
    replicas, before = world.replicas, crowd.fleet.standing()
    first, epoch, edited = replicas.leader(), replicas.epoch(), crowd.accepted()
    replicas.review_at(next(host for host in HOSTS if host != first))

    # One change that the leader may or may not have stored when it dies, and one that it has not even seen.
    crowd.edit(RACING)
    replicas.send(first, signal.SIGSTOP)
    died = time.monotonic()
    crowd.edit(UNSEEN)
    replicas.processes[first].kill()
    assert world.is_redacted()
    second = replicas.await_leader(other_than=first)
    assert replicas.epoch() > epoch
    crowd.await_moved(since=died)
    crowd.await_programmed()
    accepted, after = crowd.accepted(), crowd.fleet.standing()
    for policy in accepted.keys() - set(CHANGED):
        assert accepted[policy] == edited[policy]
    for policy in CHANGED:
        assert accepted[policy]["revision"] > edited[policy]["revision"]
        assert accepted[policy]["digest"] != edited[policy]["digest"]
    for group in GROUPS:
        (ran,), (runs,) = ({standing[name] for name in members_of(group)} for standing in (before, after))
        if group in CHANGED:
            assert runs.active != ran.active
            assert runs.offers == ran.offers + 1
        else:
            assert runs == ran

    transitions, epoch, told = replicas.lease()["spec"]["leaseTransitions"], replicas.epoch(), time.monotonic()
    replicas.processes[second].stop()
    running = replicas.processes[second].running
    assert running is not None
    assert running.returncode == 0, "by itself, not by force"
    assert "the lease is released" in replicas.log(second)
    assert '"leadership_lost"' in world.audited(second)
    third = replicas.await_leader(other_than=second)
    assert third != first
    assert replicas.epoch() > epoch
    assert replicas.lease()["spec"]["leaseTransitions"] == transitions + 1
    crowd.await_moved(since=told)
    assert most_within(0.1, crowd.fleet.ends(since=told)) < len(after) * 0.8, "one is sent away after the other"
    world.await_served(third, crowd=len(after))
    assert (crowd.accepted(), crowd.fleet.standing()) == (accepted, after)


def test_a_leader_that_was_stopped_past_its_lease_neither_writes_nor_serves_when_it_wakes(
    world: World, crowd: Crowd
) -> None:
    replicas, installation, standing = world.replicas, world.installation, crowd.fleet.standing()
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
        woke = time.monotonic()
    replicas.wait("it knows", lambda: "this operator leads no more" in replicas.log(old)[said:])
    ports = installation.discovery_port, installation.enrollment_port
    replicas.wait("it serves nobody", lambda: not any(listens(old, port) for port in ports))
    # They had open streams to it all the time.
    crowd.await_moved(since=woke)
    world.await_served(new, crowd=len(standing))
    crowd.await_programmed()
    assert crowd.fleet.standing() == standing
    after = _versions(installation)
    # The new leader counts those who came to it.
    counted = {f"sandboxpolicies/{world.namespace}/outbound"}
    counted |= {f"sandboxpolicies/{crowd.namespace}/{policy}" for policy in crowd.accepted()}
    assert {k: v for k, v in after.items() if k not in counted} == {
        k: v for k, v in before.items() if k not in counted
    }
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
