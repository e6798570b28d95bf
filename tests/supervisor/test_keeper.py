"""What a keeper does with offers while preparations take their time: no socket, and a clock that tests move."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import cast

import grpc
import pytest
from grpc import aio

from supervisor_middleware.audit.events import Event
from supervisor_middleware.model.generation import Generation, Rank, Service, Stage, seal
from supervisor_middleware.model.limits import PLATFORM_PATIENCE
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.supervisor.activation import Candidate, Held, OfferedGeneration, RejectionReason
from supervisor_middleware.supervisor.announcements import Announcer
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.connections import Lease, Pool, channel_key
from supervisor_middleware.supervisor.keeper import Keeper
from supervisor_middleware.supervisor.keeping import Surroundings
from supervisor_middleware.supervisor.pacing import Watched
from supervisor_middleware.supervisor.record import Defect, Record
from supervisor_middleware.supervisor.reports import Accepted, Active, Rejected, StateReport
from supervisor_middleware.supervisor.runtime import Connected, Evaluator, Prepared, Runtime
from supervisor_middleware.supervisor.store import Loaded
from tests.builders import a_service
from tests.supervisor.builders import stage
from tests.waiting import eventually

PATIENCE = PLATFORM_PATIENCE.total_seconds()
MINUTE = timedelta(minutes=1)
OLD, NEW, GUARD = a_service("old"), a_service("new"), a_service("guard")


class MovedClock:
    """Monotonic time stands until a test moves it, and every sleep ends with that; nobody may look at the wall."""

    def __init__(self) -> None:
        self.passed = 0.0
        self._moved = asyncio.Event()

    def now(self) -> datetime:
        raise AssertionError("the wall clock decides nothing here")

    def monotonic(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        end = self.passed + seconds
        while self.passed < end:
            await self._moved.wait()

    def move(self, seconds: float) -> None:
        self.passed += seconds
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


class Up:
    """A channel that is well."""

    def get_state(self, *, try_to_connect: bool) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY


@dataclass
class World:
    """Prepares at once what is up, and what `gate` lets through; remembers what it was given."""

    up: set[str] = field(default_factory=lambda: {"old", "guard"})
    clock: MovedClock = field(default_factory=MovedClock)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[str] = field(default_factory=list)
    attempts: list[Prepared | None] = field(default_factory=list)
    saved: list[Record] = field(default_factory=list)
    disk: asyncio.Event = field(default_factory=asyncio.Event)
    audited: list[Event] = field(default_factory=list)
    is_saved: bool = True

    def __post_init__(self) -> None:
        self.gate.set()
        self.disk.set()
        self.runtime = Runtime()
        self.announcer = Announcer(subject="s", audit=self.audited.append)
        self.keeper = Keeper(
            Surroundings(
                runtime=self.runtime,
                preparation=self,
                saving=self,
                credentials=Watched(None),
                trust_bundle_digest=lambda: "",
                announcer=self.announcer,
                clock=self.clock,
                random=lambda: 0.5,
                version="test",
            )
        )

    async def prepare(
        self,
        candidate: Candidate,
        *,
        credentials: Credentials | None,
        running: Prepared | None = None,
        attempt: Prepared | None = None,
    ) -> Prepared:
        self.begun.append(candidate.sealed.digest)
        self.attempts.append(attempt)
        await self.gate.wait()
        states = {s.name: self._connected(s, credentials) for s in candidate.sealed.generation.services}
        evaluator = Evaluator(builtins={}, clock=self.clock.monotonic)
        return Prepared(candidate=candidate, services=states, evaluator=evaluator, leases=ExitStack())

    def _connected(self, service: Service, credentials: Credentials | None) -> Connected:
        if service.name not in self.up:
            return Connected(service=service, state=ServiceState.UNREACHABLE)
        key, up = channel_key(service.connection, credentials=credentials), cast("aio.Channel", Up())
        return Connected(service=service, state=ServiceState.READY, lease=Lease(Pool(), key=key, channel=up))

    async def save(self, record: Record) -> None:
        self.saved.append(record)
        await self.disk.wait()

    def offer(self, generation: Generation, sequence: int, *, epoch: int = 1) -> str:
        sealed = seal(generation)
        rank = Rank(epoch=epoch, sequence=sequence)
        self.keeper.offer(OfferedGeneration(rank=rank, digest=sealed.digest, payload=sealed.payload))
        return sealed.digest

    @property
    def serving(self) -> str:
        running = self.runtime.current
        return "" if running is None else running.digest

    async def serves(self, digest: str) -> None:
        await eventually(lambda: self.serving == digest)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass in small steps until it does."""
        for _ in range(200):
            if holds():
                return
            self.clock.move(1)
            await settled()
        raise AssertionError

    def reports(self) -> list[StateReport]:
        return list(self.announcer.outbox._reports.values())


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def keeping(loaded: Loaded | None = None) -> AsyncIterator[World]:
    world = World()
    await world.keeper.restore(loaded or Loaded())
    task = asyncio.create_task(world.keeper.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def tenants(*services: Service, mark: str = "") -> tuple[Stage, ...]:
    return tuple(stage(s.name, service=s.name, binding=s.needs[0].id, config={"mark": mark}) for s in services)


def of(*services: Service, mark: str = "", platform: str = "") -> Generation:
    """A baseline on `guard`, and tenants' stages on `services`."""
    guard = replace(tenants(GUARD, mark=platform)[0], key="platform:guard", policy="baseline")
    return Generation(stages=(guard, *tenants(*services, mark=mark)), services=(GUARD, *services))


async def test_a_baseline_lands_in_time_beside_a_tenants_service_that_never_comes() -> None:
    async with keeping() as world:
        await world.serves(world.offer(of(OLD), 1))
        waiting = world.offer(of(OLD, NEW), 2)
        await eventually(lambda: world.keeper.is_waiting)
        changed = world.offer(of(OLD, NEW, platform="B"), 3)
        await eventually(lambda: world.begun[-1] == changed)
        await world.until(lambda: world.serving == changed)
        assert world.clock.passed <= PATIENCE + 1
        assert waiting not in [r.sealed.digest for r in world.saved if r.sealed is not None]
        assert world.saved[-1].sealed is not None
        assert world.saved[-1].sealed.digest == changed


async def test_tenants_edits_neither_begin_the_wait_anew_nor_keep_a_preparation_from_ending() -> None:
    async with keeping() as world:
        await world.serves(world.offer(of(OLD), 1))
        world.gate.clear()
        sequence = 1
        while world.clock.passed < PATIENCE:
            sequence += 1
            digest = world.offer(of(OLD, NEW, mark=str(sequence), platform="B"), sequence)
            await eventually(lambda digest=digest: world.begun[-1] == digest)  # type: ignore[misc]
            world.clock.move(7)
        # Begun while the platform had not waited for long enough: it still yields. The next one does not.
        last = world.offer(of(OLD, NEW, mark="last", platform="B"), sequence + 1)
        await eventually(lambda: world.begun[-1] == last)
        newer = world.offer(of(OLD, NEW, mark="newer", platform="B"), sequence + 2)
        await settled()
        assert world.begun[-1] == last
        world.gate.set()
        await world.serves(newer)
        assert [r.sealed.digest for r in world.saved[-2:] if r.sealed is not None] == [last, newer]


async def test_what_was_connected_for_a_candidate_goes_on_to_the_one_that_takes_its_place() -> None:
    async with keeping() as world:
        await world.serves(world.offer(of(OLD), 1))
        world.offer(of(OLD, NEW), 2)
        await eventually(lambda: world.keeper.is_waiting and len(world.begun) == 2)
        await settled()
        second = world.offer(of(OLD, NEW, mark="B"), 3)
        await eventually(lambda: world.begun[-1] == second)
        assert world.attempts[1] is None
        assert world.attempts[2] is not None
        assert world.attempts[2].digest == world.begun[1]


async def test_a_deadline_wakes_the_keeper_in_time_and_no_wall_clock_has_a_say() -> None:
    patient = replace(NEW, activation_deadline=MINUTE)
    async with keeping() as world:
        await world.serves(world.offer(of(OLD), 1))
        digest = world.offer(of(OLD, patient), 2)
        await eventually(lambda: world.keeper.is_waiting)
        await world.until(lambda: world.serving == digest)
        assert 60 <= world.clock.passed <= 61


async def test_two_new_services_are_waited_for_until_the_longer_deadline() -> None:
    short, long = (replace(s, activation_deadline=n * MINUTE) for s, n in ((NEW, 1), (a_service("late"), 2)))
    async with keeping() as world:
        await world.serves(world.offer(of(OLD), 1))
        digest = world.offer(of(OLD, short, long), 2)
        await eventually(lambda: world.keeper.is_waiting)
        await world.until(lambda: world.serving == digest)
        assert 120 <= world.clock.passed <= 121


async def test_the_first_generation_waits_for_nobody() -> None:
    async with keeping() as world:
        world.up.clear()
        digest = world.offer(of(OLD), 1)
        await world.serves(digest)
        (active,) = world.reports()
        assert isinstance(active, Active), "who serves at once need not say first that it could"
        assert {s.state for s in active.services} == {ServiceState.UNREACHABLE}


async def test_who_waits_for_its_disk_says_meanwhile_that_the_offer_could_be_prepared() -> None:
    async with keeping() as world:
        world.disk.clear()
        digest = world.offer(of(OLD), 1)
        await eventually(lambda: world.reports() == [Accepted(digest=digest)])
        assert world.serving == digest
        world.disk.set()
        await eventually(lambda: [type(r) for r in world.reports()] == [Accepted, Active])


async def test_who_followed_an_operator_with_a_clock_in_the_future_says_so_and_follows_who_leads_above_it() -> None:
    future = 2**62
    async with keeping() as world:
        await world.serves(first := world.offer(of(OLD), 9, epoch=future))
        stale = world.offer(of(OLD, mark="B"), 1, epoch=1_800_000_000)
        await eventually(lambda: Rejected(digest=stale, reason=RejectionReason.STALE) in world.reports())
        hello = world.keeper.hello()
        assert (hello.active_digest, hello.rank) == (first, Rank(epoch=future, sequence=9))
        assert hello.rejected_digests == ()
        world.keeper.follow(1_800_000_000)
        assert world.keeper.rank == Rank(epoch=future, sequence=9)
        world.keeper.follow(future + 1)
        again = world.offer(of(OLD, mark="B"), 1, epoch=future + 1)
        await world.serves(again)
        assert again == stale


async def test_an_operator_that_only_greets_changes_nothing_but_the_epoch() -> None:
    async with keeping() as world:
        await world.serves(first := world.offer(of(OLD), 9, epoch=7))
        world.offer(of(OLD, NEW), 10, epoch=7)
        await eventually(lambda: world.keeper.is_waiting)
        world.keeper.follow(8)
        await eventually(lambda: world.saved[-1].held.rank == Rank(epoch=8))
        assert world.serving == first
        assert world.keeper.is_waiting
        assert world.saved[-1].sealed is not None
        assert world.saved[-1].sealed.digest == first


@pytest.mark.parametrize("is_saved", [True, False])
async def test_a_defect_is_told_until_there_is_something_new_on_disk(*, is_saved: bool) -> None:
    async with keeping(Loaded(defect=Defect.CORRUPT)) as world:
        world.is_saved = is_saved
        assert world.runtime.pin() is None
        assert world.keeper.hello().defect is Defect.CORRUPT
        await world.serves(world.offer(of(OLD), 1))
        await eventually(lambda: len(world.saved) == 1)
        await settled()
        assert world.keeper.defect is world.keeper.hello().defect
        assert world.keeper.hello().defect is (None if is_saved else Defect.CORRUPT)


async def test_what_is_restored_is_served_without_its_services_and_ranks_stay() -> None:
    sealed = seal(of(OLD))
    held = Held(rank=Rank(epoch=5, sequence=2))
    async with keeping(Loaded(record=Record(sealed=sealed, held=held, version="other"))) as world:
        assert world.serving == sealed.digest
        assert world.keeper.rank == held.rank
