"""When a pass is made: at once on the first request, a burst as few, and never for ever.

Nothing a pass raises ends the loop: the data plane depends on the operator staying up, not on any one pass.
"""

import asyncio
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
"""Between two passes at least; a large pass leaves the loop to everybody else for as long as it took."""
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
    ) -> None:
        """`due` says when a pass is needed although nobody asked."""
        self._work, self._due, self._now, self._measures = work, due, now, measures
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def request(self) -> None:
        """Ask for a pass; many requests are one."""
        self._wanted.set()

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
                began = clock()
                await self._guarded()
                took = clock() - began
                self._measures.passed(seconds=took)
                await asyncio.sleep(min(max(took, PACE_SECONDS), RETRY_SECONDS))
        finally:
            if self._timer is not None:
                self._timer.cancel()

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

    def _request_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.request)
