"""The webhook's certificate in a replica, with clocks and a cluster that a test holds in its hands."""

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.apps.webhook_certificate import Leaf, MountedCertificate, OwnCertificate, load_into
from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.succession import RETIREMENT, ROOT_LIFETIME, Succession
from supervisor_middleware.sources.cluster_serving import StoredSuccession

OVERLAP = timedelta(seconds=60)
DOMAIN = "webhook.example"
NAMES = ("webhook.smw.svc",)


@dataclass
class World:
    """A Secret, a configuration, and time."""

    at: float = 0.0
    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    secret: Succession | None = None
    version: int = 0
    trusted: tuple[bytes, ...] = ()
    is_down: bool = False
    problem: str = ""
    loses: int = 0
    """How many writes are lost to somebody else."""

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds

    # ------------------------------------------------------------------------------------------------ the Secret

    async def read(self, *, now: datetime) -> StoredSuccession | None:
        self._check()
        if self.problem:
            raise InvalidInput(self.problem)
        return None if self.secret is None else StoredSuccession(succession=self.secret, version=str(self.version))

    def first(self, *, trusted: tuple[bytes, ...], now: datetime) -> Succession:
        made = Authority.create(trust_domain=DOMAIN, now=now, lifetime=ROOT_LIFETIME)
        return Succession(current=made, retired=trusted)

    async def write(self, succession: Succession, *, over: str | None) -> bool:
        self._check()
        if over != (None if self.secret is None else str(self.version)):
            return False
        self.version += 1
        self.secret = succession
        return True

    # ------------------------------------------------------------------------------------------ the configuration

    async def roots(self) -> tuple[bytes, ...]:
        self._check()
        return self.trusted

    async def ensure(self, pem: bytes) -> bool:
        self._check()
        was_so = b"".join(self.trusted) == pem
        assert self.secret is not None
        self.trusted = self.secret.roots if self.secret.bundle == pem else self.trusted
        return was_so

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("the API server is down")


@dataclass
class Replica:
    """One process; `issuer` of what it serves with."""

    world: World
    leaves: list[bytes] = field(default_factory=list)
    certificate: OwnCertificate = field(init=False)

    def __post_init__(self) -> None:
        self.certificate = OwnCertificate(
            roots=self.world,
            trust=self.world,
            load=lambda chain, _: self.leaves.append(chain),
            leaf=Leaf(dns_names=NAMES, lifetime=timedelta(hours=24)),
            overlap=OVERLAP,
            now=self.world.now,
            monotonic=self.world.monotonic,
            sleep=self.world.sleep,
        )

    @property
    def issuer(self) -> bytes:
        served = self.certificate._served
        assert served is not None
        return served.trust_bundle_pem

    async def look(self) -> None:
        await self.certificate.look()
        # What a client of the API server would find: never a leaf that is not trusted.
        assert self.issuer in self.world.trusted


@pytest.fixture
def world() -> World:
    return World()


async def pass_time(replicas: list[Replica], seconds: float, *, step: float = 10) -> None:
    world = replicas[0].world
    end = world.at + seconds
    while world.at < end:
        world.at += step
        for replica in replicas:
            await replica.look()


async def test_a_first_replica_makes_a_root_and_has_it_trusted(world: World) -> None:
    replica = Replica(world)
    await replica.certificate.start()
    assert world.secret is not None
    assert world.trusted == world.secret.roots == (replica.issuer,)
    assert len(replica.leaves) == 1
    await pass_time([replica], 600)
    assert len(replica.leaves) == 1


async def test_several_that_start_at_once_share_one_root(world: World) -> None:
    replicas = [Replica(world) for _ in range(3)]
    for replica in replicas:
        await replica.certificate.start()
    assert len({r.issuer for r in replicas}) == 1
    assert len({leaf for r in replicas for leaf in r.leaves}) == 3


async def test_whoever_is_second_to_create_takes_what_is_there(world: World) -> None:
    other = world.first(trusted=(), now=world.now())
    original = world.write

    async def lose(succession: Succession, *, over: str | None) -> bool:
        world.secret, world.version = other, 7
        world.write = original  # type: ignore[method-assign]
        return False

    world.write = lose  # type: ignore[method-assign]
    replica = Replica(world)
    await replica.certificate.start()
    assert replica.issuer == other.current.certificate_pem


async def test_a_deleted_secret_changes_the_root_in_stages(world: World) -> None:
    replicas = [Replica(world) for _ in range(3)]
    for replica in replicas:
        await replica.certificate.start()
    await pass_time(replicas, 60)
    old = replicas[0].issuer
    world.secret = None
    await pass_time(replicas, 30)
    assert world.trusted[0] == old
    assert len(world.trusted) == 2
    assert {r.issuer for r in replicas} == {old}
    await pass_time(replicas, 2 * OVERLAP.total_seconds())
    new = world.trusted[1]
    assert {r.issuer for r in replicas} == {new}
    assert world.trusted == (old, new)
    await pass_time(replicas, RETIREMENT * OVERLAP.total_seconds() + 60)
    assert list(world.trusted) == [new]


