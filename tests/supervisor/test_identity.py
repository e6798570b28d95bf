"""When a certificate is asked for, and what becomes of one that is no good. The operator is a function."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.credential_files import read_credentials, write_credentials
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.spiffe import supervisor_id
from supervisor_middleware.supervisor.enrollment import Enroller
from supervisor_middleware.supervisor.identity import EARLY_RETRY, Identity, Surroundings
from supervisor_middleware.supervisor.operator_channel import Busy
from supervisor_middleware.supervisor.renewal import RenewalRefused
from supervisor_middleware.supervisor.trust import Installation, TrustBundle, is_issued_by
from tests.pki.builders import NOW, TRUST_DOMAIN, an_authority, an_identity, supervisor_credentials

OWNER = str(supervisor_id(TRUST_DOMAIN, namespace="team-a", sandbox="coder"))
AUTHORITY = an_authority()
OTHER_AUTHORITY = an_authority()


class SetClock:
    """Time stands where a test puts it; a pause is one turn of the loop."""

    def __init__(self) -> None:
        self.time = NOW
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class PaperEnroller:
    owner = OWNER

    def __init__(self, clock: SetClock) -> None:
        self.clock = clock
        self.authority = AUTHORITY
        self.ahead = timedelta()
        self.can_enroll = True
        self.problem: Exception | None = None
        self.attempts: list[int] = []
        self.kept: list[Credentials] = []

    def settled(self, credentials: Credentials) -> None:
        self.kept.append(credentials)

    async def enroll(self, *, attempt: int) -> Credentials:
        self.attempts.append(attempt)
        if self.problem is not None:
            raise self.problem
        return supervisor_credentials(self.authority, now=self.clock.time + self.ahead)


class PaperRenewer:
    def __init__(self, enroller: PaperEnroller) -> None:
        self.enroller = enroller
        self.problem: Exception | None = None
        self.shown: list[Credentials] = []

    async def renew(self, current: Credentials, *, attempt: int) -> Credentials:
        self.shown.append(current)
        if self.problem is not None:
            raise self.problem
        return supervisor_credentials(self.enroller.authority, now=self.enroller.clock.time + self.enroller.ahead)


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.enroller = PaperEnroller(self.clock)
        self.renewer = PaperRenewer(self.enroller)
        self.audited: list[Event] = []
        self.directory = folder / "identity"
        self.bundle = folder / "bundle.pem"
        self.given: Path | None = None
        self.bundle.write_bytes(AUTHORITY.certificate_pem)

    def identity(self) -> Identity:
        audit: Callable[[Event], None] = self.audited.append
        return Identity(
            Surroundings(
                directory=self.directory,
                enroller=self.enroller,
                renewer=self.renewer,
                trust=TrustBundle(self.bundle, given=self.given),
                audit=audit,
                clock=self.clock,
                random=lambda: 0.5,
            )
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Identity]:
        identity = self.identity()
        identity.load()
        task = asyncio.create_task(identity.run())
        try:
            yield identity
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def settle(holds: Callable[[], bool] = lambda: False) -> None:
    """Until it holds, else long enough for what should not happen to have happened."""
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0.001)


async def test_without_credentials_it_enrols_and_keeps_them(world: World) -> None:
    async with world.running() as identity:
        await settle(lambda: identity.credentials.value is not None)
    assert read_credentials(world.directory) == identity.credentials.value
    assert world.audited == [Changed(kind=ChangeKind.CREDENTIALS_ISSUED, subject=OWNER)]


async def test_good_credentials_are_taken_from_the_directory(world: World) -> None:
    stored = supervisor_credentials(AUTHORITY)
    write_credentials(world.directory, stored)
    async with world.running() as identity:
        await settle()
        assert identity.credentials.value == stored
        assert world.enroller.attempts == []


@pytest.mark.parametrize(
    ("later", "change", "enrolments"),
    [
        (timedelta(hours=13), ChangeKind.CREDENTIALS_ROTATED, 0),
        # One that is expired proves nothing any more.
        (timedelta(days=3), ChangeKind.CREDENTIALS_ISSUED, 1),
    ],
)
async def test_a_certificate_past_half_its_life_is_renewed_and_an_expired_one_is_enrolled_anew(
    world: World, later: timedelta, change: ChangeKind, enrolments: int
) -> None:
    write_credentials(world.directory, stored := supervisor_credentials(AUTHORITY))
    world.clock.time = NOW + later
    async with world.running() as identity:
        await settle(lambda: world.audited != [])
        assert identity.credentials.value is not None
        assert identity.credentials.value.expires_at > stored.expires_at
    assert [e.kind for e in world.audited if isinstance(e, Changed)] == [change]
    assert (len(world.enroller.attempts), len(world.renewer.shown)) == (enrolments, 1 - enrolments)


async def test_another_sandboxs_or_broken_credentials_are_not_used(world: World) -> None:
    write_credentials(world.directory, supervisor_credentials(AUTHORITY, identity=an_identity(sandbox="other")))
    identity = world.identity()
    identity.load()
    assert identity.credentials.value is None
    (world.directory / "tls.key").unlink()
    identity.load()
    assert identity.credentials.value is None


async def test_a_failed_renewal_keeps_what_is_there_and_is_tried_again(world: World) -> None:
    write_credentials(world.directory, stored := supervisor_credentials(AUTHORITY))
    world.clock.time = NOW + timedelta(hours=13)
    world.renewer.problem = Unavailable("away")
    async with world.running() as identity:
        await settle(lambda: len(world.renewer.shown) > 3)
        assert identity.credentials.value == stored
        assert world.clock.slept[:3] == sorted(world.clock.slept[:3])
        # Whoever is away is no reason to spend a token.
        assert world.enroller.attempts == []
        world.renewer.problem = None
        await settle(lambda: identity.credentials.value != stored)
        assert identity.credentials.value != stored


async def test_a_busy_operator_is_left_alone_for_as_long_as_it_asks(world: World) -> None:
    world.enroller.problem = Busy("too many at once", pause=40.0)
    async with world.running() as identity:
        await settle(lambda: len(world.enroller.attempts) == 3)
        assert world.clock.slept[:2] == [50.0, 50.0], "with a jitter of up to half as much again"
        world.enroller.problem = None
        await settle(lambda: identity.credentials.value is not None)


async def test_a_certificate_that_is_not_renewed_is_replaced_by_the_token(world: World) -> None:
    write_credentials(world.directory, stored := supervisor_credentials(AUTHORITY))
    world.clock.time = NOW + timedelta(hours=13)
    world.renewer.problem = RenewalRefused("no")
    async with world.running() as identity:
        await settle(lambda: identity.credentials.value != stored)
        assert identity.credentials.value != stored
    assert (world.renewer.shown, world.enroller.attempts) == ([stored], [0])


async def test_without_a_token_a_valid_certificate_is_used_to_its_end(world: World) -> None:
    write_credentials(world.directory, stored := supervisor_credentials(AUTHORITY))
    world.enroller.can_enroll = False
    world.enroller.problem = InvalidInput("no token")
    world.renewer.problem = RenewalRefused("no")
    world.clock.time = NOW + timedelta(hours=20)
    async with world.running() as identity:
        await settle(lambda: len(world.renewer.shown) > 2)
        assert world.enroller.attempts == []
        assert identity.credentials.value == stored
        world.clock.time = NOW + timedelta(hours=25)
        await settle(lambda: world.enroller.attempts != [])
        assert world.enroller.attempts != []


async def test_a_certificate_that_begins_later_is_replaced_once_the_operators_clock_is_right(world: World) -> None:
    write_credentials(world.directory, early := supervisor_credentials(AUTHORITY, now=NOW + timedelta(hours=6)))
    world.renewer.problem = Unavailable("TLS")
    async with world.running() as identity:
        await settle(lambda: identity.credentials.value != early)
        assert (len(world.renewer.shown), world.enroller.attempts) == (1, [0])
        assert identity.credentials.value is not None
        assert identity.credentials.value.not_before < NOW


async def test_whose_own_clock_is_behind_replaces_its_certificate_now_and_then_only(world: World) -> None:
    world.enroller.ahead = timedelta(hours=6)
    write_credentials(world.directory, supervisor_credentials(AUTHORITY, now=NOW + timedelta(hours=6)))
    async with world.running():
        await settle(lambda: world.renewer.shown != [])
        await settle()
        assert len(world.renewer.shown) == 1
        world.clock.time += timedelta(seconds=EARLY_RETRY)
        await settle(lambda: len(world.renewer.shown) > 1)
        await settle()
        assert len(world.renewer.shown) == 2
    assert world.enroller.attempts == []


async def test_an_early_certificate_without_a_token_is_kept(world: World) -> None:
    write_credentials(world.directory, early := supervisor_credentials(AUTHORITY, now=NOW + timedelta(hours=6)))
    world.enroller.can_enroll = False
    async with world.running() as identity:
        await settle()
        assert (identity.credentials.value, world.renewer.shown, world.enroller.attempts) == (early, [], [])


async def test_a_problem_is_told_once_however_often_it_is_met(world: World) -> None:
    world.enroller.problem = Untrusted("no")
    with capture_logs() as logs:
        async with world.running():
            await settle(lambda: len(world.enroller.attempts) > 3)
            world.enroller.problem = Unavailable("away")
            told = len(world.enroller.attempts)
            await settle(lambda: len(world.enroller.attempts) > told + 3)
    assert [entry["reason"] for entry in logs if entry["log_level"] == "error"] == ["no", "away"]


async def test_a_refusal_by_the_operator_leads_to_one_attempt(world: World) -> None:
    write_credentials(world.directory, supervisor_credentials(AUTHORITY))
    world.renewer.problem = RenewalRefused("no")
    world.enroller.problem = Untrusted("no")
    async with world.running() as identity:
        await settle()
        identity.refused()
        await settle()
        assert (len(world.renewer.shown), world.enroller.attempts) == (1, [0])


async def test_a_certificate_whose_root_left_the_bundle_is_replaced_once_a_bundle(world: World) -> None:
    write_credentials(world.directory, supervisor_credentials(AUTHORITY))
    world.bundle.write_bytes(OTHER_AUTHORITY.certificate_pem)
    world.enroller.authority = OTHER_AUTHORITY
    async with world.running() as identity:
        await settle(lambda: world.enroller.attempts != [])
        await settle()
        assert world.enroller.attempts == [0]
        assert identity.credentials.value is not None
        assert is_issued_by(identity.credentials.value.leaf, OTHER_AUTHORITY.certificate_pem)


async def test_credentials_that_cannot_be_saved_are_used_all_the_same(world: World) -> None:
    world.directory.write_text("in the way")
    async with world.running() as identity:
        await settle(lambda: identity.credentials.value is not None)
        assert identity.credentials.value is not None


def test_a_bundle_file_that_is_missing_or_none_says_what_to_do(world: World) -> None:
    trust = TrustBundle(world.bundle)
    assert trust.digest() == bundle_digest(AUTHORITY.certificate_pem)
    world.bundle.write_bytes(b"nonsense")
    with pytest.raises(InvalidInput, match=r"bundle\.pem"):
        trust.read()
    assert trust.digest() == ""
    world.bundle.unlink()
    with pytest.raises(InvalidInput, match="trusted on first use"):
        trust.read()


def test_a_bundle_is_installed_only_with_its_digest_and_never_half(world: World) -> None:
    trust = TrustBundle(world.bundle)
    both = AUTHORITY.certificate_pem + OTHER_AUTHORITY.certificate_pem
    with pytest.raises(Untrusted):
        trust.install(both, stated_digest=bundle_digest(AUTHORITY.certificate_pem))
    with pytest.raises(Untrusted):
        trust.install(both[:-40], stated_digest=bundle_digest(both))
    assert trust.read() == AUTHORITY.certificate_pem
    assert trust.install(both, stated_digest=bundle_digest(both)) is Installation.INSTALLED
    assert trust.install(both, stated_digest=bundle_digest(both)) is Installation.UNCHANGED


def test_a_bundle_file_that_somebody_else_keeps_is_left_to_them(world: World) -> None:
    trust = TrustBundle(world.bundle / "bundle.pem")
    pem = AUTHORITY.certificate_pem
    assert trust.install(pem, stated_digest=bundle_digest(pem)) is Installation.READ_ONLY


def an_enroller(world: World, *, token: Path | None, authority: Authority = AUTHORITY) -> Enroller:
    world.bundle.write_bytes(authority.certificate_pem)
    return Enroller(
        addresses=("127.0.0.1:1",),
        trust_domain=TRUST_DOMAIN,
        trust=TrustBundle(world.bundle),
        owner=OWNER,
        token_file=token,
    )


@pytest.mark.parametrize("content", [None, b"", b"  \n", "schlüssel".encode(), b"x" * 20_000])
async def test_a_token_file_without_a_token_is_named(world: World, tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    enroller = an_enroller(world, token=token)
    assert enroller.can_enroll is (content is not None)
    with pytest.raises(InvalidInput, match="token"):
        await enroller.enroll(attempt=0)
    assert not an_enroller(world, token=None).can_enroll
    with pytest.raises(InvalidInput, match="no token file"):
        await an_enroller(world, token=None).enroll(attempt=0)


async def test_a_token_whose_folder_cannot_be_entered_ends_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    enroller = an_enroller(world, token=tmp_path / "token")
    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    assert enroller.can_enroll
    with pytest.raises(InvalidInput, match="Permission denied"):
        enroller._token()


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "https://host:1", "host:x"])
def test_an_address_that_is_none_is_refused_at_once(world: World, address: str) -> None:
    with pytest.raises(InvalidInput, match="host:port"):
        Enroller(
            addresses=(address,),
            trust_domain=TRUST_DOMAIN,
            trust=TrustBundle(world.bundle),
            owner="",
            token_file=None,
        )
    with pytest.raises(InvalidInput, match="no operator address"):
        Enroller(addresses=(), trust_domain=TRUST_DOMAIN, trust=TrustBundle(world.bundle), owner="", token_file=None)


async def test_a_given_bundle_that_changes_has_the_operator_proven_anew(world: World, tmp_path: Path) -> None:
    write_credentials(world.directory, stored := supervisor_credentials(AUTHORITY))
    world.given = tmp_path / "given.pem"
    world.given.write_bytes(AUTHORITY.certificate_pem)
    async with world.running() as identity:
        await settle()
        change = identity.credentials.change
        both = AUTHORITY.certificate_pem + OTHER_AUTHORITY.certificate_pem
        world.given.write_bytes(both)
        await settle(change.is_set)
        assert change.is_set()
        assert identity.credentials.value is not None
        assert identity.credentials.value.trust_bundle_pem == both
        assert identity.credentials.value.leaf == stored.leaf
    kept = read_credentials(world.directory)
    assert kept is not None
    assert kept.trust_bundle_pem == both
    assert (world.renewer.shown, world.enroller.attempts) == ([], [])


async def test_a_bundle_that_an_operator_sent_is_kept_beside_the_key_and_wakes_nobody_again(world: World) -> None:
    write_credentials(world.directory, supervisor_credentials(AUTHORITY))
    async with world.running() as identity:
        await settle()
        change = identity.credentials.change
        both = AUTHORITY.certificate_pem + OTHER_AUTHORITY.certificate_pem
        world.bundle.write_bytes(both)

        def is_kept() -> bool:
            kept = read_credentials(world.directory)
            return kept is not None and kept.trust_bundle_pem == both

        await settle(is_kept)
        assert is_kept()
        assert not change.is_set()


async def test_a_given_bundle_without_our_root_has_us_enrol_anew(world: World, tmp_path: Path) -> None:
    write_credentials(world.directory, supervisor_credentials(AUTHORITY))
    world.given = tmp_path / "given.pem"
    world.given.write_bytes(AUTHORITY.certificate_pem)
    async with world.running():
        await settle()
        world.enroller.authority = OTHER_AUTHORITY
        world.given.write_bytes(OTHER_AUTHORITY.certificate_pem)
        await settle(lambda: world.enroller.attempts != [])
        assert (world.renewer.shown, world.enroller.attempts) == ([], [0])


async def test_a_certificate_of_a_minute_is_looked_at_when_it_is_due(world: World) -> None:
    write_credentials(world.directory, supervisor_credentials(AUTHORITY, lifetime=timedelta(minutes=1)))
    world.clock.time = NOW + timedelta(seconds=20)
    async with world.running():
        await settle(lambda: world.clock.slept != [])
    # It began six seconds early; half of its 66 seconds is over 27 seconds after its issue.
    assert world.clock.slept[0] == 7.0
