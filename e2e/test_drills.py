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
from e2e.harness import Installation, a_pod, service_credentials
from supervisor_middleware.control.lease import RENEW_DEADLINE
from supervisor_middleware.middleware import TlsFiles
from supervisor_middleware.model.lease import LEASE_DURATION
from supervisor_middleware.pki.credential_files import write_credentials
from tests.drills.accounting import Tally
from tests.drills.drill import a_policy, a_registration
from tests.drills.traffic import Load, Peers, traffic

_PATIENCE: Final = 90.0
_WEBHOOK_SECONDS: Final = 10.0


@dataclass(slots=True)
class World:
    """One sandbox with its supervisor, and who stands on both sides of it."""

    installation: Installation
    peers: Peers
    namespace: str
    audit: Path
    proxy: int
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

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait."""
        self.installation.wait(what, is_so, seconds=_PATIENCE)

    def account(self, load: Load) -> Tally:
        """No rule is broken, everything was answered, and nothing is refused but what is forbidden."""
        tally = load.tally(audit=self.audit, published=frozenset(self.published))
        assert not tally.problems, "\n".join(tally.problems[:10])
        assert not tally.unanswered
        assert set(tally.refused) == {"middleware_denied"}, tally.refused
        return tally

    def _is_applied(self, policy: str) -> bool:
        return self.installation.plane.kubectl("apply", "-f", "-", input=policy, check=False).returncode == 0


@pytest.fixture(scope="module")
def world(installation: Installation) -> Iterator[World]:
    folder = installation.directory
    write_credentials(folder / "recorder-tls", credentials := service_credentials())
    with traffic(tls=TlsFiles(directory=folder / "recorder-tls", client_ca=installation.trust_bundle())) as peers:
        namespace = installation.plane.create_namespace("drills")
        bundle = credentials.trust_bundle_pem.decode()
        installation.apply(
            a_registration(peers.service.endpoint, tls={"caBundle": bundle}),
            a_pod("agent-0", namespace=namespace, sandbox="agent"),
        )
        installation.await_condition("smw", "recorder", "Ready=True/Ready")
        installation.apply(a_policy(1, namespace=namespace))
        process, proxy = installation.supervisor(
            namespace=namespace, sandbox="agent", pod="agent-0", upstream=peers.upstream_port
        )
        installation.await_condition("sbp", "outbound", "Programmed=True/Programmed", namespace=namespace, seconds=90)
        yield World(installation, peers, namespace, process.log.parent / "audit.jsonl", proxy)
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_an_operator_killed_while_it_publishes_leaves_every_request_to_one_generation(world: World) -> None:
    with world.peers.load(world.proxy) as load:
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
        world.installation.await_condition(
            "sbp", "outbound", "Programmed=True/Programmed", namespace=world.namespace, seconds=_PATIENCE
        )
    assert set(world.account(load).allowed) == world.published


def test_an_etcd_that_is_down_for_longer_than_any_deadline_changes_nothing_for_sandboxes(
    world: World, control_plane: ControlPlane
) -> None:
    with world.peers.load(world.proxy) as load:
        world.await_served(load)
        before = world.mark
        control_plane.stop_etcd()
        over = time.monotonic() + LEASE_DURATION + RENEW_DEADLINE + _WEBHOOK_SECONDS
        world.until("the operator leads no more", lambda: world.installation.metrics().get("leader") == 0)
        world.until("every deadline has passed", lambda: time.monotonic() > over)
        world.await_answers(load, 20)
        assert load.newest() == str(before)
        control_plane.start_etcd()
        world.publish()
        world.await_served(load)
        world.installation.operator.check()
    assert set(world.account(load).allowed) == {str(before), str(world.mark)}
