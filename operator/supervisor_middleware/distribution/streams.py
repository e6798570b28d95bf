"""One connected supervisor's outgoing side: a slot in which the newest offer wins, and an end.

A slow reader holds back nobody but itself: while it takes one offer, one more at most is kept for it, and one that
does not take it in time is cut off; it comes back and gets the state of the world. No stream lasts for ever, since
identity is proven at its beginning; its end waits for the answer to an offer that is under way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import grpc

from supervisor_middleware.distribution.guests import Guest
from supervisor_middleware.distribution.pacing import Allowance, Pace
from supervisor_middleware.errors import Unavailable


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ends; `pause` is how many seconds the supervisor should stay away."""

    code: grpc.StatusCode
    details: str = ""
    pause: float | None = None


NOT_LEADING: Final = End(grpc.StatusCode.UNAVAILABLE, "this operator does not lead; another one does, or will")
OVER: Final = End(grpc.StatusCode.OK, "begin anew")
"""The stream was long enough; nothing is wrong."""

REPORTS: Final = Pace(burst=32, rate=2)
"""Of one stream."""

Write: TypeAlias = Callable[[bytes], Awaitable[None]]
Room: TypeAlias = Callable[[int], AbstractAsyncContextManager[None]]


class SlowReader(Unavailable):
    """It did not take an offer in time. The write cannot be cancelled: its connection has to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """In seconds: until the stream should end, and how much longer an offer under way may keep it."""

    rest: float
    grace: float


def _full() -> Allowance:
    return Allowance(REPORTS, now=asyncio.get_running_loop().time())


@dataclass(slots=True, eq=False)
class Stream:
    """What one connected supervisor is to be sent."""

    guest: Guest
    reports: Allowance = field(default_factory=_full)
    """What it may still say."""
    told: str = ""
    """The digest of the trust bundle it was sent by itself."""
    _offer: bytes | None = None
    _end: End | None = None
    _is_old: bool = False
    # Not an event: that is a kilobyte a stream.
    _sleeping: "asyncio.Future[None] | None" = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return self._offer is None

    def put(self, offer: bytes) -> None:
        """Send `offer` next, instead of any that waits."""
        self._offer = offer
        self._wake()

    def close(self, end: End) -> None:
        """End the stream, without what still waits; the first end stands."""
        self._end = self._end or end
        self._wake()

    def answered(self) -> None:
        """Something was: an end may have waited for that."""
        if self._is_old:
            self._wake()

    def _wake(self) -> None:
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    async def serve(
        self, write: Write, *, room: Room, leads: Callable[[], bool], lifetime: Lifetime, is_busy: Callable[[], bool]
    ) -> End:
        """Write offers until the end, each only while `leads`, and with `room` for so many bytes.

        Raises:
            SlowReader: the supervisor does not take what is written.
        """
        loop = asyncio.get_running_loop()
        timer = loop.call_later(lifetime.rest, self._grow_old, lifetime.grace)
        try:
            while self._end is None:
                if not leads():
                    return NOT_LEADING
                offer, self._offer = self._offer, None
                if offer is not None:
                    async with room(len(offer)):
                        await write(offer)
                elif self._is_old and not is_busy():
                    return OVER
                else:
                    self._sleeping = loop.create_future()
                    await self._sleeping
            return self._end
        finally:
            timer.cancel()

    def _grow_old(self, grace: float) -> None:
        self._is_old = True
        # One that is gone by then takes no notice.
        asyncio.get_running_loop().call_later(grace, self.close, OVER)
        self._wake()
