"""Many writes at once, and not too many."""

import asyncio

import pytest

from supervisor_middleware.control.batches import AT_ONCE, for_each


async def test_outcomes_come_in_the_order_of_the_items() -> None:
    async def work(item: int) -> int:
        for _ in range(item % 3):
            await asyncio.sleep(0)
        return item * 2

    assert await for_each(iter(range(50)), work) == [2 * i for i in range(50)]
    assert await for_each([], work) == []


async def test_a_few_are_worked_on_at_once_and_no_more_tasks_exist() -> None:
    running, most, tasks = 0, 0, 0

    async def work(_: int) -> None:
        nonlocal running, most, tasks
        running += 1
        most, tasks = max(most, running), max(tasks, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        running -= 1

    await for_each(range(500), work)
    assert most == AT_ONCE
    assert tasks <= AT_ONCE + 1


async def test_an_exception_is_raised_after_all_have_ended() -> None:
    done = list[int]()

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        if item == 3:
            raise ZeroDivisionError
        done.append(item)

    with pytest.raises(ZeroDivisionError):
        await for_each(range(20), work)
    assert sorted(done) == [i for i in range(20) if i != 3]
