"""Every replica follows what is kept, one moves it on, and a leader that is killed anywhere leaves nothing undone."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor_middleware.apps.replica import Replica
from supervisor_middleware.apps.root_keeper import RootKeeper, rotation_rules
from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.pki.authority import LEAF_LIFETIME, Authority
from supervisor_middleware.pki.files import Mode, replace_file
from supervisor_middleware.pki.rotation import Facts, Rotation, Rules
from supervisor_middleware.pki.rotation_files import RotationFiles, read_status, request_rotation
from supervisor_middleware.pki.rotation_record import Kept, Knowledge, StoredRotation, changes_to, stored_rotation
from supervisor_middleware.pki.rotation_requests import Request, Stage, new_request
from supervisor_middleware.pki.spiffe import SpiffeId
from supervisor_middleware.settings import ControlPlaneSettings
from supervisor_middleware.telemetry import ControlMetrics
from tests.pki.foreign import a_foreign_root
from tests.pki.test_rotation_record import after, put

DOMAIN = "openshell.internal"
OVERLAP = timedelta(seconds=1)


class Killed(BaseException):
    """The process ends here."""


@dataclass(kw_only=True)
class World:
    """What outlives a process: the place where the roots are kept, what is published, and the clock."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    kept: Kept | None = None
    version: int = 0
    request: Request | None = None
    published: bytes = b""
    shown: JsonObject = field(default_factory=dict)
    told: list[tuple[Stage, bytes]] = field(default_factory=list)
    audited: list[Event] = field(default_factory=list)
    facts: Facts = field(default_factory=lambda: Facts(is_counted=True))
    is_leading: bool = True
    is_down: bool = False
    acts: int = 0
    deadly: int = -1
    issuers: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = Authority.create(trust_domain=DOMAIN, now=self.now - timedelta(days=1))
        parts = {"tls.crt": first.certificate_pem, "tls.key": first.private_key_pem.reveal()}
        self.kept = self.kept or Kept(parts=parts)
        self.published = first.certificate_pem

    def act(self) -> None:
        """One step that somebody outside can see; the process may be killed before it."""
        self.acts += 1
        if self.acts == self.deadly:
            raise Killed
        if self.is_down:
            raise Unavailable("the API server is")

    def check(self) -> None:
        if not self.is_leading:
            raise Unavailable("not leading")

    # ----------------------------------------------------------------------------------------------------- the roots

    def stored(self, known: Rotation | None) -> StoredRotation | None:
        if self.kept is None:
            return None
        knowledge = Knowledge(trust_domain=DOMAIN, now=self.now, longest=LEAF_LIFETIME, rotation=known)
        return stored_rotation(self.kept, knowledge, version=str(self.version), request=self.request)

    async def read(self, *, now: datetime, known: Rotation) -> StoredRotation | None:
        self.act()
        return self.stored(known)

    async def write(self, rotation: Rotation, *, over: StoredRotation, check: Callable[[], None]) -> bool:
        self.act()
        check()
        if self.kept is None or over.version != str(self.version):
            return False
        self.kept = after(changes_to(rotation).over(self.kept), self.kept)
        self.version += 1
        self.act()
        return True

    async def show(self, status: JsonObject, *, check: Callable[[], None]) -> None:
        self.act()
        check()
        self.shown = status

    # ---------------------------------------------------------------------------------------------- what a leader knows

    def tell(self, rotation: Rotation) -> None:
        self.told.append((rotation.stage, rotation.roots.bundle))

    async def gather(self, rotation: Rotation) -> Facts:
        self.act()
        self.published = rotation.roots.bundle
        self.act()
        return replace(self.facts, is_published=True)

    # ---------------------------------------------------------------------------------------------------- a process

    def process(self) -> "Process":
        stored = self.stored(None)
        assert stored is not None
        return Process(self, stored.rotation)


@dataclass(frozen=True, slots=True)
class Term:
    world: World

    def check(self) -> None:
        self.world.check()

    def tell(self, rotation: Rotation) -> None:
        self.world.tell(rotation)

    async def facts(self, rotation: Rotation) -> Facts:
        return await self.world.gather(rotation)


