import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.model.canonical import digest
from supervisor_middleware.model.generation import Rank, seal
from supervisor_middleware.supervisor.activation import Held, Refusal, RejectionReason
from supervisor_middleware.supervisor.record import Defect, Record, decode, encode
from supervisor_middleware.supervisor.store import (
    FILE_NAME,
    MAX_KEPT_ASIDE,
    Loaded,
    Store,
    open_store,
)
from tests.builders import a_generation, a_service

OWNER = "spiffe://example.test/ns/team/sandbox/one"
OTHER = "spiffe://example.test/ns/team/sandbox/two"
REFUSAL = Refusal(digest="sha256:" + "a" * 64, reason=RejectionReason.UNSUPPORTED)


GENERATION = a_generation(services=[a_service(activation_deadline=timedelta(seconds=3))])


def a_record(*, epoch: int = 2**63) -> Record:
    return Record(
        sealed=seal(GENERATION),
        held=Held(rank=Rank(epoch=epoch, sequence=7), refusals=(REFUSAL,)),
        trust_bundle_digest="sha256:" + "b" * 64,
        version="1.0",
    )


CONTENT = encode(a_record(), owner=OWNER)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state", owner=OWNER)
    yield opened
    opened.close()


@pytest.mark.parametrize("record", [a_record(), Record(), Record(held=Held(rank=Rank(epoch=1), refusals=(REFUSAL,)))])
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode(encode(record, owner=OWNER), owner=OWNER) == record


def test_a_record_cut_at_any_byte_is_not_used() -> None:
    for length in range(len(CONTENT)):
        assert decode(CONTENT[:length], owner=OWNER) is Defect.TRUNCATED, length


@given(at=st.integers(min_value=0, max_value=len(CONTENT) - 1), bit=st.integers(min_value=0, max_value=7))
@settings(max_examples=400)
def test_a_flipped_bit_anywhere_is_not_used(at: int, bit: int) -> None:
    damaged = bytearray(CONTENT)
    damaged[at] ^= 1 << bit
    assert isinstance(decode(bytes(damaged), owner=OWNER), Defect)


@given(st.binary(max_size=300))
def test_foreign_bytes_never_raise(content: bytes) -> None:
    assert isinstance(decode(content, owner=OWNER), Defect)
    assert isinstance(decode(CONTENT + b"x" + content, owner=OWNER), Defect)


def rewritten(old: bytes, new: bytes) -> bytes:
    """The content with a change that whoever made it also checksummed."""
    import hashlib

    magic, _, rest = CONTENT.split(b"\n", 2)
    assert old in rest
    rest = rest.replace(old, new)
    return magic + b"\n" + f"{hashlib.sha256(rest).hexdigest()} {len(rest)}\n".encode() + rest


@pytest.mark.parametrize(
    ("content", "owner", "defect"),
    [
        (CONTENT, OTHER, Defect.FOREIGN),
        (CONTENT.replace(b"good 1\n", b"good 2\n"), OWNER, Defect.UNSUPPORTED),
        (rewritten(b'"activationDeadline":"3s"', b'"activationDeadline":"4s"'), OWNER, Defect.CORRUPT),
        (rewritten(b'"epoch"', b'"epic"'), OWNER, Defect.CORRUPT),
        (rewritten(b'"unsupported"', b'"whatever"'), OWNER, Defect.CORRUPT),
        (rewritten(a_record().sealed.digest.encode(), b""), OWNER, Defect.CORRUPT),  # type: ignore[union-attr]
        (b"key = value\n" * 3, OWNER, Defect.CORRUPT),
    ],
)
def test_what_is_wrong_is_named(content: bytes, owner: str, defect: Defect) -> None:
    assert decode(content, owner=owner) is defect


def test_a_generation_of_a_later_schema_is_not_used() -> None:
    payload = seal(GENERATION).payload
    later = payload.replace(b'"schemaVersion":2', b'"schemaVersion":3')
    import hashlib

    magic, _, rest = CONTENT.split(b"\n", 2)
    rest = rest.replace(payload, later).replace(digest(payload).encode(), digest(later).encode())
    content = magic + b"\n" + f"{hashlib.sha256(rest).hexdigest()} {len(rest)}\n".encode() + rest
    assert decode(content, owner=OWNER) is Defect.UNSUPPORTED


def test_a_new_store_is_empty_and_private(store: Store, tmp_path: Path) -> None:
    assert store.load() == Loaded()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    store.save(a_record())
    assert stat.S_IMODE((tmp_path / "state" / FILE_NAME).stat().st_mode) == 0o600
    assert store.load() == Loaded(record=a_record())


def test_a_defective_file_is_moved_aside_and_only_some_are_kept(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "state" / FILE_NAME
    for n in range(MAX_KEPT_ASIDE + 3):
        path.write_bytes(b"rubbish\n%d" % n)
        os.utime(path, ns=(n, n))
        assert store.load() == Loaded(defect=Defect.CORRUPT)
        assert not path.exists()
    kept = sorted((tmp_path / "state").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    assert [p.read_bytes()[-1:] for p in kept] == [b"3", b"4", b"5"]
    assert store.load() == Loaded()


def test_a_file_that_cannot_be_read_is_left_alone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "state" / FILE_NAME).mkdir()
    assert store.load() == Loaded(defect=Defect.UNREADABLE)
    assert (tmp_path / "state" / FILE_NAME).is_dir()


def test_another_process_on_the_same_directory_is_told_so(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="in use by another supervisor"):
        open_store(tmp_path / "state", owner=OWNER)
    store.save(a_record())


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="state directory cannot be used"):
        open_store(tmp_path / "file" / "state", owner=OWNER)


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".staged-x").mkdir()
    (tmp_path / ".staged-x" / FILE_NAME).write_bytes(b"half")
    open_store(tmp_path, owner=OWNER).close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_record(store: Store, tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse the write half-way, as a full disk does."""
    store.save(a_record(epoch=1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(Unavailable, match="was not saved"):
            store.save(a_record(epoch=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert store.load() == Loaded(record=a_record(epoch=1))
    assert [p.name for p in (tmp_path / "state").iterdir()] == [FILE_NAME]


WRITER = """
    import sys
    from pathlib import Path
    from tests.supervisor.test_store import OWNER, a_record
    from supervisor_middleware.supervisor.store import open_store

    store = open_store(Path(sys.argv[1]), owner=OWNER)
    print("ready", flush=True)
    epoch = int(sys.argv[2])
    while True:
        epoch += 1
        store.save(a_record(epoch=epoch))
        print(epoch, flush=True)
"""


def test_a_process_killed_while_it_persists_loses_nothing_it_had_finished(tmp_path: Path) -> None:
    epoch = 0
    for pause in (0.0, 0.013, 0.029):
        command = (sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), str(epoch))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            writer.stdout.readline()
            time.sleep(pause)
            writer.kill()
            finished = [int(line) for line in writer.stdout.read().split()]
        store = open_store(tmp_path, owner=OWNER)
        record = store.load().record
        store.close()
        assert record is not None
        assert record.held.rank.epoch >= max(finished, default=epoch + 1)
        epoch = record.held.rank.epoch
