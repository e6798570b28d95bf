"""When a pass is made: at once on the first request, a burst as few, and never for ever.

Nothing a pass raises ends the loop: the data plane depends on the operator staying up, not on any one pass.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import structlog

from supervisor_middleware.control.measures import Measures
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.telemetry import where

RESYNC: Final = timedelta(seconds=30)
RETRY_SECONDS: Final = 1.0
BUG_RETRY_SECONDS: Final = 5.0
PACE_SECONDS: Final = 0.025
"""Between two passes at least; a large pass leaves the loop to everybody else for as long as it worked. While it
waited for the store, the loop was theirs already."""
STANDINGS_SECONDS: Final = 0.2
"""Between two passes that only statuses are in need of: each looks at every supervisor, and a thousand that answer
are a few passes."""
_SHORTEST_PAUSE: Final = timedelta(milliseconds=50)

_log = structlog.get_logger(__name__)


class Passes:
    """The loop around `work`."""

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        *,
        due: Callable[[], datetime | None],
        now: Callable[[], datetime],
        measures: Measures,
        worked: Callable[[], float] = time.process_time,
    ) -> None:
        """`due` says when a pass is needed although nobody asked; `worked`, seconds of processor used so far."""
        self._work, self._due, self._now, self._measures = work, due, now, measures
        self._worked = worked
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._standings: asyncio.TimerHandle | None = None
        self._standings_due = 0.0

    def request(self) -> None:
        """Ask for a pass; many requests are one."""
        self._wanted.set()

    def request_standings(self) -> None:
        """Ask for a pass because supervisors stand otherwise now; nothing is published for that."""
        if self._standings is None:
            loop = asyncio.get_running_loop()
            # A little later: one that accepts a generation serves it a moment after.
            due = max(self._standings_due, loop.time() + PACE_SECONDS)
            self._standings = loop.call_at(due, self._look_at_standings)

    def request_soon(self) -> None:
        """Ask for a pass after something failed."""
        self._request_in(RETRY_SECONDS)

    async def run(self) -> None:
        """Pass after pass until cancelled."""
        self.request()
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await self._wait()
                began, worked = clock(), self._worked()
                await self._guarded()
                took, worked = clock() - began, self._worked() - worked
                self._measures.passed(seconds=took)
                await asyncio.sleep(min(max(min(took, worked), PACE_SECONDS), RETRY_SECONDS))
        finally:
            for timer in (self._timer, self._standings):
                if timer is not None:
                    timer.cancel()

    async def _guarded(self) -> None:
        try:
            await self._work()
        except Unavailable as error:
            _log.warning("a pass could not be completed and is tried again", reason=str(error))
            self._measures.failed()
            self._request_in(RETRY_SECONDS)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            _log.error("a pass failed and is tried again", error=where(error))
            self._measures.failed()
            self._request_in(BUG_RETRY_SECONDS)

    async def _wait(self) -> None:
        due = self._due()
        pause = RESYNC if due is None else min(max(due - self._now(), _SHORTEST_PAUSE), RESYNC)
        try:
            async with asyncio.timeout(pause.total_seconds()):
                await self._wanted.wait()
        except TimeoutError:
            return
        finally:
            self._wanted.clear()

    def _look_at_standings(self) -> None:
        self._standings = None
        self._standings_due = asyncio.get_running_loop().time() + STANDINGS_SECONDS
        self.request()

    def _request_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.request)
