"""Who is let in when, in which order, and who is sent away for how long."""

import asyncio

import pytest

from supervisor_middleware.distribution.admission import Admission, Refused, Rush
from supervisor_middleware.distribution.pacing import _ROOM, Pace

MANY = Pace(burst=1000, rate=1000)


class Clock:
    """Stands still, unless a test moves it."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


async def pause_of(admission: Admission, key: str) -> float:
    """What a hello is told; 0 if it is let in."""
    try:
        admission.come(key)
        await admission.turn()
    except Refused as error:
        return error.pause
    return 0


async def test_a_burst_is_let_in_at_once_and_then_so_many_a_second() -> None:
    admission = Admission(Rush(rate=10, burst=3, longest=0, of_one=MANY), clock=(clock := Clock()))
    assert [await pause_of(admission, str(n)) for n in range(4)] == [0, 0, 0, 0]
    assert await pause_of(admission, "late") == pytest.approx(0.1)
    clock.time += 0.1
    assert await pause_of(admission, "again") == 0
    assert await pause_of(admission, "late") == pytest.approx(0.1)


async def test_who_waits_is_served_in_order() -> None:
    admission = Admission(Rush(rate=40, burst=1, longest=2, of_one=MANY), clock=asyncio.get_running_loop().time)
    served = list[int]()

    async def come(number: int) -> None:
        await admission.turn()
        served.append(number)

    await asyncio.gather(*map(come, range(20)))
    assert served == list(range(20))


async def test_nobody_waits_longer_than_is_bearable() -> None:
    admission = Admission(Rush(rate=1, burst=1, longest=2, of_one=MANY), clock=Clock())
    waiting = [asyncio.ensure_future(pause_of(admission, str(n))) for n in range(6)]
    await asyncio.sleep(0)
    told = [w.result() if w.done() else None for w in waiting]
    assert told == [0, 0, None, None, 3, 3]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_one_supervisor_comes_only_so_often_and_takes_no_turn_of_others() -> None:
    rush = Rush(rate=1000, burst=1, longest=0.01, of_one=Pace(burst=2, rate=0.5))
    admission = Admission(rush, clock=(clock := Clock()))
    for _ in range(2):
        clock.time += 0.001
        assert await pause_of(admission, "a") == 0
    assert [await pause_of(admission, "a") for _ in range(100)] == [pytest.approx(2.0, abs=0.01)] * 100
    assert await pause_of(admission, "b") == 0
    clock.time += 2
    assert await pause_of(admission, "a") == 0


async def test_of_those_who_were_here_long_ago_nothing_is_kept() -> None:
    admission = Admission(Rush(rate=1e6, of_one=Pace(burst=2, rate=1)), clock=(clock := Clock()))
    for number in range(_ROOM):
        await pause_of(admission, str(number))
    clock.time += 10
    await pause_of(admission, "a")
    assert list(admission._allowances._known) == ["a"]