async def test_a_root_of_a_certain_age_gives_way_by_itself(world: World) -> None:
    replica = Replica(world)
    await replica.certificate.start()
    old = replica.issuer
    await pass_time([replica], ROOT_LIFETIME.total_seconds() * 0.7, step=6 * 3600)
    await pass_time([replica], 600)
    assert replica.issuer != old
    assert world.trusted == (replica.issuer,)


async def test_a_newcomer_that_finds_no_secret_leaves_the_others_trusted(world: World) -> None:
    one = Replica(world)
    await one.certificate.start()
    await pass_time([one], 60)
    old = one.issuer
    world.secret = None
    newcomer = Replica(world)
    await newcomer.certificate.start()
    assert world.trusted == (old, newcomer.issuer)
    await one.look()
    assert one.issuer == old, "the new root is too young for one who serves well"
    await pass_time([one, newcomer], 90)
    assert one.issuer == newcomer.issuer


async def test_a_bundle_that_was_removed_counts_anew(world: World) -> None:
    replica = Replica(world)
    await replica.certificate.start()
    world.secret = None
    await pass_time([replica], 50)
    world.trusted = ()
    await pass_time([replica], 40)
    assert world.secret is not None
    assert world.secret.successor is not None, "the successor was not trusted for the overlap without a break"
    await pass_time([replica], 60)
    assert world.secret.successor is None


async def test_a_leaf_is_renewed_at_half_of_its_life(world: World) -> None:
    replica = Replica(world)
    await replica.certificate.start()
    await pass_time([replica], 13 * 3600, step=600)
    assert len(replica.leaves) == 2


async def test_an_outage_is_waited_for_at_the_start_and_survived_later(world: World) -> None:
    replica = Replica(world)
    world.is_down = True
    waits = 0

    async def sleep(seconds: float) -> None:
        nonlocal waits
        waits += 1
        world.is_down = waits < 3

    replica.certificate.sleep = sleep
    with capture_logs() as logs:
        await replica.certificate.start()
    assert [log["log_level"] for log in logs if "yet" in log["event"]] == ["warning"] * 3
    assert replica.leaves


async def test_keeping_goes_on_whatever_a_look_meets(world: World) -> None:
    replica = Replica(world)
    await replica.certificate.start()
    looks = 0

    async def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        world.is_down, world.problem = looks == 1, "it cannot serve" if looks == 2 else ""
        world.at += seconds
        if looks == 4:
            raise KeyboardInterrupt

    replica.certificate.sleep = sleep
    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        await replica.certificate.keep()
    assert [log["reason"] for log in logs] == ["the API server is down", "it cannot serve"]


async def test_a_secret_that_cannot_serve_ends_the_start(world: World) -> None:
    world.problem = "needs tls.crt and tls.key"
    with pytest.raises(InvalidInput, match="needs tls"):
        await Replica(world).certificate.start()


async def test_a_secret_that_does_not_stay_is_an_outage(world: World) -> None:
    async def write(succession: Succession, *, over: str | None) -> bool:
        return False

    world.write = write  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="does not stay"):
        await Replica(world).certificate.look()


# ------------------------------------------------------------------------------------------------------------ a folder


def a_pair(folder: Path, *, lifetime: timedelta = timedelta(hours=1)) -> tuple[bytes, bytes]:
    now = datetime.now(UTC)
    issued = Authority.create(trust_domain=DOMAIN, now=now).issue_server(dns_names=NAMES, now=now, lifetime=lifetime)
    pair = issued.certificate_chain_pem, issued.private_key_pem.reveal()
    (folder / "tls.crt").write_bytes(pair[0])
    (folder / "tls.key").write_bytes(pair[1])
    return pair


async def test_a_mounted_pair_is_loaded_again_when_it_changes(tmp_path: Path) -> None:
    tls, loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[bytes]()

    def load(chain: bytes, key: SecretBytes) -> None:
        load_into(tls, chain, key)
        loaded.append(chain)

    certificate = MountedCertificate(folder=tmp_path, load=load)
    pairs: list[tuple[bytes, bytes]] = []

    async def appear(_: float) -> None:
        pairs.append(a_pair(tmp_path))

    certificate.sleep = appear
    with capture_logs() as logs:
        await certificate.start()
    assert [log["error"] for log in logs] == ["FileNotFoundError"]
    assert loaded == [pairs[0][0]]

    looks = 0

    async def change(_: float) -> None:
        nonlocal looks
        looks += 1
        match looks:
            case 2:
                pairs.append(a_pair(tmp_path))
                (tmp_path / "tls.key").write_bytes(pairs[0][1])  # half of a change
            case 3:
                (tmp_path / "tls.key").write_bytes(pairs[1][1])
            case 4:
                (tmp_path / "tls.crt").write_text("no certificate")
            case 5:
                raise KeyboardInterrupt

    certificate.sleep = change
    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        await certificate.keep()
    assert loaded == [pairs[0][0], pairs[1][0]]
    assert len(logs) == 2
    assert "PRIVATE" not in str(logs)
