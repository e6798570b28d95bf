"""What a supervisor needs is taken away from it, for longer than anything it holds is good for."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from supervisor_middleware.cli.status.joining import needs_at
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.pki.credentials import Credentials
from tests.apps.rig import NAMESPACE, metrics, probe
from tests.drills.disk import DiskOf, a_file_system, a_limit
from tests.drills.drill import KILLED, Drill, a_policy
from tests.drills.relay import a_network

_LARGE = partial(a_policy, filler="x" * 60_000)


def test_a_network_cut_for_longer_than_a_certificate_lives_leaves_last_known_good_in_force(drill: Drill) -> None:
    with a_network() as network:
        ports = {n: str(network.relay(int(p))) for n, p in drill.agent.process.environment.items() if n in _PORTS}
        drill.agent.process.environment = {**drill.agent.process.environment, **ports}
        drill.rig.control.environment = {**drill.rig.control.environment, "SMW_LEAF_LIFETIME": "1m"}
        folder = drill.agent.folder / "state" / "identity"
        drill.start()
        with drill.load() as load:
            drill.await_served(load)
            network.cut()
            held, served = _held(folder), load.newest()
            drill.publish()
            drill.until("it expires", lambda: _now() > held.expires_at + timedelta(seconds=1))
            drill.await_answers(load, 10)
            assert load.newest() == served
            drill.until("status names it", lambda: _needs(drill)[0].startswith(f"{_NEEDS}: its certificate ended at"))
            drill.publish()
            network.mend()
            # Nothing that it holds is good for anything any more: its join token is used. In a cluster the kubelet
            # has long put a new one there.
            log, asks = drill.agent.process.log, f"run `smw token create {NAMESPACE}/agent --state DIR`"
            drill.until("it says what it needs", lambda: asks in log.read_text())
            (drill.agent.folder / "token").write_text(drill.rig.token())
            drill.await_served(load)
            drill.until("all is well", drill.rig.is_programmed)
    tally = drill.account(load)
    assert not tally.unanswered
    assert set(tally.allowed) == {served, str(drill.mark)}
    assert _held(folder).expires_at > held.expires_at


_NEEDS = f"{NAMESPACE}/agent needs a new join token"


def _needs(drill: Drill) -> tuple[str, ...]:
    return asyncio.run(needs_at(drill.rig.state, now=_now())) or ("",)


_PORTS = ("SMW_ENROLLMENT_PORT", "SMW_DISCOVERY_PORT")


def _now() -> datetime:
    return datetime.now(UTC)


def _held(folder: Path) -> Credentials:
    held = read_credentials(folder)
    assert held is not None
    return held


@pytest.mark.parametrize("disk_of", [a_file_system, a_limit])
def test_a_supervisor_whose_disk_is_full_serves_the_newest_from_memory_and_a_restart_a_whole_older_one(
    drill: Drill, disk_of: DiskOf
) -> None:
    with disk_of(drill) as disk:
        drill.start()
        with drill.load() as load:
            drill.await_served(load)
            disk.fill()
            drill.roll(load, _LARGE)
            drill.until("it says that it is not saved", lambda: _is_saved(drill) == 0)
            drill.until("the control plane is told what is served", drill.rig.is_programmed)
            drill.rig.control.kill()
            drill.agent.process.kill()
            drill.supervisor_was_killed(load)
            disk.start()
            drill.until("it serves what it kept", lambda: probe(drill.agent.health, "/readyz")[0] == 200)
            drill.await_answers(load, 5)
            assert load.newest() == "1"
            drill.rig.control.start()
            drill.await_served(load)
            disk.free()
            drill.roll(load, _LARGE)
            drill.until("it is saved", lambda: _is_saved(drill) == 1)
    drill.account(load, refused=KILLED)


def _is_saved(drill: Drill) -> float:
    return metrics(drill.agent.health)["saved"]
