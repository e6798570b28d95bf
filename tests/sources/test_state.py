"""What standalone decided outlives it, whatever happened to its files."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.model.snapshot import Snapshot, StoredRevision
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.folder import FolderSource
from supervisor_middleware.sources.state import StateStore
from tests.builders import NOW, a_baseline_revision, a_policy, a_revision, an_entry
from tests.sources.test_folder import BASELINE, REGISTRATION, SANDBOX, names, namespace, policy, texts, write


def a_stored_revision(uid: str = "uid-1", *, number: int = 1, order: int = 0) -> StoredRevision:
    revision = a_revision(an_entry(order=order), uid=uid)
    return StoredRevision(number=number, epoch=7, digest=revision.digest, revision=revision)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


# ----------------------------------------------------------------------------------------------- what outlives us


async def test_revisions_and_statuses_outlive_a_restart(state: Path) -> None:
    stored = a_policy()
    async with StateStore(state) as store:
        await store.save_revision(a_stored_revision())
        await store.write_status(stored, {"accepted": {"revision": 1}})
    async with StateStore(state) as store:
        assert store.revisions() == (a_stored_revision(),)
        assert store.statuses() == {stored.uid: {"accepted": {"revision": 1}}}
        assert store.problems.is_valid


async def test_a_baselines_revision_and_the_labels_of_namespaces_outlive_a_restart(state: Path, folder: Path) -> None:
    revision = a_baseline_revision(labels={"tier": "prod"})
    stored = StoredRevision(number=1, epoch=7, digest=revision.digest, revision=revision)
    write(folder, n=namespace(), s=SANDBOX, b=BASELINE)
    async with StateStore(state) as store:
        await store.save_revision(stored)
        before = await FolderSource([folder], state=store).snapshot()
    write(folder, n="{", b="{")
    async with StateStore(state) as store:
        assert store.revisions() == (stored,)
        after = await FolderSource([folder], state=store).snapshot()
    assert after.namespaces == before.namespaces
    assert after.namespaces["team-a"]["tier"] == "prod"
    assert names(after) == ["platform"]


async def test_a_revision_is_created_once(state: Path) -> None:
    async with StateStore(state) as store:
        await store.save_revision(a_stored_revision())
        await store.save_revision(a_stored_revision())
        with pytest.raises(Unavailable, match="says something else"):
            await store.save_revision(a_stored_revision(order=5))


async def test_a_deleted_revision_is_gone_and_deleting_it_again_is_fine(state: Path) -> None:
    async with StateStore(state) as store:
        await store.save_revision(a_stored_revision())
        await store.delete_revision("uid-1-1")
        await store.delete_revision("uid-1-1")
        assert store.revisions() == ()
    async with StateStore(state) as store:
        assert store.revisions() == ()


async def test_names_cannot_leave_the_directory(state: Path) -> None:
    async with StateStore(state) as store:
        with pytest.raises(Unavailable):
            await store.delete_revision("../../x")


async def test_all_statuses_are_summed_up_for_people(state: Path) -> None:
    async with StateStore(state) as store:
        for number in range(20):
            await store.write_status(a_policy(f"p{number:02}"), {"conditions": []})
    summary = json.loads((state / "status.json").read_text())
    assert [o["name"] for o in summary["objects"]] == [f"p{number:02}" for number in range(20)]


async def test_the_bundle_is_a_file_that_is_replaced_whole(state: Path) -> None:
    async with StateStore(state) as store:
        await store.publish_bundle(b"one", namespaces=frozenset({"a"}))
        before = (state / "ca.crt").stat()
        await store.publish_bundle(b"one", namespaces=frozenset())
        after = (state / "ca.crt").stat()  # reading it may have moved its atime
        assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
            before.st_ino,
            before.st_mtime_ns,
            before.st_ctime_ns,
        )
        await store.publish_bundle(b"two", namespaces=frozenset())
        assert (state / "ca.crt").read_bytes() == b"two"


async def test_notices_are_logged_once(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with StateStore(state) as store:
        for _ in range(3):
            await store.notify(
                Subject(kind="SandboxPolicy", namespace="a", name="b"),
                uid="u",
                reason="Accepted",
                message="it was accepted",
                weight="Normal",
            )
    assert capsys.readouterr().out.count("it was accepted") == 1


# --------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00" * 100, b"[]", b'{"digest": "sha256:0", "content": {}}', b"1"])
async def test_a_damaged_file_is_moved_aside_and_nothing_else_is_lost(state: Path, damage: bytes) -> None:
    async with StateStore(state) as store:
        await store.save_revision(a_stored_revision("uid-1"))
        await store.save_revision(a_stored_revision("uid-2"))
        await store.write_status(a_policy(uid="uid-1"), {"a": 1})
        await store.write_status(a_policy(uid="uid-2"), {"a": 2})
    (state / "revisions" / "uid-1-1.json").write_bytes(damage)
    (state / "status" / "uid-2.json").write_bytes(damage)
    async with StateStore(state) as store:
        assert [r.name for r in store.revisions()] == ["uid-2-1"]
        assert store.statuses() == {"uid-1": {"a": 1}}
        assert [v.subject.kind for v in store.problems.violations] == ["File", "File"]
        assert (state / "revisions" / "uid-1-1.json.corrupt").read_bytes() == damage
    async with StateStore(state) as store:
        assert store.problems.is_valid


async def test_one_changed_bit_is_noticed(state: Path) -> None:
    async with StateStore(state) as store:
        await store.write_status(a_policy(uid="uid-1"), {"accepted": {"revision": 12}})
    file = state / "status" / "uid-1.json"
    file.write_bytes(file.read_bytes().replace(b"12", b"13"))
    async with StateStore(state) as store:
        assert store.statuses() == {}
        assert "digest" in store.problems.violations[0].message


async def test_a_whole_file_of_another_kind_is_damage_too(state: Path) -> None:
    async with StateStore(state) as store:
        await store.write_status(a_policy(uid="uid-1"), {})
    (state / "status" / "uid-1.json").rename(state / "revisions" / "uid-1-1.json")
    async with StateStore(state) as store:
        assert store.revisions() == ()
        assert "not what this version writes" in store.problems.violations[0].message


async def test_damage_is_part_of_the_snapshot(state: Path, folder: Path) -> None:
    async with StateStore(state):
        pass
    (state / "folder.json").write_text("{")
    async with StateStore(state) as store:
        snapshot = await FolderSource([folder], store).snapshot()
    assert [v.subject.name for v in snapshot.problems.violations] == [str(state / "folder.json")]


async def test_leavings_of_an_interrupted_write_do_no_harm(state: Path) -> None:
    async with StateStore(state) as store:
        await store.save_revision(a_stored_revision())
    (state / "revisions" / ".staged-x").mkdir()
    (state / "revisions" / ".staged-x" / "uid-9-1.json").write_text("{")
    async with StateStore(state) as store:
        assert len(store.revisions()) == 1
        assert store.problems.is_valid


# --------------------------------------------------------------------------------------------------- one at a time


async def test_a_second_standalone_is_told_clearly(state: Path) -> None:
    async with StateStore(state):
        with pytest.raises(InvalidInput, match=f"in use by another standalone, process {os.getpid()}"):
            StateStore(state)
    async with StateStore(state):
        pass


def test_the_lock_ends_with_its_process(state: Path) -> None:
    program = (
        "import os, pathlib, sys; from supervisor_middleware.sources.state import StateStore; "
        "store = StateStore(pathlib.Path(sys.argv[1])); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(state)], check=False, env={**os.environ})
    assert done.returncode == 9
    asyncio.run(StateStore(state).close())


def test_private_files_are_private(state: Path, folder: Path) -> None:
    async def fill() -> None:
        async with StateStore(state) as store:
            await FolderSource([folder], store).snapshot()
            await store.save_revision(a_stored_revision())

    write(folder, p=policy())
    asyncio.run(fill())
    assert state.stat().st_mode & 0o777 == 0o700
    for file in (state / "folder.json", state / "revisions" / "uid-1-1.json", state / "standalone.lock"):
        assert file.stat().st_mode & 0o777 == 0o600


# ------------------------------------------------------------------------------------------- together with a folder


async def restarted(folder: Path, state: Path) -> Snapshot:
    async with StateStore(state) as store:
        return await FolderSource([folder], store, now=lambda: NOW).snapshot()


async def test_last_known_good_outlives_a_restart_with_a_broken_file(state: Path, folder: Path) -> None:
    write(folder, p=policy("a") + "---\n" + SANDBOX, r=REGISTRATION.replace("KIND", "ConfigMap"))
    async with StateStore(state) as store:
        source = FolderSource([folder], store, now=lambda: NOW)
        (stored,) = (await source.snapshot()).policies
        await store.save_revision(a_stored_revision(stored.uid))
        await store.write_status(stored, {"accepted": {"revision": 1}})
        before = await source.snapshot()
    write(folder, p="{ broken", r="\0")
    after = await restarted(folder, state)
    assert replace(after, problems=before.problems) == before
    assert after.policies[0].status == {"accepted": {"revision": 1}}
    assert after.revisions[0].revision.uid == stored.uid
    assert len(texts(after)) == 2


async def test_generations_go_on_counting_after_a_restart(state: Path, folder: Path) -> None:
    write(folder, p=policy())
    await restarted(folder, state)
    write(folder, p=policy(order=2))
    (stored,) = (await restarted(folder, state)).policies
    assert stored.generation == 2
    assert stored.created_at == NOW


async def test_an_object_that_returns_while_its_revision_lives_counts_on(state: Path, folder: Path) -> None:
    write(folder, p=policy())
    async with StateStore(state) as store:
        source = FolderSource([folder], store, now=lambda: NOW)
        (stored,) = (await source.snapshot()).policies
        await store.save_revision(a_stored_revision(stored.uid))
        (folder / "p.yaml").unlink()
        assert (await source.snapshot()).policies == ()
    write(folder, p=policy(order=2))
    (again,) = (await restarted(folder, state)).policies
    assert (again.uid, again.generation) == (stored.uid, 2)


async def test_what_is_gone_for_good_is_forgotten(state: Path, folder: Path) -> None:
    write(folder, p=policy())
    async with StateStore(state) as store:
        source = FolderSource([folder], store)
        (stored,) = (await source.snapshot()).policies
        await store.write_status(stored, {})
        (folder / "p.yaml").unlink()
        await source.snapshot()
        assert store.statuses() == {}
        assert store.memory().identities == {}


async def test_numbers_without_a_canonical_form_are_remembered_for_the_complaint(state: Path, folder: Path) -> None:
    write(folder, p=policy().replace("order: 1", "order: 1\n      config: {n: 9007199254740993}"))
    first, second = await restarted(folder, state), await restarted(folder, state)
    assert first == second
    assert names(first) == ["redaction"]


async def test_state_inside_the_folder_is_not_read_as_policy(folder: Path) -> None:
    write(folder, p=policy())
    async with StateStore(folder / "state") as store:
        source = FolderSource([folder], store)
        (stored,) = (await source.snapshot()).policies
        await store.write_status(stored, {})
        await asyncio.sleep(0.3)
        snapshot = await source.snapshot()
    assert (names(snapshot), snapshot.skipped, texts(snapshot)) == (["redaction"], 0, [])


async def test_writes_and_snapshots_may_overlap(state: Path, folder: Path) -> None:
    write(folder, **{f"p{n}": policy(f"p{n}") for n in range(30)})
    async with StateStore(state) as store:
        source = FolderSource([folder], store)
        snapshot = await source.snapshot()
        await asyncio.gather(
            *(store.write_status(s, {"a": 1}) for s in snapshot.policies), *(source.snapshot() for _ in range(10))
        )
        assert {s.uid for s in snapshot.policies} == set(store.statuses())
