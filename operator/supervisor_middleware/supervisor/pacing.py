"""How the supervisor waits: a clock it is given, backoff with jitter, values that tasks wait on.

No supervisor of a fleet may move in step with the others: deployed together, they would reconnect and renew
together. Time, sleep and randomness are arguments, so that tests own them.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Random: TypeAlias = Callable[[], float]
"""A draw from [0, 1)."""

BACKOFF_MIN: Final = 0.2
BACKOFF_MAX: Final = 30.0
BACKOFF_FACTOR: Final = 2.0


class Clock(Protocol):
    """Time as the supervisor needs it."""

    def now(self) -> datetime:
        """The wall clock, aware: for certificates."""

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps: for deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Let others run for `seconds`."""


class Backoff:
    """Growing delays between attempts, each drawn from the upper half of its step. `reset` after a success."""

    def __init__(self, *, random: Random, longest: float = BACKOFF_MAX) -> None:
        self._random = random
        self._longest = longest
        self._step = BACKOFF_MIN

    def reset(self) -> None:
        """Start again with the shortest delay."""
        self._step = BACKOFF_MIN

    def next(self, *, at_most: float = math.inf) -> float:
        """The seconds to wait before the next attempt; the step does not grow beyond `at_most` yet."""
        step = min(self._step, at_most)
        self._step = min(step * BACKOFF_FACTOR, self._longest)
        return jittered(step, random=self._random)


def jittered(seconds: float, *, random: Random) -> float:
    """Between half of `seconds` and all of it."""
    return seconds * (0.5 + random() / 2)


class Watched(Generic[T]):
    """A value that tasks wait on to change.

    Take `change` *before* reading `value`: then no change between the two is missed.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._change = asyncio.Event()

    @property
    def value(self) -> T:
        """What it is now."""
        return self._value

    @property
    def change(self) -> asyncio.Event:
        """Set when the value is next replaced."""
        return self._change

    def amend(self, value: T) -> None:
        """Replace the value by one that is the same to everybody who waits."""
        self._value = value

    def set(self, value: T) -> None:
        """Replace the value and wake who waits."""
        self._value = value
        change, self._change = self._change, asyncio.Event()
        change.set()


async def first_of(*branches: Coroutine[Any, Any, object]) -> None:
    """Run `branches` until one ends; the others are cancelled and awaited. An exception of the first is raised.

    A branch that was cancelled from within (gRPC does that to a call that ends) has ended like any other.
    """
    tasks = [asyncio.ensure_future(branch) for branch in branches]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(*tasks)
    for task in done:
        if not task.cancelled():
            task.result()


async def unless(event: asyncio.Event, branch: Coroutine[Any, Any, T]) -> T | None:
    """What `branch` returns; None if `event` happens before, and then `branch` is cancelled and awaited."""
    working, waiting = asyncio.ensure_future(branch), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not working.done():
            await cancelled(working)
        await cancelled(waiting)
    return None if working.cancelled() else working.result()


async def cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """End `tasks` and wait until they have ended; what they raise on the way out is of no interest."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
