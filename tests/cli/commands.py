"""`smw` as one types it: in this process where it ends by itself, in one of its own where it runs on."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor_middleware.cli import main as cli

BIN = Path(sys.executable).parent
MODULE = (sys.executable, "-m", "supervisor_middleware.cli")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


class Smw:
    """Calls the entry point; standard output is no terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["smw", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capsys.readouterr()
        return Outcome(int(ended.value.code or 0), out, err)


def in_a_process(
    *arguments: str | Path, command: tuple[str, ...] = MODULE, cwd: Path | None = None, **environment: str
) -> Outcome:
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
