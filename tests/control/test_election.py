"""The election's loop over a Lease in memory and a clock that tests turn: who works when, and in what order it ends."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest

from supervisor_middleware.control import election as module
from supervisor_middleware.control.election import Deposed, Election, Leadership
from supervisor_middleware.control.lease import RENEW_DEADLINE
from supervisor_middleware.errors import Bug, Unavailable
from supervisor_middleware.model.lease import Lease
from tests.waiting import eventually


class Clock:
    """Time that moves on only when everybody sleeps, and can be made to jump."""

    def __init__(self) -> None:
        self.time = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def __call__(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.time + seconds, self._count, future))
        await future

    async def run(self) -> None:
        while True:
            for _ in range(20):
                await _SLEEP(0)
            if self._sleepers:
                at, _, future = heapq.heappop(self._sleepers)
                if not future.done():
                    self.time = max(self.time, at)
                    future.set_result(None)


_SLEEP = asyncio.sleep


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clock]:
    clock = Clock()

    class Asyncio:
        """asyncio, asleep by our clock."""

        sleep = staticmethod(clock.sleep)

        def __getattr__(self, name: str) -> object:
            return getattr(asyncio, name)

    monkeypatch.setattr(module, "asyncio", Asyncio())
    running = asyncio.create_task(clock.run())
    yield clock
    running.cancel()


class Shared:
    """The API server's Lease."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0
        self.writes: list[Lease] = []

    def put(self, lease: Lease | None) -> None:
        self.lease, self.version = lease, self.version + 1


class Store:
    """One replica's way to it; `is_away` is an outage, `is_lost` an answer that never came."""

    def __init__(self, shared: Shared) -> None:
        self.shared, self.seen = shared, -1
        self.is_away = self.is_lost = False

    async def read(self) -> Lease | None:
        if self.is_away:
            raise Unavailable("away")
        self.seen = self.shared.version
        return self.shared.lease

    async def write(self, lease: Lease) -> bool:
        if self.is_away:
            raise Unavailable("away")
        if self.seen != self.shared.version:
            return False
        self.shared.put(lease)
        self.shared.writes.append(lease)
        if self.is_lost:
            self.is_lost = False
            raise Unavailable("no answer")
        self.seen = self.shared.version
        return True


class Replica:
    """An election and what its leader does: nothing, until its term ends."""

    def __init__(self, shared: Shared, clock: Clock, name: str) -> None:
        self.store = Store(shared)
        self.terms: list[Leadership] = []
        self.began: list[float] = []
        self._clock = clock
        self.is_working = False
        self.resign = asyncio.Event()
        self.error: Exception | None = None
        self.highest: int | None = 0
        self.on_end: Callable[[], Awaitable[None]] | None = None
        self.election = Election(
            self.store,
            identity=name,
            monotonic=clock,
            now=lambda: datetime.fromtimestamp(1000 + clock(), UTC),
            highest_epoch=self._highest,
        )
        self.task = asyncio.create_task(self.election.run(self._lead))

    async def _highest(self) -> int | None:
        return self.highest

    async def _lead(self, leadership: Leadership) -> None:
        self.terms.append(leadership)
        self.began.append(self._clock())
        self.is_working = True
        self.resign.clear()
        try:
            await self.resign.wait()
            if self.error is not None:
                raise self.error
        finally:
            if self.on_end is not None:
                await self.on_end()
            self.is_working = False

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))


async def test_one_leads_and_the_next_one_as_soon_as_it_left(clock: Clock) -> None:
    shared = Shared()
    first = Replica(shared, clock, "first")
    await eventually(lambda: first.is_working)
    second = Replica(shared, clock, "second")
    await eventually(lambda: len(shared.writes) > 5)
    assert first.terms[0].is_held()
    assert not second.terms
    await first.stop()
    assert shared.lease is not None
    assert shared.lease.holder == ""
    await eventually(lambda: second.is_working)
    assert second.terms[0].epoch > first.terms[0].epoch
    assert not first.terms[0].is_held()
    await second.stop()


async def test_a_leader_that_dies_without_a_word_is_replaced_within_fifteen_seconds(clock: Clock) -> None:
    shared = Shared()
    first = Replica(shared, clock, "first")
    await eventually(lambda: first.is_working)
    others = [Replica(shared, clock, name) for name in ("second", "third")]
    await eventually(lambda: len(shared.writes) > 5)
    first.store.is_away = True  # what it last wrote is all that others know of it
    died, holder = clock.time, shared.lease
    await eventually(lambda: any(r.is_working for r in others))
    (began,) = (at for r in others for at in r.began)
    assert died < began <= died + 15
    assert holder is not None
    assert [t.epoch > holder.epoch for r in others for t in r.terms] == [True]
    for replica in (first, *others):
        await replica.stop()


