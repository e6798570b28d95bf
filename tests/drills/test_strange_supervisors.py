"""Supervisors that never activate, refuse everything, talk nonsense or come by the thousand: others are not kept waiting."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from supervisor_middleware.cli.processes import Process
from supervisor_middleware.distribution.complaints import PACE
from supervisor_middleware.distribution.ledger import State
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.apps.rig import metrics, pid_of
from tests.drills.babbler import AGAIN, WORD
from tests.drills.drill import Drill
from tests.drills.fleet import Fleet, a_fleet, accepts_only, join, rejects, runs_it

_THOUSAND = 1000
_CHANGES = 4
_LINES_A_CHANGE = 6
"""More than one change has the control plane say, in its log or its audit."""
_OFTEN = 100
"""Far more than is told of it."""
_ONE_OF_THREE = {"active": 1, "prepared": 2, "rejected": 1, "summary": "1/3"}
_ROOM = 128 * 1024 * 1024


def test_one_that_never_activates_and_one_that_rejects_everything_are_said_so_and_hold_up_nobody(
    drill: Drill,
) -> None:
    drill.publish()
    with a_fleet(drill, {"sleeper": accepts_only, "refuser": rejects}) as fleet:
        drill.rig.control.start()
        drill.agent.process.start()
        drill.until("the sandbox is served", lambda: _counts(drill) == _ONE_OF_THREE)
        with drill.load() as load:
            for _ in range(2):
                wanted = [len(fake.offered) + 1 for fake in fleet.values()]
                drill.roll(load)
                drill.until("both were asked", partial(_are_asked, fleet, wanted))
                drill.until("it is said so", lambda: _counts(drill) == _ONE_OF_THREE)
            fleet.cut("refuser")
            drill.until("it is back", lambda: fleet["refuser"].connections == 2)
            drill.await_answers(load, 20)
            assert drill.rig.condition("Programmed") == "False"
            assert drill.rig.condition("Ready") == "True"
            # What was said before may still be of the generation before: counts are written once a second.
            drill.until("it is still said so", lambda: _counts(drill) == _ONE_OF_THREE)
    # No digest was offered twice: neither for ever, nor after the one that was refused came back.
    assert all(len(fake.offered) == len(set(fake.offered)) for fake in fleet.values())
    assert not drill.account(load).unanswered


def test_a_thousand_supervisors_come_back_at_once_and_all_run_the_newest_generation(drill: Drill) -> None:
    drill.publish()
    everyone = f"{_THOUSAND + 1}/{_THOUSAND + 1}"
    with a_fleet(drill, {f"one-{n}": runs_it for n in range(_THOUSAND)}) as fleet:
        drill.rig.control.start()
        drill.agent.process.start()
        drill.until("all run the first", lambda: drill.rig.is_programmed(everyone))
        with drill.load() as load:
            drill.await_served(load)
            drill.rig.control.kill()
            drill.publish()
            drill.rig.control.start()
            drill.await_served(load)
            drill.until("all run the second", lambda: drill.rig.is_programmed(everyone))
        digests = {fake.active for fake in fleet.values()}
        assert len(digests) == 1
        assert all(len(fake.offered) == len(set(fake.offered)) for fake in fleet.values())
    assert not drill.account(load).unanswered


def test_one_that_reports_nonsense_at_full_speed_is_believed_nothing_about_others(drill: Drill) -> None:
    drill.start()
    with drill.load() as load, _a_babbler(drill):
        drill.await_served(load)
        drill.until("it is heard", lambda: _is_heard(drill))
        before, told, began = _resident(drill.rig.control), _told(drill), time.monotonic()
        attempts = _attempts(drill)
        for _ in range(_CHANGES):
            drill.roll(load)
            drill.await_answers(load, 20)
        drill.until("it was sent away often", lambda: _attempts(drill) >= attempts + _OFTEN)
        assert _resident(drill.rig.control) - before < _ROOM
        _is_little(_told(drill), told, seconds=time.monotonic() - began)
        registration = drill.rig.status("SupervisorMiddleware", "recorder")
        conditions = {c["type"]: c["status"] for c in registration["conditions"]}
        assert conditions.get("Drifted", "False") == "False"
        assert conditions["Ready"] == "True"
        assert not any(WORD in series for series in metrics(drill.rig.health))
        assert WORD not in (drill.rig.state / "status.json").read_text()
        assert WORD not in (drill.rig.state / "audit.jsonl").read_text()
        assert WORD not in drill.rig.control.log.read_text()
    assert not drill.account(load).unanswered


def _are_asked(fleet: Fleet, wanted: list[int]) -> bool:
    return [len(fake.offered) for fake in fleet.values()] == wanted


def _counts(drill: Drill) -> Mapping[str, Any]:
    found = drill.rig.status().get("supervisors", {})
    return {k: found.get(k, 0) for k in _ONE_OF_THREE}


@dataclass(frozen=True, slots=True)
class _Told:
    """What the control plane has said of everything: lines of its log and of its audit, and series of metrics."""

    logged: int
    rejected: int
    audited: int
    series: frozenset[str]


def _told(drill: Drill) -> _Told:
    log, audit = drill.rig.control.log.read_text(), (drill.rig.state / "audit.jsonl").read_text()
    return _Told(
        logged=log.count("\n"),
        rejected=log.count('"a supervisor rejected a generation"'),
        audited=audit.count("\n"),
        series=frozenset(metrics(drill.rig.health)),
    )


def _is_little(now: _Told, before: _Told, *, seconds: float) -> None:
    """However often it comes and whatever it says: so much is told of it, and no more."""
    rejected = now.rejected - before.rejected
    assert rejected <= _CHANGES + 1  # of the generation that was there before, and of each that came
    complaints = PACE.burst + PACE.rate * seconds + 1
    assert now.logged - before.logged <= complaints + rejected + _LINES_A_CHANGE * _CHANGES
    assert now.audited - before.audited <= rejected + _LINES_A_CHANGE * _CHANGES
    reasons = [name.removeprefix("REJECTION_REASON_").lower() for name, _ in pb.RejectionReason.items()]
    rejections = {f'generation_rejections_{n}{{reason="{r}"}}' for n in ("total", "created") for r in reasons}
    states = {f'supervisors{{state="{s}"}}' for s in (*State, "not_connected")}
    assert now.series - before.series <= rejections | states


def _attempts(drill: Drill) -> int:
    """Of the one that babbles."""
    return (drill.rig.folder / "babbler.log").read_text().count(AGAIN)


@contextmanager
def _a_babbler(drill: Drill) -> Iterator[None]:
    folder = drill.rig.folder / "liar"
    write_credentials(folder, join(drill.rig, ["liar"])["liar"])
    process = Process(
        name="babbler",
        module="tests.drills.babbler",
        arguments=(f"127.0.0.1:{drill.rig.control.environment['SMW_DISCOVERY_PORT']}", str(folder)),
        log=drill.rig.folder / "babbler.log",
        environment={"PYTHONPATH": os.pathsep.join((str(_ROOT), os.environ.get("PYTHONPATH", "")))},
    )
    process.start()
    try:
        yield
        process.check()
    finally:
        process.kill()


_ROOT = Path(__file__).parents[2]


def _is_heard(drill: Drill) -> bool:
    return bool(drill.rig.status().get("supervisors", {}).get("connected", 0) == 2)


def _resident(process: Process) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid_of(process)}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
