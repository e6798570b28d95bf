"""The real clock: the only place below which time is read from the system."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from supervisor_middleware.pki.credentials import Credentials, renewal_time

LOOK_INTERVAL: Final = 30.0
"""Seconds between two looks at a certificate: clocks jump."""
LOOK_MINIMUM: Final = 1.0


def utc_now() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def uninterrupted() -> float:
    """Seconds of a clock that never jumps and does not stand still while the machine sleeps: leases run on."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


async def until_renewal(
    credentials: Callable[[], Credentials],
    *,
    now: Callable[[], datetime] = utc_now,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Wait until those that are current should be replaced: at about half-life, or because the clock was set back.

    It looks again and again: a machine may have slept, and then a timer is late by as much.
    """
    jitter = random.random()  # noqa: S311 - spreads load, hides nothing
    while True:
        current = credentials()
        at = renewal_time(not_before=current.not_before, not_after=current.expires_at, jitter=jitter)
        await sleep(min(LOOK_INTERVAL, max(LOOK_MINIMUM, (at - now()).total_seconds())))
        # One that is not valid yet was issued while our clock was ahead.
        if credentials() is current and not current.not_before <= now() < at:
            return


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
