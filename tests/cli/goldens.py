"""Recorded output of a command: compared, or with `--rewrite-golden` written anew for the diff to be reviewed."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def check(recorded: Path, shown: str, config: pytest.Config) -> None:
    if config.getoption("--rewrite-golden"):
        recorded.write_text(shown, encoding="utf-8")
    assert shown == recorded.read_text(encoding="utf-8")
