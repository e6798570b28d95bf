"""Completion as bash asks for it: the script that `smw --show-completion bash` prints, sourced and called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import BIN, in_a_process

BASH = shutil.which("bash")
CALL = """
source <(smw --show-completion bash)
complete -p smw >/dev/null || exit 3
COMP_WORDS=({words}); COMP_CWORD={last}
_smw_completion smw
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("smw", "con"), ["convert"]),
        (("smw", "token", ""), ["create", "revoke"]),
        (("smw", "convert", "--to", ""), ["resources", "toml", "openshell"]),
        (("smw", "convert", "--na"), ["--namespace", "--name"]),
        (("smw", "validate", "--format", "g"), ["github"]),
    ],
)
def test_bash_completes_commands_options_and_values(typed: tuple[str, ...], offered: list[str]) -> None:
    script = CALL.format(words=" ".join(f'"{w}"' for w in typed), last=len(typed) - 1)
    done = subprocess.run(
        [BASH or "bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == offered


def test_installing_writes_to_the_home_folder_and_bash_sources_it(tmp_path: Path) -> None:
    shown = in_a_process("--install-completion", "bash", HOME=str(tmp_path))
    assert shown.code == 0
    (script,) = tmp_path.glob(".bash_completions/*.sh")
    assert str(script) in (tmp_path / ".bashrc").read_text()
