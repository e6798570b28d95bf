import asyncio
from datetime import timedelta

import pytest

from supervisor_middleware.supervisor.permits import Exhausted, Permits


async def hold(permits: Permits, until: asyncio.Event, order: list[int], number: int) -> None:
    async with permits.permit():
        order.append(number)
        await until.wait()


async def test_as_many_work_as_may_and_the_rest_wait_in_line() -> None:
    permits, until, order = Permits(active=2, waiting=3), asyncio.Event(), list[int]()
    tasks = [asyncio.create_task(hold(permits, until, order, n)) for n in range(5)]
    await asyncio.sleep(0)
    assert order == [0, 1]
    until.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


async def test_beyond_the_line_a_request_is_refused_at_once() -> None:
    permits, until = Permits(active=1, waiting=1), asyncio.Event()
    tasks = [asyncio.create_task(hold(permits, until, [], n)) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Exhausted):
        await hold(permits, until, [], 2)
    until.set()
    await asyncio.gather(*tasks)
    await hold(permits, until, [], 3)


async def test_a_wait_ends_and_gives_its_place_back() -> None:
    permits, until = Permits(active=1, waiting=1, patience=timedelta(milliseconds=10)), asyncio.Event()
    first = asyncio.create_task(hold(permits, until, [], 0))
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(Exhausted, match="too long"):
            await hold(permits, until, [], 1)
    until.set()
    await first


async def test_a_waiter_that_is_cancelled_gives_its_place_back() -> None:
    permits, until, order = Permits(active=1, waiting=1), asyncio.Event(), list[int]()
    first, second = (asyncio.create_task(hold(permits, until, order, n)) for n in range(2))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    third = asyncio.create_task(hold(permits, until, order, 2))
    await asyncio.sleep(0)
    until.set()
    await asyncio.gather(first, third)
    assert order == [0, 2]


async def test_a_failure_inside_gives_the_permit_back() -> None:
    permits = Permits(active=1, waiting=0)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            async with permits.permit():
                raise RuntimeError
