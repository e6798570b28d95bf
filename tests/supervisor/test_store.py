import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.model.canonical import canonical, digest
from supervisor_middleware.model.generation import Rank, Sealed, seal
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


def test_a_flipped_bit_anywhere_is_not_used() -> None:
    for at in range(len(CONTENT)):
        for bit in range(8):
            damaged = bytearray(CONTENT)
            damaged[at] ^= 1 << bit
            assert isinstance(decode(bytes(damaged), owner=OWNER), Defect), (at, bit)


@given(st.data())
def test_any_bytes_in_the_place_of_any_others_are_not_used(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(CONTENT)))
    end = data.draw(st.integers(start, len(CONTENT)))
    damaged = CONTENT[:start] + data.draw(st.binary(max_size=64)) + CONTENT[end:]
    assert damaged == CONTENT or isinstance(decode(damaged, owner=OWNER), Defect)


@given(st.binary(max_size=300))
def test_foreign_bytes_never_raise(content: bytes) -> None:
    assert isinstance(decode(content, owner=OWNER), Defect)
    assert isinstance(decode(CONTENT + b"x" + content, owner=OWNER), Defect)


def rewritten(old: bytes, new: bytes, *, also: tuple[bytes, bytes] = (b"", b"")) -> bytes:
    """The content with a change that whoever made it also checksummed."""
    magic, _, rest = CONTENT.split(b"\n", 2)
    assert old in rest
    rest = rest.replace(old, new)
    rest = rest.replace(*also) if also[0] else rest
    return magic + b"\n" + f"{hashlib.sha256(rest).hexdigest()} {len(rest)}\n".encode() + rest


@pytest.mark.parametrize(
    ("content", "owner", "defect"),
    [
        (CONTENT, OTHER, Defect.FOREIGN),
        (CONTENT.replace(b"good 1\n", b"good 2\n"), OWNER, Defect.UNSUPPORTED),
        (rewritten(b'"activationDeadline":"3s"', b'"activationDeadline":"4s"'), OWNER, Defect.CORRUPT),
        (rewritten(b'"epoch"', b'"epic"'), OWNER, Defect.CORRUPT),
        (rewritten(b'"unsupported"', b'"whatever"'), OWNER, Defect.CORRUPT),
        (rewritten(b'"epoch":"9223372036854775808"', b'"epoch":"-1"'), OWNER, Defect.CORRUPT),
        (rewritten(b'"epoch":"9223372036854775808"', b'"epoch":"18446744073709551616"'), OWNER, Defect.CORRUPT),
        (rewritten(b'"epoch":"9223372036854775808"', b'"epoch":1e999'), OWNER, Defect.CORRUPT),
        (b"", OWNER, Defect.TRUNCATED),
        (rewritten(a_record().sealed.digest.encode(), b""), OWNER, Defect.CORRUPT),  # type: ignore[union-attr]
        (b"key = value\n" * 3, OWNER, Defect.CORRUPT),
    ],
)
def test_what_is_wrong_is_named(content: bytes, owner: str, defect: Defect) -> None:
    assert decode(content, owner=owner) is defect


def with_payload(payload: bytes) -> bytes:
    """A record of our own with another payload, digest and checksum right."""
    sealed = seal(GENERATION)
    return rewritten(sealed.payload, payload, also=(sealed.digest.encode(), digest(payload).encode()))


def test_a_generation_of_a_later_schema_is_not_used() -> None:
    later = seal(GENERATION).payload.replace(b'"schemaVersion":2', b'"schemaVersion":3')
    assert decode(with_payload(later), owner=OWNER) is Defect.UNSUPPORTED


def test_a_generation_of_the_release_before_is_used() -> None:
    value = json.loads(seal(GENERATION).payload)
    for service in value["services"]:
        del service["activationDeadline"]
    payload = canonical({**value, "schemaVersion": 1, "activationDeadline": "3s"})
    record = decode(with_payload(payload), owner=OWNER)
    assert isinstance(record, Record)
    assert record.sealed == Sealed(generation=GENERATION, payload=payload, digest=digest(payload))
    assert decode(encode(record, owner=OWNER), owner=OWNER) == record


def test_a_generation_of_a_schema_that_never_was_is_not_used() -> None:
    never = seal(GENERATION).payload.replace(b'"schemaVersion":2', b'"schemaVersion":0')
    assert decode(with_payload(never), owner=OWNER) is Defect.CORRUPT


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


