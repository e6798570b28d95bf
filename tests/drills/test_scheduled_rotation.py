"""A root whose time has come is rotated by the process itself, not before and by nobody's request, while requests run."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.profiles import CLOCK_SKEW
from supervisor_middleware.pki.rotation_files import read_status
from supervisor_middleware.pki.store import load_or_create_authority
from supervisor_middleware.pki.succession import Succession
from tests.drills.clocks import SKEW, WallClock, a_wall_clock
from tests.drills.drill import Drill, a_drill
from tests.drills.test_rotation import leaf, root

# The shortest life that the settings allow; a third of it is left when the root is due.
LIFETIME: Final = timedelta(days=30)
AHEAD: Final = timedelta(seconds=SKEW - 30)
STAGES: Final = ["root_prepared", "root_activated", "root_tainted", "root_revoked", "root_steady"]


@pytest.fixture
def aged(tmp_path: Path) -> Iterator[Drill]:
    """Over a root that is due within minutes: so far ahead of the others may the control plane's clock be."""
    now = datetime.now(UTC)
    made = now + AHEAD - 2 * LIFETIME / 3
    authority = load_or_create_authority(
        tmp_path / "rig" / "state", trust_domain="openshell.internal", now=made, lifetime=LIFETIME
    )
    roots = Succession(current=authority)
    assert roots.is_due(now + AHEAD)
    assert not roots.is_due(now + AHEAD - CLOCK_SKEW / 2)
    with a_drill(tmp_path / "rig") as drill:
        yield drill


@pytest.fixture
def clock(aged: Drill, tmp_path: Path) -> WallClock:
    """The control plane's, which shows the time."""
    made = a_wall_clock(tmp_path / "clock", seconds=0)
    control = aged.rig.control
    control.environment = {**control.environment, **made.environment, "SMW_ROOT_OVERLAP": "1s"}
    return made


def audited(drill: Drill) -> list[Mapping[str, Any]]:
    """What was said of the root."""
    lines = (drill.rig.state / "audit.jsonl").read_text().splitlines()
    events = [json.loads(line)["unmapped"] for line in lines]
    return [event for event in events if str(event.get("change", "")).startswith("root_")]


def test_a_root_that_is_due_is_rotated_by_itself_under_load_and_no_request_fails(
    aged: Drill, clock: WallClock
) -> None:
    aged.start()
    bundle = aged.rig.state / "ca.crt"
    before = root(bundle)
    with aged.load() as load:
        aged.await_served(load)
        aged.until("the root is looked after", lambda: read_status(aged.rig.state)["stage"] == "steady")
        aged.await_answers(load, 20)
        assert audited(aged) == []
        clock.set(int(AHEAD.total_seconds()))
        aged.until("a rotation is over", lambda: len(audited(aged)) == len(STAGES))
        aged.roll(load)
        aged.await_answers(load, 20)
        aged.until("all is well", aged.rig.is_programmed)
    tally = aged.account(load)
    assert not tally.unanswered
    assert not tally.failed
    events = audited(aged)
    assert [event["change"] for event in events] == STAGES
    assert events[0]["reason"] == "scheduled"
    assert not any(event.get("request") for event in events)
    after = root(bundle)
    assert after != before
    leaf(aged).verify_directly_issued_by(after)
    assert parse_bundle((aged.agent.folder / "state" / "trust.pem").read_bytes()) == (after,)
    # Whatever root issued their certificates, the service knew who called.
    assert aged.peers.service.callers["evaluates"] == {"spiffe://openshell.internal/ns/team-a/sandbox/agent"}
