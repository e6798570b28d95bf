"""One connected supervisor's outgoing side: a slot in which the newest offer wins, and an end.

A slow reader holds back nobody but itself: while it takes one offer, one more at most is kept for it. gRPC cannot end
a stream in the middle of a write, so the end waits for that (or for the connection's).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import grpc


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ends."""

    code: grpc.StatusCode
    details: str = ""


NOT_LEADING: Final = End(grpc.StatusCode.UNAVAILABLE, "this operator does not lead; another one does, or will")


@dataclass(slots=True, eq=False)
class Stream:
    """What one connected supervisor is to be sent."""

    _offer: bytes | None = None
    _end: End | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, offer: bytes) -> None:
        """Send `offer` next, instead of any that waits."""
        self._offer = offer
        self._woken.set()

    def close(self, end: End) -> None:
        """End the stream, without what still waits; the first end stands."""
        self._end = self._end or end
        self._woken.set()

    async def serve(self, write: Callable[[bytes], Awaitable[None]], *, leads: Callable[[], bool]) -> End:
        """Write offers until the end, each only while `leads`."""
        while self._end is None:
            if not leads():
                return NOT_LEADING
            offer, self._offer = self._offer, None
            if offer is not None:
                await write(offer)
            else:
                self._woken.clear()
                await self._woken.wait()
        return self._end