async def test_the_lease_is_released_only_after_the_work_has_ended(clock: Clock) -> None:
    shared = Shared()
    replica = Replica(shared, clock, "first")
    await eventually(lambda: replica.is_working)
    held: list[str] = []

    async def slow() -> None:
        for _ in range(20):
            await clock.sleep(0.5)
            assert shared.lease is not None
            held.append(shared.lease.holder)
            assert replica.terms[0].is_held()

    replica.on_end = slow
    await replica.stop()
    assert set(held) == {"first"}
    assert len(shared.writes) > 3, "renewed meanwhile"
    assert shared.lease is not None
    assert shared.lease.holder == ""


async def test_a_leader_that_cannot_renew_ends_its_work_and_leads_again_later(clock: Clock) -> None:
    replica = Replica(Shared(), clock, "first")
    await eventually(lambda: replica.is_working)
    replica.store.is_away = True
    await eventually(lambda: not replica.is_working)
    assert not replica.terms[0].is_held()
    with pytest.raises(Deposed):
        replica.terms[0].check()
    replica.store.is_away = False
    await eventually(lambda: len(replica.terms) == 2)
    assert replica.terms[1].epoch > replica.terms[0].epoch
    await replica.stop()


async def test_an_outage_that_is_short_enough_changes_nothing(clock: Clock) -> None:
    shared = Shared()
    replica = Replica(shared, clock, "first")
    await eventually(lambda: replica.is_working)
    replica.store.is_lost = True
    count = len(shared.writes)
    await eventually(lambda: len(shared.writes) > count + 5)
    assert len(replica.terms) == 1
    await replica.stop()


async def test_a_process_that_was_stopped_past_its_lease_does_not_lead_when_it_wakes(clock: Clock) -> None:
    replica = Replica(Shared(), clock, "first")
    await eventually(lambda: replica.is_working)
    clock.time += RENEW_DEADLINE
    assert not replica.terms[0].is_held(), "before its loop had a turn"
    clock.time -= RENEW_DEADLINE
    assert not replica.terms[0].is_held(), "over is over"
    assert not replica.terms[0].extend(1e12)
    await eventually(lambda: len(replica.terms) == 2)
    await replica.stop()


async def test_a_deleted_lease_is_written_again_with_the_same_epoch(clock: Clock) -> None:
    shared = Shared()
    replica = Replica(shared, clock, "first")
    await eventually(lambda: replica.is_working)
    shared.put(None)
    await eventually(lambda: shared.lease is not None)
    assert shared.lease is not None
    assert (shared.lease.holder, shared.lease.epoch) == ("first", replica.terms[0].epoch)
    await eventually(lambda: len(shared.writes) > 4)
    assert len(replica.terms) == 1
    await replica.stop()


async def test_somebody_who_takes_the_lease_has_it(clock: Clock) -> None:
    shared = Shared()
    replica = Replica(shared, clock, "first")
    await eventually(lambda: replica.is_working)
    shared.put(Lease(holder="stranger", renewed="x", epoch=77_777))
    await eventually(lambda: len(replica.terms) == 2)
    assert not replica.terms[0].is_held()
    assert replica.terms[1].epoch == 77_778, "once the stranger does not renew"
    await replica.stop()


async def test_one_that_resigns_campaigns_anew(clock: Clock) -> None:
    shared = Shared()
    replica = Replica(shared, clock, "first")
    await eventually(lambda: replica.is_working)
    replica.highest = 5_000_000
    replica.resign.set()
    await eventually(lambda: len(replica.terms) == 2)
    assert replica.terms[1].epoch == 5_000_001
    assert "" in {w.holder for w in shared.writes}
    await replica.stop()


async def test_an_error_of_the_work_ends_the_election_and_frees_the_lease(clock: Clock) -> None:
    shared = Shared()
    replica = Replica(shared, clock, "first")
    await eventually(lambda: replica.is_working)
    replica.error = Bug("broken")
    replica.resign.set()
    with pytest.raises(Bug, match="broken"):
        await asyncio.wait_for(replica.task, 10)
    assert shared.lease is not None
    assert shared.lease.holder == ""


async def test_nobody_campaigns_before_everything_persisted_is_known(clock: Clock) -> None:
    shared = Shared()
    replica = Replica(shared, clock, "first")
    replica.highest = None
    replica.store.is_away = True
    await clock.sleep(5)
    replica.store.is_away = False
    await clock.sleep(5)
    assert not shared.writes
    replica.highest = 0
    await eventually(lambda: replica.is_working)
    await replica.stop()


async def test_three_at_once_are_one_leader(clock: Clock) -> None:
    shared = Shared()
    replicas = [Replica(shared, clock, str(n)) for n in range(3)]
    await eventually(lambda: any(r.is_working for r in replicas))
    await eventually(lambda: len(shared.writes) > 5)
    assert sum(len(r.terms) for r in replicas) == 1
    for replica in replicas:
        await replica.stop()
