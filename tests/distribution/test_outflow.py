"""How much is written at once, and what becomes of those who are slow."""

import asyncio

import pytest

from supervisor_middleware.distribution.outflow import Flow, Outflow
from supervisor_middleware.distribution.streams import SlowReader


async def writing(outflow: Outflow, size: int, *, until: asyncio.Event, begun: list[int]) -> None:
    async with outflow.room(size):
        begun.append(size)
        await until.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_so_many_bytes_at_once_and_the_others_in_order() -> None:
    outflow, first, second, begun = (
        Outflow(Flow(at_once=100, prompt=60)),
        asyncio.Event(),
        asyncio.Event(),
        list[int](),
    )
    tasks = [asyncio.ensure_future(writing(outflow, 60, until=first, begun=begun))]
    await settle()
    tasks += [asyncio.ensure_future(writing(outflow, size, until=second, begun=begun)) for size in (50, 30, 20)]
    await settle()
    # The 30 would fit, and does not overtake.
    assert begun == [60]
    first.set()
    await settle()
    assert begun == [60, 50, 30, 20]
    second.set()
    await asyncio.gather(*tasks)
    assert outflow._free == 100


async def test_what_is_larger_than_all_room_is_written_alone() -> None:
    outflow = Outflow(Flow(at_once=10))
    async with outflow.room(1000):
        assert outflow._free == 0
    assert outflow._free == 10


async def test_who_is_slow_gives_its_place_back_and_goes_on() -> None:
    outflow, end, begun = Outflow(Flow(at_once=10, prompt=0.02)), asyncio.Event(), list[int]()
    slow = asyncio.ensure_future(writing(outflow, 10, until=end, begun=begun))
    await settle()
    async with asyncio.timeout(5), outflow.room(9):
        assert not slow.done()
    end.set()
    await slow
    assert outflow._free == 10


async def test_who_was_slow_long_ago_keeps_nobody_from_being_looked_at_in_time() -> None:
    outflow, end, begun = Outflow(Flow(at_once=10, prompt=0.02)), asyncio.Event(), list[int]()
    slow = [asyncio.ensure_future(writing(outflow, 10, until=end, begun=begun)) for _ in range(3)]
    await settle()
    # Each gives its place back, though the next look at the first is half a minute away.
    async with asyncio.timeout(5), outflow.room(10):
        assert begun == [10, 10, 10]
    end.set()
    await asyncio.gather(*slow)
    assert outflow._free == 10


async def test_who_is_too_slow_is_told_apart_from_what_is_cancelled() -> None:
    outflow = Outflow(Flow(at_once=10, patience=0.02, slowest=10**6))
    with pytest.raises(SlowReader):
        await writing(outflow, 5, until=asyncio.Event(), begun=[])
    task = asyncio.ensure_future(writing(outflow, 5, until=asyncio.Event(), begun=[]))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outflow._free == 10


async def test_who_leaves_while_it_waits_holds_up_nobody() -> None:
    outflow, end, begun = Outflow(Flow(at_once=10, prompt=60)), asyncio.Event(), list[int]()
    tasks = [asyncio.ensure_future(writing(outflow, size, until=end, begun=begun)) for size in (8, 9, 2)]
    await settle()
    assert begun == [8]
    tasks[1].cancel()
    await settle()
    assert begun == [8, 2]
    end.set()
    await asyncio.wait(tasks)
    assert (outflow._free, list(outflow._waiting)) == (10, [])


async def test_who_is_let_in_and_cancelled_in_the_same_moment_gives_its_place_back() -> None:
    outflow, end, begun = Outflow(Flow(at_once=10, prompt=60)), asyncio.Event(), list[int]()
    first, second = (asyncio.ensure_future(writing(outflow, 10, until=end, begun=begun)) for _ in range(2))
    await settle()
    end.set()
    await first
    second.cancel()
    await asyncio.wait((second,))
    assert outflow._free == 10


def test_time_goes_by_size() -> None:
    assert Flow(patience=10, slowest=1000).deadline(5000) == 15
