"""How much inspected work one supervisor holds at a time.

Owns the bound and nothing else: a request takes a permit before its body is asked for, so that the memory of
buffered bodies is bounded. Released OpenShell: 32 requests at work, 64 waiting, the rest refused at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from supervisor_middleware.errors import Unavailable

ACTIVE: Final = 32
WAITING: Final = 64
# Ours: a wait is bounded, so that Envoy's patience covers wait and chain together.
PATIENCE: Final = timedelta(seconds=10)


class Exhausted(Unavailable):
    """No permit: too many requests wait already, or the wait was too long. The same request may pass later."""


class Permits:
    """`active` requests at a time, `waiting` more in line (first come, first served), each for `patience`."""

    def __init__(self, *, active: int = ACTIVE, waiting: int = WAITING, patience: timedelta = PATIENCE) -> None:
        self._free = asyncio.Semaphore(active)
        self._places = waiting
        self._patience = patience

    @asynccontextmanager
    async def permit(self) -> AsyncIterator[None]:
        """Hold one permit for the block.

        Raises:
            Exhausted: there is none to be had.
        """
        await self._acquire()
        try:
            yield
        finally:
            self._free.release()

    async def _acquire(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        if self._places == 0:
            raise Exhausted("too many requests wait for middleware")
        self._places -= 1
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                await self._free.acquire()
        except TimeoutError as error:
            raise Exhausted("the wait for middleware was too long") from error
        finally:
            self._places += 1
