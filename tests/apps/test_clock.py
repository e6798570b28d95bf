"""When the operator's certificate is replaced, whatever clocks do."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from supervisor_middleware.apps import replica
from supervisor_middleware.apps.clock import LOOK_INTERVAL, LOOK_MINIMUM, until_renewal
from supervisor_middleware.audit.events import Event
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.succession import Succession
from tests.pki.builders import NOW, an_authority
from tests.waiting import eventually

AUTHORITY = an_authority()


class Machine:
    """A wall clock that a test moves while somebody sleeps."""

    def __init__(self, *moves: timedelta) -> None:
        self.time, self.moves = NOW, list(moves)
        self.slept: list[float] = []
        self.current = issued(NOW)

    def now(self) -> datetime:
        return self.time

    async def sleep(self, duration: float) -> None:
        self.slept.append(duration)
        self.time += self.moves.pop(0) if self.moves else timedelta(seconds=duration)

    async def until_renewal(self) -> None:
        await until_renewal(lambda: self.current, now=self.now, sleep=self.sleep)


def issued(now: datetime) -> Credentials:
    return AUTHORITY.issue_operator(namespace="system", now=now, lifetime=timedelta(hours=1))


async def test_it_is_replaced_at_about_half_its_life() -> None:
    machine = Machine()
    await machine.until_renewal()
    assert timedelta(minutes=20) < machine.time - NOW < timedelta(minutes=35)
    assert max(machine.slept) == LOOK_INTERVAL


async def test_a_machine_that_slept_replaces_it_as_soon_as_it_is_awake() -> None:
    machine = Machine(timedelta(days=3))
    await machine.until_renewal()
    assert len(machine.slept) == 1


async def test_one_that_was_issued_while_the_clock_was_ahead_is_replaced_once_it_is_right() -> None:
    machine = Machine(-timedelta(hours=5))
    await machine.until_renewal()
    assert len(machine.slept) == 1


async def test_another_that_came_meanwhile_has_its_own_time() -> None:
    machine = Machine()
    before, machine.current = machine.current, issued(NOW)
    machine.time += timedelta(minutes=28)

    async def sleep(duration: float) -> None:
        await Machine.sleep(machine, duration)
        if machine.current is not before and len(machine.slept) == 1:
            machine.current = issued(machine.time)

    await until_renewal(lambda: machine.current, now=machine.now, sleep=sleep)
    assert machine.time - NOW > timedelta(minutes=45)


@pytest.mark.parametrize("age", [timedelta(hours=2), timedelta(minutes=59)])
async def test_one_that_is_overdue_is_not_replaced_without_a_pause(age: timedelta) -> None:
    machine = Machine()
    machine.time += age
    await machine.until_renewal()
    assert machine.slept == [LOOK_MINIMUM]


async def test_a_root_that_has_ended_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [datetime.now(UTC)]
    root = an_authority(now=time[0])
    looks, audited = list[int](), list[Event]()

    async def at_once(_credentials: object) -> None:
        looks.append(1)
        await asyncio.sleep(0)

    monkeypatch.setattr(replica, "until_renewal", at_once)
    monkeypatch.setattr(replica, "utc_now", lambda: time[0])
    monkeypatch.setattr(replica, "LOOK_INTERVAL", 0)
    identity = replica.OperatorIdentity(Succession(current=root), "system", timedelta(hours=1))
    time[0] = root.expires_at
    keeping = asyncio.create_task(identity.keep_fresh(audited.append))
    try:
        await eventually(lambda: len(looks) > 1 or keeping.done())
        assert not keeping.done()
        assert not audited
        # Another root was supplied.
        identity.follow(Succession(current=an_authority(now=time[0])))
        await eventually(lambda: bool(audited))
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
