"""What the tests of the command line share."""

import pytest

from tests.cli.commands import Smw


@pytest.fixture
def smw(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Smw:
    monkeypatch.setenv("COLUMNS", "80")
    return Smw(monkeypatch, capsys)
