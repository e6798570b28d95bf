"""Many small writes at once, and not too many: a store has other clients too."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

AT_ONCE: Final = 8

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


async def for_each(items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Outcome]]) -> list[_Outcome]:
    """What `work` makes of each item, in their order; an exception is raised after all have ended.

    However many items there are, a few workers take them in turn: a task for each would cost memory for each.
    """
    waiting = list(items)
    numbered = enumerate(waiting)
    outcomes: dict[int, _Outcome] = {}
    failures: list[Exception] = []

    async def worker() -> None:
        for number, item in numbered:
            try:
                outcomes[number] = await work(item)
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)

    await asyncio.gather(*(worker() for _ in range(min(AT_ONCE, len(waiting)))))
    if failures:
        raise failures[0]
    return [outcomes[number] for number in range(len(waiting))]
