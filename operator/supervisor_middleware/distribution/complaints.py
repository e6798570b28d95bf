"""What is said of peers in our own log: so much, and then how much was left out. Anybody may be refused for ever."""

import time
from collections.abc import Callable
from typing import Final

from supervisor_middleware.distribution.pacing import Allowance, Pace

PACE: Final = Pace(burst=32, rate=1)


class Complaints:
    """Of one kind of peers."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` never jumps."""
        self._clock = clock
        self._allowance = Allowance(PACE, now=clock())
        self._left_out = 0

    def tell(self, log: Callable[..., object], event: str, **fields: object) -> None:
        """Say it by `log`, unless too much was said."""
        if not self._allowance.take(self._clock()):
            self._left_out += 1
            return
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        log(event, **fields, **more)