class Process:
    """One replica."""

    def __init__(self, world: World, rotation: Rotation) -> None:
        self.world = world
        self.metrics = ControlMetrics()
        settings = ControlPlaneSettings()
        self.replica = Replica(settings, namespace="system", rotation=rotation, metrics=self.metrics)
        self.keeper = RootKeeper(
            replica=self.replica,
            roots=world,
            emit=world.audited.append,
            rules=Rules(overlap=OVERLAP),
            now=lambda: world.now,
        )

    @property
    def stage(self) -> Stage:
        return self.replica.rotation.stage

    async def lead(self, looks: int = 1) -> None:
        """Look as a leader, a second apart."""
        with self.keeper.leading(Term(self.world)):
            for _ in range(looks):
                while await self.keeper.look():
                    pass
                self.check()
                self.world.now += OVERLAP

    def check(self) -> None:
        """Whatever is issued now is believed by whoever reads what is published, and the operator's own is of it."""
        issuer = self.replica.authority.certificate_pem
        assert issuer in self.world.published
        leaf = self.replica.identity.current.leaf
        leaf.verify_directly_issued_by(self.replica.authority.certificate)
        assert self.replica.identity.current.trust_bundle_pem == self.replica.trust_bundle()
        assert issuer in self.replica.trust_bundle()
        if not self.world.issuers or self.world.issuers[-1] != issuer:
            self.world.issuers.append(issuer)


def kinds(world: World) -> list[str]:
    return [event.kind.value for event in world.audited if isinstance(event, Changed)]


_NUMBERS = itertools.count()


def ask(world: World, *, force: Stage | None = None) -> Request:
    world.request = new_request(f"r{next(_NUMBERS)}", force=force)
    world.version += 1
    return world.request


# -------------------------------------------------------------------------------------------------------- whole rotations


async def test_a_request_leads_through_every_stage_to_a_new_root() -> None:
    world = World()
    process = world.process()
    first = process.replica.authority
    await process.lead()
    assert world.shown["stage"] == "steady"
    request = ask(world)
    await process.lead(6)
    assert process.stage is Stage.STEADY
    assert process.replica.authority != first
    assert process.replica.trust_bundle() == world.published == process.replica.authority.certificate_pem
    assert kinds(world) == ["root_prepared", "root_activated", "root_tainted", "root_revoked", "root_steady"]
    begun = world.audited[0]
    assert isinstance(begun, Changed)
    assert (begun.reason, begun.request) == ("requested", request.identifier)
    assert begun.subject.startswith("CertificateAuthority sha256:")
    assert world.shown["request"] == request.identifier


@pytest.mark.parametrize("deadly", range(1, 70))
async def test_a_leader_killed_at_any_moment_is_succeeded_by_one_that_goes_on(deadly: int) -> None:
    world = World(deadly=deadly)
    first = world.kept
    ask(world)
    process = world.process()
    try:
        await process.lead(7)
    except Killed:
        process = world.process()
        process.check()
        await process.lead(7)
    assert process.stage is Stage.STEADY
    assert len(world.issuers) <= 2
    assert first is not None
    assert process.replica.authority.certificate_pem != first.parts["tls.crt"]
    assert world.published == process.replica.trust_bundle()


async def test_the_deadly_moments_are_all_of_a_rotation() -> None:
    """Else the test before would prove less than it says."""
    world = World()
    ask(world)
    await world.process().lead(7)
    assert 40 < world.acts < 70


async def test_followers_go_by_what_the_leader_keeps_and_write_nothing() -> None:
    world = World()
    leader, follower = world.process(), world.process()
    ask(world)
    for _ in range(6):
        await leader.lead()
        version = world.version
        await follower.keeper.look()
        assert world.version == version
        assert follower.replica.rotation == leader.replica.rotation
        follower.check()
    assert len({process.replica.identity.current.leaf.issuer for process in (leader, follower)}) == 1


async def test_three_that_lead_at_once_take_one_step() -> None:
    world = World()
    three = [world.process() for _ in range(3)]
    ask(world)
    states = [world.stored(process.replica.rotation) for process in three]
    assert len({state.version for state in states if state is not None}) == 1
    for process in three:
        await process.lead()
    # Keys are random: had two of them written, the bundles would differ.
    assert len({process.replica.trust_bundle() for process in three}) <= 2
    await three[0].keeper.look()
    await three[1].keeper.look()
    assert three[0].replica.rotation == three[1].replica.rotation == three[2].replica.rotation
    assert kinds(world).count("root_prepared") == 1


async def test_one_that_leads_no_more_writes_nothing() -> None:
    world = World()
    process = world.process()
    await process.lead()
    ask(world)
    world.is_leading = False
    version = world.version
    with pytest.raises(Unavailable):
        await process.lead()
    assert world.version == version
    assert process.stage is Stage.STEADY


