"""What the drills share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.drill import Drill, a_drill


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    """Set up, and not started yet."""
    with a_drill(tmp_path / "rig") as made:
        yield made
