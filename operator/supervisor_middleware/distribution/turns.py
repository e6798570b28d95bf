"""Who is served when everybody comes at once: a bound on work under way and on who waits, shared fairly.

For calls that anybody may make. Turns go round, by groups and by members in them: whoever comes waits for one turn
of each other, however many calls the others have. Nobody waits, or is worked for, without an end. If there is no
place to wait in, whoever has the most of them loses one: a queue without an end would be the memory of the process.
What is refused may be tried again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from supervisor_middleware.distribution.connections import address_of
from supervisor_middleware.distribution.shares import Owner, first_to_yield, owner_of
from supervisor_middleware.errors import Unavailable

AT_WORK: Final = 16
WAITING: Final = 496
PATIENCE: Final = 10.0
"""Seconds that a call waits, and then that it is worked for, at most."""

_PAUSE: Final = 3.0


class TooMany(Unavailable):
    """No place: `pause` is how many seconds to stay away."""

    def __init__(self, message: str, *, pause: float = _PAUSE) -> None:
        super().__init__(message)
        self.pause = pause


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: Owner
    turn: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def refuse(self, reason: str) -> None:
        if not self.turn.done():
            self.turn.set_exception(TooMany(reason))


class Turns:
    """`at_work` calls at a time, `waiting` more that wait; `of_one` of one owner, if that is bounded."""

    def __init__(
        self,
        *,
        at_work: int = AT_WORK,
        waiting: int = WAITING,
        of_one: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._free, self._places, self._patience = at_work, waiting, patience
        self._of_one = of_one
        self._waiting: list[_Waiter] = []
        self._present: Counter[Owner | str] = Counter()
        self._began: dict[Owner | str, int] = {}
        self._turn = 0

    @asynccontextmanager
    async def turn(self, owner: Owner) -> AsyncIterator[None]:
        """Work in the block when it is `owner`'s turn.

        Raises:
            TooMany: there is no place to wait in, or none any more.
            Unavailable: the work took too long.
        """
        if self._of_one is not None and self._present[owner] >= self._of_one:
            raise TooMany("too many of yours are under way")
        self._come(owner)
        try:
            await self._wait(owner)
            try:
                async with asyncio.timeout(self._patience):
                    yield
            except TimeoutError as error:
                raise Unavailable("it took too long") from error
            finally:
                self._release()
        finally:
            self._leave(owner)

    async def _wait(self, owner: Owner) -> None:
        if self._free:
            self._begin(owner)
            return
        waiter = _Waiter(owner)
        self._waiting.append(waiter)
        if len(self._waiting) > self._places:
            newest_first = self._waiting[::-1]
            yields = newest_first[first_to_yield([w.owner for w in newest_first])]
            self._waiting.remove(yields)
            yields.refuse("too many wait")
        timer = asyncio.get_running_loop().call_later(self._patience, waiter.refuse, "too many came before")
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._release()  # it was given its turn in the moment it left
            raise
        finally:
            timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _release(self) -> None:
        """A turn is over: whoever had none for the longest time is next."""
        self._free += 1
        waiting = [w for w in self._waiting if not w.turn.done()]
        if waiting:
            began = self._began
            waiter = min(waiting, key=lambda w: (began.get(w.owner.group, 0), began.get(w.owner, 0)))
            self._waiting.remove(waiter)
            self._begin(waiter.owner)
            waiter.turn.set_result(None)

    def _begin(self, owner: Owner) -> None:
        self._free -= 1
        self._turn += 1
        self._began[owner] = self._began[owner.group] = self._turn

    def _come(self, owner: Owner) -> None:
        self._present.update((owner, owner.group))

    def _leave(self, owner: Owner) -> None:
        for one in (owner, owner.group):
            self._present[one] -= 1
            if not self._present[one]:
                del self._present[one]
                self._began.pop(one, None)


def caller_of(peer: str) -> Owner:
    """Whose turn it is that a gRPC peer (`ipv4:10.0.0.1:4711`) waits for: its host's."""
    address = address_of(peer)
    return owner_of(peer if address is None else address[0])
