"""The operator, or what it keeps everything in, goes away under load: every request is accounted for by four witnesses.

The other drills need no cluster: `tests/drills`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import Installation, a_pod, read, service_credentials
from supervisor_middleware.cli.processes import Process
from supervisor_middleware.middleware import TlsFiles
from supervisor_middleware.pki.credential_files import write_credentials
from tests.drills.accounting import Tally
from tests.drills.drill import KILLED, a_policy, a_registration
from tests.drills.traffic import Load, Peers, traffic

_PATIENCE: Final = 90.0
_MINUTE: Final = 60.0
"""More than the lease, its renewal and the webhook's deadline together."""
_CALM: Final = 0.3
"""Seconds between the requests of one client: a minute of them is for what happens, not for how much."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """A sandbox's supervisor, and the port of its proxy."""

    process: Process
    proxy: int

    @property
    def audit(self) -> Path:
        """What it says of each decision."""
        return self.process.log.parent / "audit.jsonl"

    def is_serving(self) -> bool:
        """Whether it has a generation to judge by."""
        return read(int(self.process.environment["SMW_HEALTH_PORT"]), "/readyz")[0] == 200


@dataclass(slots=True)
class World:
    """Two sandboxes of one policy with their supervisors, and who stands on both sides of them."""

    installation: Installation
    peers: Peers
    namespace: str
    agent: Supervised
    other: Supervised
    mark: int = 1
    published: set[str] = field(default_factory=lambda: {"1"})

    def publish(self) -> None:
        """One generation more: the API server has it when this returns."""
        self.mark += 1
        self.published.add(str(self.mark))
        policy = yaml.safe_dump(a_policy(self.mark, namespace=self.namespace))
        self.until("it is applied", lambda: self._is_applied(policy))

    def await_served(self, load: Load) -> None:
        """Until clients see it."""
        self.until(f"generation {self.mark} judges", lambda: load.newest() == str(self.mark))

    def await_answers(self, load: Load, count: int) -> None:
        """Until `count` requests more were answered."""
        wanted = load.count() + count
        self.until(f"{count} more answers", lambda: load.count() >= wanted)

    def has_other_revisions(self, before: list[str]) -> bool:
        """Whether what is stored has changed."""
        return self.installation.revisions() != before

    def is_leaderless(self) -> bool:
        """Whether the operator runs and does not lead."""
        return self.installation.metrics().get("leader") == 0

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait."""
        self.installation.wait(what, is_so, seconds=_PATIENCE)

    def await_programmed(self) -> None:
        """Until both supervisors say that they run what was published last."""
        self.installation.await_condition(
            "sbp", "outbound", "Programmed=True/Programmed", namespace=self.namespace, seconds=_PATIENCE
        )
        supervisors = self.installation.get("sbp", "outbound", namespace=self.namespace)["status"]["supervisors"]
        assert supervisors["summary"] == "2/2"

    def account(self, load: Load, *, of: Supervised, refused: frozenset[str] = frozenset()) -> Tally:
        """No rule is broken, and nothing is refused but what is forbidden, or `refused`."""
        tally = load.tally(audit=of.audit, published=frozenset(self.published))
        assert not tally.problems, "\n".join(tally.problems[:10])
        assert tally.refused["middleware_denied"] > 0
        assert set(tally.refused) <= {"middleware_denied", *refused}, tally.refused
        return tally

    def _is_applied(self, policy: str) -> bool:
        return self.installation.plane.kubectl("apply", "-f", "-", input=policy, check=False).returncode == 0


_SANDBOXES: Final = ("agent", "other")


@pytest.fixture(scope="module")
def world(installation: Installation) -> Iterator[World]:
    folder = installation.directory
    write_credentials(folder / "recorder-tls", credentials := service_credentials())
    with traffic(tls=TlsFiles(directory=folder / "recorder-tls", client_ca=installation.trust_bundle())) as peers:
        namespace = installation.plane.create_namespace("drills")
        bundle = credentials.trust_bundle_pem.decode()
        installation.apply(
            a_registration(peers.service.endpoint, tls={"caBundle": bundle}),
            *(a_pod(f"{sandbox}-0", namespace=namespace, sandbox=sandbox) for sandbox in _SANDBOXES),
        )
        installation.await_condition("smw", "recorder", "Ready=True/Ready")
        installation.apply(a_policy(1, namespace=namespace))
        agent, other = (
            installation.supervisor(
                namespace=namespace, sandbox=sandbox, pod=f"{sandbox}-0", upstream=peers.upstream_port
            )
            for sandbox in _SANDBOXES
        )
        world = World(installation, peers, namespace, Supervised(*agent), Supervised(*other))
        world.await_programmed()
        yield world
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_an_operator_killed_while_it_publishes_leaves_every_request_to_one_generation(world: World) -> None:
    with world.peers.load(world.agent.proxy) as load:
        for is_stored_first in (False, True):
            world.await_served(load)
            before = world.installation.revisions()
            world.publish()
            if is_stored_first:
                world.until("the revision is stored", partial(world.has_other_revisions, before))
            world.installation.operator.kill()
            world.await_answers(load, 20)
            world.installation.operator.start()
            world.await_served(load)
        world.await_programmed()
    tally = world.account(load, of=world.agent)
    assert not tally.unanswered
    assert set(tally.allowed) == world.published


def test_an_etcd_that_is_down_for_a_minute_changes_nothing_for_sandboxes_nor_for_one_that_restarts_in_it(
    world: World, control_plane: ControlPlane
) -> None:
    agent, other = world.agent, world.other
    with world.peers.load(agent.proxy, pause=_CALM) as load, world.peers.load(other.proxy, pause=_CALM) as beside:
        for one in (load, beside):
            world.await_served(one)
        before = str(world.mark)
        control_plane.stop_etcd()
        over = time.monotonic() + _MINUTE
        world.until("the operator leads no more", world.is_leaderless)
        agent.process.kill()
        load.process += 1
        agent.process.start()
        world.until("it serves what it kept", agent.is_serving)
        for one in (load, beside):
            world.await_answers(one, 10)
        world.until("the minute is over", lambda: time.monotonic() > over)
        assert world.is_leaderless()
        for one in (load, beside):
            world.await_answers(one, 10)
            assert one.newest() == before
        control_plane.revive()
        world.publish()
        for one in (load, beside):
            world.await_served(one)
        world.await_programmed()
        world.installation.operator.check()
    assert set(world.account(load, of=agent, refused=KILLED).allowed) == {before, str(world.mark)}
    tally = world.account(beside, of=other)
    assert not tally.unanswered
    assert set(tally.allowed) == {before, str(world.mark)}
