"""What a supervisor finds when it starts again: its own state, damaged, and what it left in the temporary directory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor_middleware.apps.scratch import PREFIX
from supervisor_middleware.supervisor.store import FILE_NAME
from tests.apps.rig import Rig, Supervised, metrics, probe


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Short: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="s-") as name:
        yield Path(name)


def defects(agent: Supervised) -> dict[str, float]:
    found = metrics(agent.health).items()
    return {n: v for n, v in found if n.startswith("state_defect{") and v}


def test_a_supervisor_that_was_killed_and_whose_state_is_damaged_is_closed_until_it_is_configured_again(
    rig: Rig, temporary: Path
) -> None:
    agent = rig.supervisor()
    agent.process.environment = {**agent.process.environment, "TMPDIR": str(temporary)}
    rig.run(agent)
    state = agent.folder / "state" / "generation" / FILE_NAME
    rig.until("last-known-good is on disk", state.exists)
    rig.control.stop()
    agent.process.kill()
    (left,) = temporary.glob(f"{PREFIX}*")
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)

    agent.process.start()
    rig.until("its proxy refuses", lambda: probe(agent.health, "/readyz")[0] == 503 and _is_refusing(agent))
    assert defects(agent) == {'state_defect{defect="corrupt"}': 1}
    (said,) = (e for e in agent.audit if e["class_uid"] == 5019 and e["unmapped"]["change"] == "state_defective")
    assert (said["severity"], said["unmapped"]["reason"]) == ("High", "corrupt")
    (ours,) = temporary.glob(f"{PREFIX}*")
    assert ours != left

    rig.control.start()
    rig.until("it is configured again", lambda: probe(agent.health, "/readyz")[0] == 200)
    rig.until("there is something new on disk", lambda: not defects(agent))
    assert bytes(content) in {p.read_bytes() for p in state.parent.iterdir() if p != state}
    agent.process.stop()
    assert list(temporary.iterdir()) == []


def _is_refusing(agent: Supervised) -> bool:
    try:
        return agent.send("api.example.com", "hello").status == 503
    except OSError:
        return False
