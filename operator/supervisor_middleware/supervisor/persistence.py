"""Saving last-known-good in the background: the newest record, again and again until the disk takes it.

A full, read-only or hanging disk never holds up what is served: the supervisor serves from memory, says so, and
retries. Only the newest record is worth writing. One task runs `run`, so there is never more than one write.
"""

import asyncio
from typing import Final, Protocol

import structlog

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.supervisor.pacing import Backoff, Clock, Random, first_of
from supervisor_middleware.supervisor.record import Record

ATTEMPT_WAIT: Final = 2.0
"""Seconds that a caller waits for the disk before it goes on without it."""

_log = structlog.get_logger(__name__)


class RecordSink(Protocol):
    """Where records are kept (`store.Store`)."""

    def save(self, record: Record) -> None:
        """Replace what is kept, or raise `Unavailable`. May block."""


class Persistence:
    """The newest record, and whether the disk has it."""

    def __init__(self, sink: RecordSink, *, clock: Clock, random: Random) -> None:
        self._sink = sink
        self._clock = clock
        self._backoff = Backoff(random=random)
        self._wanted: Record | None = None
        self._saved: Record | None = None
        self._news = asyncio.Event()
        self._attempted = asyncio.Event()
        self._is_failing = False

    @property
    def is_saved(self) -> bool:
        """Whether a restart would find what was handed over last. False for long: the disk needs somebody."""
        return self._wanted is self._saved

    async def save(self, record: Record) -> None:
        """Hand over the newest record; returns when the disk has been tried once, or after `ATTEMPT_WAIT`."""
        self._wanted = record
        self._attempted = attempted = asyncio.Event()
        self._news.set()
        await first_of(attempted.wait(), self._clock.sleep(ATTEMPT_WAIT))

    async def run(self) -> None:
        """Write what is handed over; for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            if not await self._attempt():
                await first_of(self._news.wait(), self._clock.sleep(self._backoff.next()))
                self._news.set()

    async def _attempt(self) -> bool:
        record, attempted = self._wanted, self._attempted
        if record is None:
            return True
        try:
            await asyncio.to_thread(self._sink.save, record)
        except Unavailable as error:
            if not self._is_failing:
                _log.error("serving from memory: last-known-good cannot be saved", reason=str(error))
            self._is_failing = True
            return False
        finally:
            attempted.set()
        self._saved, self._is_failing = record, False
        self._backoff.reset()
        return True
