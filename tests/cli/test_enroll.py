"""`smw enroll` from the command line: what it needs, what contradicts itself, and what each end is called."""

from pathlib import Path

import pytest

from tests.cli.commands import Smw, in_a_process
from tests.pki.builders import an_authority

FLAGS = ("--sandbox", "agent", "--token-file", "token", "--trust-bundle", "ca.crt")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMW_ENROLLMENT_PORT", "1")
    monkeypatch.setenv("SMW_DISCOVERY_PORT", "1")
    (tmp_path / "token").write_text("canary")
    (tmp_path / "ca.crt").write_bytes(an_authority().certificate_pem)
    return tmp_path


def test_it_needs_a_directory_and_a_sandbox(smw: Smw) -> None:
    shown = smw("enroll")
    assert shown.code == 2
    assert shown.err == "smw: settings: --out or SMW_OUT: is required; --sandbox or SMW_SANDBOX: is required\n"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--once", "--keep"), "--once, --wait and --keep exclude each other"),
        (("--wait", "1m", "--keep"), "--once, --wait and --keep exclude each other"),
        (("--wait", "soon"), "--wait must be an integer with the suffix"),
        (("--wait", "0s"), "--wait must be some time; --once tries once"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(smw: Smw, flags: tuple[str, ...], problem: str) -> None:
    shown = smw("enroll", "--out", "certs", *FLAGS, *flags)
    assert (shown.code, shown.out) == (2, "")
    assert problem in shown.err


@pytest.mark.parametrize("flags", [("--once",), ("--wait", "100ms")])
def test_nobody_there_is_no_answer(flags: tuple[str, ...]) -> None:
    shown = in_a_process("enroll", "--out", "certs", *FLAGS, *flags)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.splitlines()[-1].startswith("smw: ")
    assert "canary" not in shown.err


def test_without_a_trust_bundle_nobody_is_asked(folder: Path) -> None:
    (folder / "ca.crt").unlink()
    shown = in_a_process("enroll", "--out", "certs", *FLAGS)
    assert shown.code == 2
    assert "nobody is trusted on first use" in shown.err
