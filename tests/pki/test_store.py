"""The standalone state directory: one CA however many start, and no silent second one."""

import json
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.store import (
    AUTHORITY_FILE,
    BUNDLE_FILE,
    TOKENS_FILE,
    join_tokens,
    load_or_create_authority,
)
from supervisor_middleware.pki.tokens import JoinTokenRefused
from tests.pki.builders import DAY, NOW, TRUST_DOMAIN, an_authority

SECRET = b"0123456789abcdef0123456789abcdef"


def load(directory: Path, *, trust_domain: str = TRUST_DOMAIN) -> Authority:
    return load_or_create_authority(directory, trust_domain=trust_domain, now=NOW)


def test_a_ca_is_made_once_and_then_loaded(tmp_path: Path) -> None:
    created = load(tmp_path / "state")
    assert load(tmp_path / "state") == created
    assert (tmp_path / "state" / BUNDLE_FILE).read_bytes() == created.certificate_pem
    assert stat.S_IMODE((tmp_path / "state" / AUTHORITY_FILE).stat().st_mode) == 0o600
    assert {entry.name for entry in (tmp_path / "state").iterdir()} == {AUTHORITY_FILE, BUNDLE_FILE}


STARTER = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from supervisor_middleware.pki.store import load_or_create_authority
print("ready", flush=True)
sys.stdin.readline()
authority = load_or_create_authority(Path(sys.argv[1]), trust_domain="example.test", now=datetime.now(UTC))
print(authority.certificate_pem.decode(), end="")
"""


@pytest.mark.parametrize("attempt", range(3))
def test_three_processes_starting_at_once_end_with_one_ca(tmp_path: Path, attempt: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(tmp_path / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=30)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(printed)) == 1
    assert printed[0] == (tmp_path / "state" / BUNDLE_FILE).read_text()


def test_a_missing_ca_is_no_reason_for_a_new_one(tmp_path: Path) -> None:
    load(tmp_path)
    (tmp_path / AUTHORITY_FILE).unlink()
    with pytest.raises(InvalidInput, match=r"authority\.pem: the CA is missing.*restore it from a backup"):
        load(tmp_path)
    assert not (tmp_path / AUTHORITY_FILE).exists()


def test_a_bundle_that_was_not_yet_published_is_published(tmp_path: Path) -> None:
    created = load(tmp_path)
    (tmp_path / BUNDLE_FILE).unlink()
    assert load(tmp_path) == created
    assert (tmp_path / BUNDLE_FILE).read_bytes() == created.certificate_pem


def test_a_bundle_may_hold_more_roots(tmp_path: Path) -> None:
    created = load(tmp_path)
    bundle = an_authority().certificate_pem + created.certificate_pem
    (tmp_path / BUNDLE_FILE).write_bytes(bundle)
    assert load(tmp_path) == created
    assert (tmp_path / BUNDLE_FILE).read_bytes() == bundle


@pytest.mark.parametrize(
    ("bundle", "problem"), [(b"junk", "no certificate"), (an_authority().certificate_pem, "two installations")]
)
def test_a_bundle_of_something_else_is_refused(tmp_path: Path, bundle: bytes, problem: str) -> None:
    load(tmp_path)
    (tmp_path / BUNDLE_FILE).write_bytes(bundle)
    with pytest.raises(InvalidInput, match=rf"ca\.crt: .*{problem}"):
        load(tmp_path)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.6, 0.9])
def test_a_cut_ca_file_is_named_and_not_shown(tmp_path: Path, kept: float) -> None:
    load(tmp_path)
    path = tmp_path / AUTHORITY_FILE
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(InvalidInput, match=r"authority\.pem: ") as caught:
        load(tmp_path)
    assert "BEGIN" not in str(caught.value)


def test_a_key_of_another_ca_is_refused(tmp_path: Path) -> None:
    created = load(tmp_path)
    mixed = created.certificate_pem + an_authority().private_key_pem.reveal()
    (tmp_path / AUTHORITY_FILE).write_bytes(mixed)
    with pytest.raises(InvalidInput, match=r"authority\.pem: .*belongs to another certificate"):
        load(tmp_path)


def test_a_changed_trust_domain_is_refused(tmp_path: Path) -> None:
    load(tmp_path)
    with pytest.raises(InvalidInput, match=r"authority\.pem: .*not of spiffe://other\.test"):
        load(tmp_path, trust_domain="other.test")


def test_an_expired_ca_is_refused(tmp_path: Path) -> None:
    load_or_create_authority(tmp_path, trust_domain=TRUST_DOMAIN, now=NOW, lifetime=DAY)
    with pytest.raises(InvalidInput, match=r"authority\.pem: .*expired"):
        load_or_create_authority(tmp_path, trust_domain=TRUST_DOMAIN, now=NOW + 2 * DAY)


def test_a_ca_that_anybody_can_read_is_refused(tmp_path: Path) -> None:
    load(tmp_path)
    (tmp_path / AUTHORITY_FILE).chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        load(tmp_path)


def test_a_token_issued_by_one_process_is_spent_by_another_once(tmp_path: Path) -> None:
    with join_tokens(tmp_path) as tokens:
        token = tokens.issue("team-a", "coder", now=NOW, lifetime=timedelta(hours=1), secret=SECRET)
    with join_tokens(tmp_path) as tokens:
        assert tokens.redeem(token, NOW).sandbox == "coder"
    with pytest.raises(JoinTokenRefused), join_tokens(tmp_path) as tokens:
        tokens.redeem(token, NOW)
    assert stat.S_IMODE((tmp_path / TOKENS_FILE).stat().st_mode) == 0o600


def test_a_block_that_fails_saves_nothing(tmp_path: Path) -> None:
    def issue_and_fail() -> None:
        with join_tokens(tmp_path) as tokens:
            tokens.issue("team-a", "coder", now=NOW, lifetime=timedelta(hours=1), secret=SECRET)
            raise LookupError

    with pytest.raises(LookupError):
        issue_and_fail()
    assert not (tmp_path / TOKENS_FILE).exists()


def test_looking_at_the_ledger_writes_nothing(tmp_path: Path) -> None:
    with join_tokens(tmp_path) as tokens:
        assert tokens.to_dict()["tokens"] == {}
    assert not (tmp_path / TOKENS_FILE).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "\udc80", json.dumps({"version": 9})])
def test_a_corrupt_ledger_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / TOKENS_FILE).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInput, match=r"join-tokens\.json: "), join_tokens(tmp_path):
        pytest.fail("the block must not run")
