"""The key of an enrolment survives its process, and no longer than its certificate needs."""

import stat
from pathlib import Path

import pytest

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.pki.keys import PrivateKey, key_to_pem, new_key
from supervisor_middleware.pki.pending_key import PENDING_KEY, PendingKey


def text(key: PrivateKey) -> bytes:
    return key_to_pem(key).reveal()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "identity" / PENDING_KEY


def test_the_key_is_on_disk_before_it_is_used_and_for_nobody_else_to_read(path: Path) -> None:
    key = PendingKey(path).take()
    assert path.read_bytes() == text(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text(PendingKey(path).take()) == text(key)


def test_whoever_has_its_certificate_asks_with_another_key_next(path: Path) -> None:
    pending = PendingKey(path)
    key = pending.take()
    pending.drop(key_to_pem(key))
    assert not path.exists()
    assert text(pending.take()) != text(key)


def test_a_key_that_is_pending_still_outlives_a_certificate_for_another(path: Path) -> None:
    key = PendingKey(path).take()
    restarted = PendingKey(path)
    restarted.drop(key_to_pem(new_key()))
    assert text(restarted.take()) == text(key)
    restarted = PendingKey(path)
    restarted.drop(key_to_pem(key))
    assert not path.exists()
    restarted.drop(key_to_pem(key))


@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_a_key_that_is_damaged_is_replaced(path: Path, damage: bytes) -> None:
    PendingKey(path).take()
    path.write_bytes(damage)
    key = PendingKey(path).take()
    assert path.read_bytes() == text(key)


def test_a_key_that_others_could_read_is_replaced(path: Path) -> None:
    key = PendingKey(path).take()
    path.chmod(0o640)
    assert text(PendingKey(path).take()) != text(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_disk_that_takes_nothing_ends_no_enrolment_and_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Unavailable("no space left")

    pending = PendingKey(path)
    with monkeypatch.context() as patched:
        patched.setattr("supervisor_middleware.pki.pending_key.replace_file", full)
        key = pending.take()
        assert not path.exists()
    assert pending.take() is key
    assert path.read_bytes() == text(key)


def test_without_a_path_it_is_in_memory_alone() -> None:
    pending = PendingKey()
    key = pending.take()
    assert pending.take() is key
    pending.drop(key_to_pem(key))
    assert pending.take() is not key