async def test_a_stage_waits_for_what_is_told_of_others_and_says_so() -> None:
    world = World(facts=Facts(is_counted=True, refusing=("terms",), silent=("other",), absent=2, unacknowledged=1))
    process = world.process()
    ask(world)
    await process.lead(5)
    assert process.stage is Stage.PREPARED
    waits = world.shown["waitsFor"]
    assert isinstance(waits, list)
    assert [(w["reason"], w["count"], w["names"]) for w in waits] == [
        ("services_refusing", 1, ["terms"]),
        ("services_silent", 1, ["other"]),
        ("supervisors_unacknowledged", 1, []),
        ("supervisors_absent", 2, []),
    ]
    assert world.shown["next"] == "activated"
    roots = world.shown["roots"]
    assert isinstance(roots, list)
    assert [(r["role"], r["origin"]) for r in roots] == [("issuing", "own"), ("next", "own")]
    assert set(world.told) == {(Stage.STEADY, process.replica.authority.certificate_pem)} | {
        (Stage.PREPARED, world.published)
    }


async def test_force_is_audited_with_what_it_overrode() -> None:
    world = World(facts=Facts(is_counted=True, refusing=("terms",), unacknowledged=3))
    process = world.process()
    ask(world)
    await process.lead(3)
    request = ask(world, force=Stage.PREPARED)
    await process.lead()
    assert process.stage is Stage.ACTIVATED
    forced = next(e for e in world.audited if isinstance(e, Changed) and e.kind is ChangeKind.ROOT_FORCED)
    assert forced.reason == "services_refusing,supervisors_unacknowledged"
    assert (forced.count, forced.request) == (3, request.identifier)
    assert kinds(world)[-1] == "root_activated"


async def test_a_request_that_can_do_nothing_is_audited_as_refused() -> None:
    world = World(facts=Facts(is_counted=True, unacknowledged=1))
    process = world.process()
    ask(world)
    await process.lead(2)
    ask(world)
    await process.lead(2)
    refused = world.audited[-1]
    assert isinstance(refused, Changed)
    assert (refused.kind, refused.reason) == (ChangeKind.ROOT_REQUEST_REFUSED, "under_way")
    assert kinds(world).count("root_request_refused") == 1


# ---------------------------------------------------------------------------------------------- what others do to the roots


async def test_a_secret_that_is_deleted_is_not_made_anew_and_what_runs_goes_on() -> None:
    world = World()
    process = world.process()
    await process.lead()
    kept, world.kept = world.kept, None
    before = process.replica.rotation
    await process.lead(3)
    assert world.kept is None
    assert process.replica.rotation == before
    assert kinds(world) == ["root_missing"]
    assert b"supervisor_middleware_root_usable 0.0" in process.metrics.render()
    ask(world)
    await process.lead(3)
    assert process.stage is Stage.STEADY
    world.kept = kept
    await process.lead(6)
    assert b"supervisor_middleware_root_usable 1.0" in process.metrics.render()
    assert process.replica.authority != before.roots.current


async def test_a_root_that_is_supplied_takes_over_in_the_same_stages() -> None:
    world = World()
    process = world.process()
    await process.lead()
    supplied = a_foreign_root(now=world.now - timedelta(days=1), trust_domain=DOMAIN)
    assert world.kept is not None
    world.kept, world.version = put(world.kept, supplied), world.version + 1
    first = process.replica.authority
    await process.lead()
    assert (process.stage, process.replica.authority) == (Stage.PREPARED, first)
    restarted = world.process()
    assert restarted.replica.authority == first
    await restarted.lead(6)
    assert (restarted.stage, restarted.replica.authority) == (Stage.STEADY, supplied)
    assert kinds(world)[-4:] == ["root_activated", "root_tainted", "root_revoked", "root_steady"]
    ask(world)
    await restarted.lead(2)
    refused = world.audited[-1]
    assert isinstance(refused, Changed)
    assert (refused.kind, refused.reason) == (ChangeKind.ROOT_REQUEST_REFUSED, "supplied")


async def test_a_supplied_root_that_cannot_serve_is_refused_and_said_once() -> None:
    world = World()
    process = world.process()
    await process.lead()
    first = process.replica.authority
    foreign = a_foreign_root(now=world.now - timedelta(days=1), trust_domain=DOMAIN)
    assert world.kept is not None
    world.kept, world.version = put(world.kept, foreign, key=first), world.version + 1
    await process.lead(3)
    assert kinds(world) == ["root_refused"]
    assert "another certificate" in str(world.shown["problem"])
    assert process.replica.authority == first
    # A restart has it too: it was kept aside.
    assert world.process().replica.authority == first


async def test_roots_that_cannot_be_read_any_more_are_said_and_what_runs_goes_on() -> None:
    world = World()
    process = world.process()
    await process.lead()
    before = process.replica.rotation
    assert world.kept is not None
    broken = {**world.kept.parts, "held.crt": b"nonsense", "held.key": b"nonsense"}
    world.kept, world.version = replace(world.kept, parts=broken), world.version + 1
    await process.lead(2)
    assert process.replica.rotation == before
    assert kinds(world) == ["root_refused"]
    assert b"supervisor_middleware_root_usable 0.0" in process.metrics.render()


