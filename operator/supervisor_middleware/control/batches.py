"""Many small writes at once, and not too many: a store has other clients too."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

AT_ONCE: Final = 8

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


async def for_each(items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Outcome]]) -> list[_Outcome]:
    """What `work` makes of each item, in their order; the first exception is raised after all have ended."""
    permits = asyncio.Semaphore(AT_ONCE)

    async def one(item: _Item) -> _Outcome:
        async with permits:
            return await work(item)

    outcomes = await asyncio.gather(*(one(i) for i in items), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [o for o in outcomes if not isinstance(o, BaseException)]
