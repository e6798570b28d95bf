"""SIGKILL at the worst moment: whoever comes back serves one whole generation, from the first request on."""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from supervisor_middleware.cli.processes import Process
from tests.apps.rig import probe
from tests.drills.drill import KILLED, Drill, a_policy

_LARGE = partial(a_policy, filler="x" * 60_000)
_HITS = 2
_ROUNDS = 12
_PAUSE = 0.0002


def test_a_supervisor_killed_while_it_persists_comes_back_with_a_whole_generation(drill: Drill) -> None:
    drill.start()
    folder, hits = drill.agent.folder / "state" / "generation", 0
    with drill.load() as load:
        drill.await_served(load)
        for _ in range(_ROUNDS):
            drill.publish(_LARGE)
            _kill_at_write(drill.agent.process, folder, number=1)
            drill.supervisor_was_killed(load)
            hits += any(_half_written(folder))
            drill.agent.process.start()
            drill.until("it serves", lambda: probe(drill.agent.health, "/readyz")[0] == 200)
            drill.await_answers(load, 5)
            drill.await_served(load)
            if hits >= _HITS:
                break
    assert hits
    drill.account(load, refused=KILLED)


def test_a_control_plane_killed_while_it_publishes_leaves_every_request_to_one_generation(drill: Drill) -> None:
    drill.start()
    hits = list[bool]()
    with drill.load() as load:
        drill.await_served(load)
        for number in (1, 2, 4):
            drill.publish(_LARGE)
            # The revision, the status that names it, and what tells people of it; a busy machine may look away.
            hits.append(_kill_at_write(drill.rig.control, drill.rig.state, number=number))
            drill.await_answers(load, 5)
            drill.rig.control.start()
            drill.await_served(load)
        drill.until("all is well", drill.rig.is_programmed)
    assert any(hits)
    tally = drill.account(load)
    assert not tally.unanswered
    assert set(tally.allowed) == drill.published


def _kill_at_write(process: Process, folder: Path, *, number: int) -> bool:
    """SIGKILL while the `number`th file is being written below `folder`, or after a while; whether it was seen."""
    end, seen = time.monotonic() + 10, set[Path]()
    while time.monotonic() < end and len(seen) < number:
        seen.update(_half_written(folder))
        time.sleep(_PAUSE)
    process.kill()
    return len(seen) >= number


def _half_written(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):  # unlike rglob, at ease with what vanishes meanwhile
        yield from (Path(place, name) for name in (*folders, *files) if name.startswith(".staged-"))
