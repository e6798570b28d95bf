"""Files that are replaced whole or not at all."""

from pathlib import Path

import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.files import Mode, replace_file


def test_a_failed_rename_leaves_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(InvalidInput, match="directory"):
        replace_file(tmp_path / "target", b"content", mode=Mode.PRIVATE)
    assert [p.name for p in tmp_path.iterdir()] == ["target"]
