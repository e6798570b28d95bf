"""What the tests of the apps share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.rig import Rig, a_rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with a_rig(tmp_path / "rig") as made:
        yield made
