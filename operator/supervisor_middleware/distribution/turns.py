"""Who is served when everybody comes at once: a bound on work under way, and on what one peer has of it.

For calls that anybody may make. What is over a bound is refused at once and may be tried again: a queue without an
end would be the memory of the process.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from supervisor_middleware.errors import Unavailable

AT_WORK: Final = 16
IN_ALL: Final = 256
OF_ONE_PEER: Final = 32


class TooMany(Unavailable):
    """No place: too many calls wait already, or too many of this peer's."""


class Turns:
    """`at_work` calls at a time, first come, first served; `in_all` with those that wait, `of_one_peer` of them."""

    def __init__(self, *, at_work: int = AT_WORK, in_all: int = IN_ALL, of_one_peer: int = OF_ONE_PEER) -> None:
        self._free = asyncio.Semaphore(at_work)
        self._in_all, self._of_one_peer = in_all, of_one_peer
        self._present: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, peer: str) -> AsyncIterator[None]:
        """Work in the block when it is `peer`'s turn.

        Raises:
            TooMany: there is no place to wait in.
        """
        if self._present.total() >= self._in_all or self._present[peer] >= self._of_one_peer:
            raise TooMany("too many enrolments at once")
        self._present[peer] += 1
        try:
            async with self._free:
                yield
        finally:
            self._present[peer] -= 1
            if not self._present[peer]:
                del self._present[peer]


def host_of(peer: str) -> str:
    """The peer of a gRPC call without its port (`ipv4:10.0.0.1:4711`)."""
    return peer.rpartition(":")[0]