def a_link(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.write_bytes(CONTENT)
    path.symlink_to(elsewhere)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def for_everybody(path: Path) -> None:
    path.write_bytes(CONTENT)
    path.chmod(0o666)


@pytest.mark.parametrize("put", [a_link, a_socket, for_everybody, Path.mkdir, os.mkfifo])
def test_what_others_could_have_put_there_is_neither_used_nor_waited_for(
    store: Store, tmp_path: Path, put: Callable[[Path], None]
) -> None:
    path = tmp_path / "state" / FILE_NAME
    put(path)
    assert store.load() == Loaded(defect=Defect.UNSAFE)
    assert store.load() == Loaded()
    store.save(a_record())
    assert store.load() == Loaded(record=a_record())
    assert path.is_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_pods_group_may_write_is_ours(store: Store, tmp_path: Path) -> None:
    """`fsGroup` gives every file of a volume to the Pod's group at each mount."""
    store.save(a_record())
    (tmp_path / "state" / FILE_NAME).chmod(0o660)
    assert store.load() == Loaded(record=a_record())


def test_a_file_that_cannot_be_read_is_left_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state" / FILE_NAME
    store.save(a_record())

    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("supervisor_middleware.supervisor.store.os.open", refused)
        assert store.load() == Loaded(defect=Defect.UNREADABLE)
    assert path.read_bytes() == CONTENT


def test_a_file_larger_than_any_of_ours_is_not_read_whole(store: Store, tmp_path: Path) -> None:
    with (tmp_path / "state" / FILE_NAME).open("wb") as file:
        file.write(CONTENT)
        file.truncate(2**32)
    assert store.load() == Loaded(defect=Defect.CORRUPT)


def test_a_directory_that_everybody_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)

    def not_ours(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", not_ours)
    with pytest.raises(InvalidInput, match="everybody may write"):
        open_store(tmp_path / "state", owner=OWNER)


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


FULL_DISK = """
    import sys
    from pathlib import Path
    from supervisor_middleware.errors import Unavailable
    from supervisor_middleware.supervisor.store import open_store
    from tests.supervisor.test_store import OWNER, a_record

    disk = Path(sys.argv[1])
    store = open_store(disk / "state", owner=OWNER)
    store.save(a_record(epoch=1))
    (disk / "filler").touch()
    try:
        with (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
    except OSError:
        pass
    try:
        store.save(a_record(epoch=2))
    except Unavailable as error:
        print(error)
    assert store.load().record == a_record(epoch=1)
    (disk / "filler").unlink()
    store.save(a_record(epoch=3))
    assert store.load().record == a_record(epoch=3)
    print(sorted(p.name for p in (disk / "state").iterdir()))
"""


def test_a_disk_without_room_leaves_the_old_record_and_is_used_again_once_there_is_some(tmp_path: Path) -> None:
    """A file system of its own, in a mount namespace of its own."""
    mount = f"mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -c '{textwrap.dedent(FULL_DISK)}'"
    command = ("unshare", "--map-root-user", "--mount", "sh", "-c", f"{mount} {tmp_path}")
    if (
        shutil.which("unshare") is None
        or subprocess.run((*command[:3], "true"), capture_output=True, check=False).returncode
    ):
        pytest.skip("no mount namespaces here")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    refused, names = done.stdout.splitlines()
    assert "No space left on device" in refused
    assert "was not saved" in refused
    assert names == str([FILE_NAME])


KILLED = """
    import os
    import random
    import signal
    import sys
    import time
    from pathlib import Path
    from tests.supervisor.test_store import OWNER, a_record
    from supervisor_middleware.supervisor.store import open_store

    directory, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    draw, epoch = random.Random(seed), 0
    for round in range(rounds):
        reading, writing = os.pipe()
        if (writer := os.fork()) == 0:
            store = open_store(directory, owner=OWNER)
            while True:
                epoch += 1
                store.save(a_record(epoch=epoch))
                os.write(writing, b"%d\\n" % epoch)
        os.close(writing)
        first = os.read(reading, 64)
        time.sleep(draw.random() * 0.01)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        with os.fdopen(reading, "rb") as told:
            finished = [int(line) for line in (first + told.read()).split()]
        store = open_store(directory, owner=OWNER)
        loaded = store.load()
        store.close()
        left = [p.name for p in directory.iterdir()]
        assert loaded.defect is None and loaded.record is not None, (round, loaded)
        assert loaded.record.held.rank.epoch - finished[-1] in {0, 1}, (round, finished[-1], loaded)
        assert loaded.record == a_record(epoch=loaded.record.held.rank.epoch), round
        assert left == ["last-known-good"], (round, left)
        epoch = loaded.record.held.rank.epoch
    print(epoch)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_process_killed_while_it_persists_loses_nothing_it_had_finished(tmp_path: Path, seed: int) -> None:
    command = (sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), "60", str(seed))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 60
