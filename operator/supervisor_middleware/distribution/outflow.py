"""How many bytes are being written to supervisors at once, and how long one may take.

gRPC copies what it is given for every stream: a change of a large generation for thousands of them would be the
memory of the process. Whoever is slow gives its place back soon, and goes on until its time is over.
"""

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from supervisor_middleware.distribution.streams import SlowReader
from supervisor_middleware.errors import Bug
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
    """The room there is, first come, first served. One timer looks after all writes: nearly every one is prompt."""

    def __init__(self, flow: Flow = FLOW) -> None:
        self._flow = flow
        self._free = flow.at_once
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._writing: dict[_Room, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def room(self, size: int) -> AbstractAsyncContextManager[None]:
        """Write `size` bytes in the block.

        Raises:
            SlowReader: the block took too long.
        """
        return _Room(self, size=size, share=min(size, self._flow.at_once))

    # ------------------------------------------------------------------------------------------------- a write's

    async def begin(self, room: "_Room") -> None:
        """Wait until there is room, and take it."""
        if self._waiting or room.share > self._free:
            await self._turn(room.share)
        else:
            self._free -= room.share
        now = asyncio.get_running_loop().time()
        room.ends = now + self._flow.deadline(room.size)
        room.due = min(now + self._flow.prompt, room.ends)
        self._writing[room] = None
        if self._timer is None or self._timer.when() > room.due:
            self._look_at(room.due)

    def end(self, room: "_Room") -> None:
        """It is written, or never will be."""
        self._writing.pop(room, None)
        self._give_back(room)

    # ---------------------------------------------------------------------------------------------------- inside

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._timer, now = None, asyncio.get_running_loop().time()
        for room in [r for r in self._writing if r.due <= now]:
            self._give_back(room)
            if room.ends <= now:
                del self._writing[room]
                room.cut()
            room.due = room.ends
        if self._writing:
            self._look_at(min(r.due for r in self._writing))

    def _give_back(self, room: "_Room") -> None:
        self._free += room.share
        room.share = 0
        if self._waiting:
            self._admit()

    async def _turn(self, share: int) -> None:
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


class _Room(AbstractAsyncContextManager[None]):
    """One write, as `asyncio.timeout` would hold it, without a timer of its own.

    `share` is what it holds of the room, `due` when to look at it next, `ends` its deadline.
    """

    __slots__ = ("_cancelling", "_is_cut", "_outflow", "_task", "due", "ends", "share", "size")

    def __init__(self, outflow: Outflow, *, size: int, share: int) -> None:
        self._outflow = outflow
        self.size, self.share = size, share
        self.due = self.ends = 0.0
        self._is_cut = False

    async def __aenter__(self) -> None:
        await self._outflow.begin(self)
        task = asyncio.current_task()
        if task is None:
            raise Bug("a write outside a task cannot be cut")
        self._task, self._cancelling = task, task.cancelling()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._outflow.end(self)
        if self._is_cut and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise SlowReader("the supervisor does not take what is written") from error

    def cut(self) -> None:
        """Its time is over."""
        self._is_cut = True
        self._task.cancel()
