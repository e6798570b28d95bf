"""How many bytes are being written to supervisors at once, and how long one may take.

gRPC copies what it is given for every stream: a change of a large generation for thousands of them would be the
memory of the process. Whoever is slow gives its place back soon, and goes on until its time is over.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.distribution.streams import SlowReader
from supervisor_middleware.model.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """`at_once` bytes, each write for `prompt` seconds of them; a write has `patience` and more by its size."""

    at_once: int = 64 * MIB
    prompt: float = 1.0
    patience: float = 30.0
    slowest: int = 256 * KIB
    """Bytes a second."""

    def deadline(self, size: int) -> float:
        """Seconds that a write of `size` bytes may take."""
        return self.patience + size / self.slowest


FLOW: Final = Flow()


class Outflow:
    """The room there is, first come, first served."""

    def __init__(self, flow: Flow = FLOW) -> None:
        self._flow = flow
        self._free = flow.at_once
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Write `size` bytes in the block.

        Raises:
            SlowReader: the block took too long.
        """
        share = min(size, self._flow.at_once)
        await self._take(share)
        held = [share]

        def give_back() -> None:
            self._free += sum(held)
            held.clear()
            self._admit()

        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._flow.deadline(size)
        try:
            async with asyncio.timeout(None) as limit:

                def be_late() -> None:
                    give_back()
                    limit.reschedule(deadline)

                # One timer a write: nearly every write is prompt.
                timer = loop.call_later(self._flow.prompt, be_late)
                try:
                    yield
                finally:
                    timer.cancel()
        except TimeoutError as error:
            raise SlowReader("the supervisor does not take what is written") from error
        finally:
            give_back()

    async def _take(self, share: int) -> None:
        if not self._waiting and share <= self._free:
            self._free -= share
            return
        place = (share, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                self._free += share
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            share, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= share
                turn.set_result(None)
