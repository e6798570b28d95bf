"""Who is let in when everybody comes at once: so many a second, in the order they said hello.

Whoever would wait too long, or comes again and again, is told how long to stay away. A hello costs a lookup and an
offer, and an operator that has just begun to lead gets them from everybody.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.distribution.pacing import Allowances, Pace
from supervisor_middleware.errors import Unavailable

_OF_ONE: Final = Pace(burst=32, rate=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rush:
    """What is admitted: `rate` a second after `burst`; nobody waits longer than `longest`.

    `of_one` is what one supervisor may do.
    """

    rate: float = 400.0
    burst: int = 64
    longest: float = 10.0
    of_one: Pace = _OF_ONE


RUSH: Final = Rush()


class Refused(Unavailable):
    """Not now: `pause` is how many seconds to stay away."""

    def __init__(self, message: str, *, pause: float) -> None:
        super().__init__(message)
        self.pause = pause


class Admission:
    """The gate that every hello passes."""

    def __init__(self, rush: Rush = RUSH, *, clock: Callable[[], float]) -> None:
        """`clock` never jumps."""
        self._rush, self._clock = rush, clock
        self._next = 0.0
        self._allowances = Allowances(rush.of_one)

    def come(self, key: str) -> None:
        """Supervisor `key` begins a stream.

        Raises:
            Refused: it was here too often.
        """
        now = self._clock()
        allowance = self._allowances.of(key, now=now)
        if not allowance.take(now):
            raise Refused("this supervisor came too often", pause=allowance.until_next(now))

    async def turn(self) -> None:
        """Return when it is one's turn. There is nothing to hold: what somebody else keeps waiting comes before.

        Raises:
            Refused: too many are before it.
        """
        now = self._clock()
        begin = max(self._next, now - self._rush.burst / self._rush.rate)
        if (pause := begin - now) > self._rush.longest:
            raise Refused("too many supervisors at once", pause=pause)
        self._next = begin + 1 / self._rush.rate
        if pause > 0:
            await asyncio.sleep(pause)
