"""Credentials on disk: one step for every reader, and every kind of damage named without showing it."""

import errno
import os
import shutil
import stat
import threading
import traceback
from pathlib import Path

import pytest

from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki import credential_files, files
from supervisor_middleware.pki.credential_files import FILE_NAMES, read_credentials, write_credentials
from tests.pki.builders import an_authority, supervisor_credentials

AUTHORITY = an_authority()
FIRST = supervisor_credentials(AUTHORITY)
SECOND = supervisor_credentials(AUTHORITY)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_credentials(tmp_path, FIRST)
    assert read_credentials(tmp_path) == FIRST
    write_credentials(tmp_path, SECOND)
    assert read_credentials(tmp_path) == SECOND


def test_a_missing_directory_is_made_for_us_alone(tmp_path: Path) -> None:
    write_credentials(tmp_path / "a" / "b", FIRST)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_only_we_may_read_the_key(tmp_path: Path) -> None:
    write_credentials(tmp_path, FIRST)
    assert stat.S_IMODE((tmp_path / "tls.key").stat().st_mode) == 0o600


def test_the_files_have_the_names_that_others_expect(tmp_path: Path) -> None:
    write_credentials(tmp_path, FIRST)
    assert (tmp_path / "tls.crt").read_bytes() == FIRST.certificate_chain_pem
    assert (tmp_path / "tls.key").read_bytes() == FIRST.private_key_pem.reveal()
    assert (tmp_path / "ca.crt").read_bytes() == FIRST.trust_bundle_pem


def test_a_directory_without_credentials_holds_none(tmp_path: Path) -> None:
    assert read_credentials(tmp_path) is None
    assert read_credentials(tmp_path / "missing") is None


def test_a_plain_directory_is_read_too_and_taken_over(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_bytes(FIRST.certificate_chain_pem)
    (tmp_path / "tls.key").write_bytes(FIRST.private_key_pem.reveal())
    (tmp_path / "ca.crt").write_bytes(FIRST.trust_bundle_pem)
    assert read_credentials(tmp_path) == FIRST
    write_credentials(tmp_path, SECOND)
    assert read_credentials(tmp_path) == SECOND
    assert (tmp_path / "tls.key").read_bytes() == SECOND.private_key_pem.reveal()


def test_only_the_current_version_and_the_one_before_are_kept(tmp_path: Path) -> None:
    for credentials in (FIRST, SECOND, FIRST, SECOND):
        write_credentials(tmp_path, credentials)
    assert len([entry for entry in tmp_path.iterdir() if entry.name.startswith("..v-")]) == 2


def test_a_reader_half_way_through_a_version_can_finish_it(tmp_path: Path) -> None:
    write_credentials(tmp_path, FIRST)
    resolved = (tmp_path / "..data").resolve()
    write_credentials(tmp_path, SECOND)
    assert read_credentials(resolved) == FIRST


@pytest.mark.parametrize("name", FILE_NAMES.values())
@pytest.mark.parametrize("content", [None, b"", b"SECRETJUNK", "half"], ids=["missing", "empty", "junk", "truncated"])
def test_damage_is_not_trusted_and_names_the_file(tmp_path: Path, name: str, content: bytes | str | None) -> None:
    write_credentials(tmp_path, FIRST)
    path = (tmp_path / name).resolve()
    old = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(old[: len(old) // 2] if isinstance(content, str) else content)
    with pytest.raises(Untrusted, match=name) as caught:
        read_credentials(tmp_path)
    text = "".join(traceback.format_exception(caught.value))
    assert "SECRETJUNK" not in text
    assert old.splitlines()[1].decode() not in text


def test_a_key_of_another_certificate_is_not_trusted(tmp_path: Path) -> None:
    write_credentials(tmp_path, FIRST)
    (tmp_path / "tls.key").write_bytes(SECOND.private_key_pem.reveal())
    with pytest.raises(Untrusted, match=r"tls\.key: private key: belongs to another certificate"):
        read_credentials(tmp_path)


def test_a_reader_never_sees_a_mixed_set_while_a_writer_writes(tmp_path: Path) -> None:
    write_credentials(tmp_path, FIRST)
    is_done = threading.Event()

    def rewrite() -> None:
        for _ in range(40):
            write_credentials(tmp_path, SECOND)
            write_credentials(tmp_path, FIRST)
        is_done.set()

    writers = [threading.Thread(target=rewrite) for _ in range(2)]
    for writer in writers:
        writer.start()
    reads = 0
    while not is_done.is_set():
        assert read_credentials(tmp_path) in (FIRST, SECOND)
        reads += 1
    for writer in writers:
        writer.join()
    assert reads > 10


def test_a_version_that_vanishes_at_every_look_is_worth_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(f"..v-{number}" for number in range(100))
    monkeypatch.setattr(credential_files, "_target", lambda _: next(looks))
    with pytest.raises(Unavailable, match="rewritten while it was read"):
        read_credentials(tmp_path)


def test_a_failed_write_leaves_the_old_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_credentials(tmp_path, FIRST)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="No space left"):
            write_credentials(tmp_path, SECOND)
    assert read_credentials(tmp_path) == FIRST
    assert len([entry for entry in tmp_path.iterdir() if entry.name.startswith("..v-")]) == 1


def test_a_file_in_the_place_of_the_directory_is_the_administrators(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match="file"):
        write_credentials(tmp_path / "file" / "below", FIRST)
    with pytest.raises(InvalidInput, match="file"):
        read_credentials(tmp_path / "file")


def test_an_endless_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    write_credentials(tmp_path, FIRST)
    with pytest.raises(InvalidInput, match="larger than 100 bytes"):
        read_credentials(tmp_path)


def test_a_dangling_link_is_no_credentials(tmp_path: Path) -> None:
    write_credentials(tmp_path, FIRST)
    shutil.rmtree((tmp_path / "..data").resolve())
    assert read_credentials(tmp_path) is None
