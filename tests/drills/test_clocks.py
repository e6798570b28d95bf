"""A wall clock that is five minutes off, or is set while everything runs: certificates and order hold."""

import json
import time
from pathlib import Path

import pytest

from supervisor_middleware.cli.processes import Process
from tests.drills.clocks import SKEW, a_wall_clock
from tests.drills.drill import KILLED, Drill


@pytest.mark.parametrize("whose", ["the control plane", "the supervisor"])
@pytest.mark.parametrize("first", [SKEW, -SKEW])
def test_a_clock_that_is_off_and_jumps_changes_nothing(drill: Drill, tmp_path: Path, whose: str, first: int) -> None:
    process = drill.rig.control if whose == "the control plane" else drill.agent.process
    clock = a_wall_clock(tmp_path / "clock", seconds=first)
    process.environment = {**process.environment, **clock.environment}
    drill.start()
    assert abs(_audited_at(process, drill) - time.time() - first) < SKEW / 2
    with drill.load() as load:
        drill.await_served(load)
        drill.roll(load)
        clock.set(0)
        drill.await_answers(load, 5)
        drill.roll(load)
        _restart(process, drill)
        load.process += process is drill.agent.process
        drill.await_answers(load, 5)
        drill.roll(load)
        drill.until("all is well", drill.rig.is_programmed)
    drill.account(load, refused=KILLED if process is drill.agent.process else frozenset())


def _audited_at(process: Process, drill: Drill) -> float:
    """What the process itself takes the time to be."""
    folder = drill.rig.state if process is drill.rig.control else drill.agent.folder
    last: float = json.loads((folder / "audit.jsonl").read_text().splitlines()[-1])["time"]
    return last / 1000


def _restart(process: Process, drill: Drill) -> None:
    process.kill()
    process.start()
