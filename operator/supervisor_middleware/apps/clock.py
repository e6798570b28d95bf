"""The real clock: the only place below which time is read from the system."""

import asyncio
import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


class SystemClock:
    """Time as the supervisor's loops take it."""

    def now(self) -> datetime:
        """The wall clock."""
        return utc_now()

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let others run."""
        await asyncio.sleep(seconds)