async def test_an_outage_changes_nothing_and_a_new_leader_waits_for_what_is_kept() -> None:
    world = World()
    process = world.process()
    await process.lead()
    before = process.replica.rotation
    world.is_down = True
    with pytest.raises(Unavailable):
        await process.keeper.look()
    assert process.replica.rotation == before
    world.is_down = False
    await process.keeper.catch_up()


# ------------------------------------------------------------------------------------------------------------ standalone


class Machine:
    """A standalone operator's directory, and processes over it that may be killed before any write."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.world = World()
        self.writes, self.deadly = 0, -1
        real = replace_file

        def deadly_replace(path: Path, content: bytes, *, mode: Mode) -> None:
            self.writes += 1
            if self.writes == self.deadly:
                raise Killed
            real(path, content, mode=mode)

        monkeypatch.setattr("supervisor_middleware.pki.rotation_files.replace_file", deadly_replace)

    def process(self) -> Process:
        files = RotationFiles(self.directory, trust_domain=DOMAIN)
        rotation = files.load_or_create(now=self.world.now).rotation
        process = Process(self.world, rotation)
        process.keeper.roots = files
        if not self.world.issuers:
            self.world.published = rotation.roots.bundle
        return process

    async def lead(self, process: Process, *, deadly: int) -> Process:
        """Go through a rotation, killed before the write of that number and begun again; whoever leads in the end."""
        self.writes, self.deadly = 0, deadly
        try:
            await process.lead(7)
        except Killed:
            process = self.process()
            process.check()
            await process.lead(7)
        return process


@pytest.mark.parametrize("deadly", [-1, *range(1, 18)])
async def test_standalone_goes_through_a_rotation_also_if_it_is_killed_before_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadly: int
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    process = machine.process()
    first = process.replica.authority
    request_rotation(tmp_path, new_request("now"))
    process = await machine.lead(process, deadly=deadly)
    assert process.stage is Stage.STEADY
    assert process.replica.authority != first
    assert (tmp_path / "authority.pem").read_bytes().startswith(process.replica.authority.certificate_pem)
    assert machine.process().replica.rotation.roots == process.replica.rotation.roots
    assert read_status(tmp_path)["stage"] == "steady"
    for name in ("authority.pem", "rotation.json", "rotation-request"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert "PRIVATE" not in (tmp_path / "rotation-status.json").read_text()
    assert first.private_key_pem.reveal().decode() not in (tmp_path / "rotation.json").read_text()
    assert machine.writes >= 17 or deadly > 0


async def test_standalone_says_what_is_wrong_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    process = machine.process()
    await process.lead()
    with pytest.raises(InvalidInput, match="keeps its state"):
        read_status(tmp_path / "elsewhere")
    (tmp_path / "authority.pem").unlink()
    await process.lead()
    assert kinds(machine.world) == ["root_missing"]
    with pytest.raises(InvalidInput, match="the CA is missing: restore it"):
        machine.process()
    (tmp_path / "authority.pem").write_bytes(b"")
    (tmp_path / "rotation.json").chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        machine.process()
    (tmp_path / "rotation.json").chmod(0o600)
    for content in ("nonsense", "{}", '{"parts": {"tls.crt": "x"}, "notes": {}}', '{"parts": [], "notes": {}}'):
        (tmp_path / "rotation.json").write_text(content)
        with pytest.raises(InvalidInput, match=r"rotation\.json"):
            machine.process()
    (tmp_path / "rotation-status.json").write_text("nonsense")
    with pytest.raises(InvalidInput, match="is not a status file"):
        read_status(tmp_path)


def test_the_rules_are_the_settings() -> None:
    settings = ControlPlaneSettings.model_validate(
        {"root_overlap": "5s", "root_lifetime": "8760h", "root_rotation": "OnRequest"}
    )
    rules = rotation_rules(settings)
    assert rules == Rules(overlap=timedelta(seconds=5), root_lifetime=timedelta(days=365), is_scheduled=False)
    assert rotation_rules(ControlPlaneSettings()).is_scheduled


def test_the_operators_id_stays_the_same_through_a_rotation() -> None:
    world = World()
    process = world.process()
    before = process.replica.identity.current
    process.replica.follow(
        replace(process.replica.rotation, roots=process.replica.rotation.roots.with_successor(now=world.now))
    )
    assert process.replica.identity.current.leaf == before.leaf
    promoted = process.replica.rotation.roots.promoted()
    process.replica.follow(replace(process.replica.rotation, roots=promoted))
    assert process.replica.identity.current.leaf != before.leaf
    assert isinstance(before.spiffe_id, SpiffeId)
    assert process.replica.identity.current.spiffe_id == before.spiffe_id
