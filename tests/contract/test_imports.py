"""The architecture as a checked contract: who may import whom, and what must not exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_imports_keep_the_contracts() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_folder_operator_is_no_package_since_it_would_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


@pytest.mark.parametrize("package", ["model", "compiler"])
def test_the_core_has_no_clock_no_chance_and_no_files(package: str) -> None:
    impure = re.compile(r"^(import|from) (time|random|secrets|uuid|os|pathlib)\b|\bnow\(|\bopen\(", re.MULTILINE)
    modules = list((ROOT / "operator" / "supervisor_middleware" / package).glob("*.py"))
    assert modules
    assert [m.name for m in modules if impure.search(m.read_text())] == []
