"""`smw token`: one token for one sandbox, its end, or a reason."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor_middleware.pki.store import TOKENS_FILE, join_tokens
from supervisor_middleware.pki.tokens import JoinTokenRefused
from tests.cli.commands import Smw


def test_a_token_is_the_only_output_and_redeems_once(smw: Smw, tmp_path: Path) -> None:
    shown = smw("token", "create", "quickstart/agent", "--state", tmp_path)
    assert (shown.code, shown.err) == (0, "")
    token = shown.out.removesuffix("\n")
    assert token.split() == [token]
    with join_tokens(tmp_path) as tokens:
        identity = tokens.redeem(token, datetime.now(UTC))
    assert (identity.namespace, identity.sandbox) == ("quickstart", "agent")


def test_the_state_directory_is_also_a_setting(smw: Smw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMW_STATE", str(tmp_path))
    assert smw("token", "create", "quickstart/agent").code == 0
    assert (tmp_path / TOKENS_FILE).exists()


@pytest.mark.parametrize(
    ("lifetime", "seconds"), [("10m", 600), ("90s", 90), ("24h", 86400), ("1500ms", 1.5)], ids=str
)
def test_a_lifetime_is_an_integer_with_a_unit(smw: Smw, tmp_path: Path, lifetime: str, seconds: float) -> None:
    began = datetime.now(UTC)
    assert smw("token", "create", "a/b", "--state", tmp_path, "--lifetime", lifetime).code == 0
    (entry,) = json.loads((tmp_path / TOKENS_FILE).read_text())["tokens"].values()
    expires_at = datetime.fromisoformat(entry["expiresAt"])
    assert (
        timedelta(seconds=seconds) <= expires_at - began <= timedelta(seconds=seconds) + (datetime.now(UTC) - began)
    )


@pytest.mark.parametrize("lifetime", ["", "10", "10 m", "-1m", "1d", "1.5h", "25h", "1h30m"])
def test_any_other_lifetime_is_refused_with_the_grammar(smw: Smw, tmp_path: Path, lifetime: str) -> None:
    shown = smw("token", "create", "a/b", "--state", tmp_path, f"--lifetime={lifetime}")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == (
        "smw: --lifetime must be an integer with the suffix ms, s, m or h, from 0s to 24h (for example 2m)\n"
    )


def test_a_lifetime_of_nothing_is_refused(smw: Smw, tmp_path: Path) -> None:
    shown = smw("token", "create", "a/b", "--state", tmp_path, "--lifetime", "0s")
    assert (shown.code, shown.err) == (2, "smw: a join token must be valid for some time\n")


@pytest.mark.parametrize(
    ("sandbox", "problem"),
    [
        ("agent", "a sandbox is named NAMESPACE/NAME, for example quickstart/agent"),
        ("/agent", "a sandbox is named NAMESPACE/NAME"),
        ("quickstart/", "a sandbox is named NAMESPACE/NAME"),
        ("Quick/agent", "a namespace must be a lower-case DNS label"),
        ("quickstart/a/b", "a sandbox's name must be a lower-case DNS name"),
        ("quickstart/a b", "a sandbox's name must be a lower-case DNS name"),
    ],
)
def test_a_bad_name_is_refused(smw: Smw, tmp_path: Path, sandbox: str, problem: str) -> None:
    shown = smw("token", "create", sandbox, "--state", tmp_path)
    assert (shown.code, shown.out) == (2, "")
    assert problem in shown.err
    assert shown.err.count("\n") == 1
    assert not (tmp_path / TOKENS_FILE).exists()


def test_without_a_state_directory_nothing_is_made(smw: Smw, tmp_path: Path) -> None:
    shown = smw("token", "create", "quickstart/agent", "--state", tmp_path / "none")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == (
        f"smw: {tmp_path}/none: no standalone control plane keeps its state here; start smw standalone first\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_corrupt_ledger_is_named(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / TOKENS_FILE).write_text("{")
    shown = smw("token", "create", "quickstart/agent", "--state", tmp_path)
    assert shown.code == 2
    assert shown.err.startswith(f"smw: {tmp_path}/{TOKENS_FILE}: ")


def test_revoking_ends_what_a_sandbox_has_and_says_if_there_was_nothing(smw: Smw, tmp_path: Path) -> None:
    token = smw("token", "create", "quickstart/agent", "--state", tmp_path).out.strip()
    shown = smw("token", "revoke", "quickstart/agent", "--state", tmp_path)
    assert (shown.code, shown.out, shown.err) == (0, "quickstart/agent: 1 ended\n", "")
    with join_tokens(tmp_path) as tokens, pytest.raises(JoinTokenRefused):
        tokens.redeem(token, datetime.now(UTC))
    shown = smw("token", "revoke", "quickstart/agent", "--state", tmp_path)
    assert (shown.code, shown.out) == (1, "quickstart/agent: has no token and has not joined\n")


@pytest.mark.parametrize("sandbox", ["agent", "/agent", "quickstart/"])
def test_revoking_needs_a_sandbox_and_a_state_directory(smw: Smw, tmp_path: Path, sandbox: str) -> None:
    assert smw("token", "revoke", sandbox, "--state", tmp_path).code == 2
    assert smw("token", "revoke", "a/b", "--state", tmp_path / "nowhere").code == 2
