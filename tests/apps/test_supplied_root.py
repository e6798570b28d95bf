"""A standalone operator takes a root that somebody supplies in files, in the stages of any rotation, and gives none away."""

from datetime import timedelta
from pathlib import Path

import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.rotation_files import RotationFiles, read_status, request_rotation
from supervisor_middleware.pki.rotation_requests import Stage, new_request
from tests.apps.test_root_keeper import DOMAIN, Machine, Process, kinds
from tests.pki.foreign import a_foreign_root

DAY = timedelta(days=1)


class Supplied(Machine):
    """A machine with a directory for a root of somebody else's."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(directory / "state", monkeypatch)
        self.source = directory / "ca"
        self.source.mkdir()

    def a_root(self) -> Authority:
        return a_foreign_root(now=self.world.now - DAY, trust_domain=DOMAIN)

    def supply(self, root: Authority) -> Authority:
        (self.source / "tls.crt").write_bytes(root.certificate_pem)
        (self.source / "tls.key").write_bytes(root.private_key_pem.reveal())
        (self.source / "tls.key").chmod(0o600)
        return root

    def withdraw(self) -> None:
        for path in self.source.iterdir():
            path.unlink()

    def files(self) -> RotationFiles:
        return RotationFiles(self.directory, trust_domain=DOMAIN, supplied=self.source)

    def process(self) -> Process:
        rotation = self.files().load_or_create(now=self.world.now).rotation
        process = Process(self.world, rotation)
        process.keeper.roots = self.files()
        if not self.world.issuers:
            self.world.published = rotation.roots.bundle
            (self.directory / "ca.crt").write_bytes(rotation.roots.bundle)
        return process

    def begin(self) -> Process:
        """With a root of ours, as it was before anybody supplied one."""
        RotationFiles(self.directory, trust_domain=DOMAIN).load_or_create(now=self.world.now)
        return self.process()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supplied:
    return Supplied(tmp_path, monkeypatch)


@pytest.mark.parametrize("deadly", [-1, *range(1, 17, 2)])
async def test_a_root_that_is_supplied_follows_ours_in_stages_also_if_we_are_killed(
    machine: Supplied, deadly: int
) -> None:
    process = machine.begin()
    await process.lead()
    ours, theirs = process.replica.authority, machine.supply(machine.a_root())
    process = await machine.lead(process, deadly=deadly)
    assert (process.stage, process.replica.authority.certificate) == (Stage.STEADY, theirs.certificate)
    assert process.replica.rotation.is_supplied
    record = (machine.directory / "rotation.json").read_text()
    assert ours.private_key_pem.reveal().decode().splitlines()[1] not in record
    if deadly < 0:  # that it was prepared is read, not decided
        assert kinds(machine.world)[1:] == ["root_activated", "root_tainted", "root_revoked", "root_steady"]
    # It is its supplier's: nobody here rotates it, by request or by schedule.
    request_rotation(machine.directory, new_request("now"))
    await process.lead(2)
    assert process.replica.authority.certificate == theirs.certificate
    assert machine.process().replica.authority.certificate == theirs.certificate


async def test_a_renewed_one_takes_the_same_way_and_one_that_is_withdrawn_goes_on_from_our_copy(
    machine: Supplied,
) -> None:
    process = machine.begin()
    machine.supply(machine.a_root())
    await process.lead(7)
    second = machine.supply(machine.a_root())
    await process.lead()
    assert process.stage is not Stage.STEADY
    await process.lead(7)
    assert process.replica.authority.certificate == second.certificate
    machine.withdraw()
    await process.lead(2)
    assert read_status(machine.directory)["problem"] == f"{machine.source}: holds no tls.crt and tls.key"
    assert kinds(machine.world)[-1] == "root_refused"
    process = machine.process()
    assert (process.stage, process.replica.authority.certificate) == (Stage.STEADY, second.certificate)


async def test_one_that_is_withdrawn_before_it_issues_changes_nothing(machine: Supplied) -> None:
    process = machine.begin()
    await process.lead()
    ours = process.replica.authority
    machine.supply(machine.a_root())
    assert not await process.keeper.look()  # as a replica that does not lead sees it
    assert process.stage is Stage.PREPARED
    with process.keeper.leading(_Waiting(machine)):
        await process.keeper.look()
    assert '"held.crt"' in (machine.directory / "rotation.json").read_text()
    machine.withdraw()
    await process.lead(3)
    assert (process.stage, process.replica.authority.certificate) == (Stage.STEADY, ours.certificate)
    assert '"held.crt"' not in (machine.directory / "rotation.json").read_text()
    request_rotation(machine.directory, new_request("now"))
    await process.lead(7)
    assert process.replica.authority.certificate != ours.certificate


class _Waiting:
    """A leader that is told of nobody yet."""

    def __init__(self, machine: Supplied) -> None:
        self.check = machine.world.check
        self.tell = machine.world.tell
        self.facts = machine.world.gather


async def test_where_one_is_supplied_from_the_start_no_root_of_ours_is_made(machine: Supplied) -> None:
    theirs = machine.supply(machine.a_root())
    process = machine.process()
    assert (process.stage, process.replica.authority.certificate) == (Stage.STEADY, theirs.certificate)
    assert process.replica.rotation.is_supplied
    await process.lead(3)
    assert kinds(machine.world) == []
    assert machine.process().replica.authority.certificate == theirs.certificate


@pytest.mark.parametrize("is_first", [True, False])
async def test_one_that_cannot_serve_is_refused_and_said(machine: Supplied, *, is_first: bool) -> None:
    process = None if is_first else machine.begin()
    ours = None if process is None else process.replica.authority
    machine.supply(machine.a_root())
    (machine.source / "tls.key").chmod(0o644)
    await _refused(machine, process, "anybody can read or write the CA's key")
    machine.supply(a_foreign_root(now=machine.world.now - 400 * DAY, trust_domain=DOMAIN))
    await _refused(machine, process, "expired")
    machine.supply(a_foreign_root(now=machine.world.now, trust_domain="elsewhere.internal"))
    (machine.source / "tls.key").unlink()
    await _refused(machine, process, "needs tls.crt and tls.key")
    machine.supply(Authority.create(trust_domain=DOMAIN, now=machine.world.now))
    await _refused(machine, process, "a root that smw made")
    machine.withdraw()
    await _refused(machine, process, "holds no tls.crt and tls.key")
    if process is not None and ours is not None:
        assert process.replica.authority.certificate == ours.certificate
        machine.supply(ours)  # a copy of the one that issues is no other root
        await process.lead(2)
        assert (process.stage, read_status(machine.directory)["problem"]) == (Stage.STEADY, "")


async def _refused(machine: Supplied, process: Process | None, why: str) -> None:
    if process is None:
        with pytest.raises(InvalidInput, match=why):
            machine.process()
        return
    await process.lead(2)
    assert why in read_status(machine.directory)["problem"]


async def test_a_mounted_version_is_read_as_one(machine: Supplied) -> None:
    """As kubelet mounts a Secret: links through ..data, which is swapped."""
    process = machine.begin()
    theirs = machine.supply(machine.a_root())
    version = machine.source / "..v1"
    version.mkdir()
    for name in ("tls.crt", "tls.key"):
        (machine.source / name).rename(version / name)
        (machine.source / name).symlink_to(f"..data/{name}")
    (machine.source / "..data").symlink_to("..v1")
    await process.lead(7)
    assert process.replica.authority.certificate == theirs.certificate


async def test_one_supplied_after_ours_has_ended_issues_at_once(machine: Supplied) -> None:
    await machine.begin().lead()
    machine.world.now += timedelta(days=20 * 365)
    theirs = machine.supply(machine.a_root())
    rotation = machine.files().load_or_create(now=machine.world.now).rotation
    assert (rotation.stage, rotation.roots.current.certificate) == (Stage.STEADY, theirs.certificate)
