"""The real clock: the only place below which time is read from the system."""

import asyncio
import random
import time
from datetime import UTC, datetime

from supervisor_middleware.pki.credentials import Credentials, renewal_time


def utc_now() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def uninterrupted() -> float:
    """Seconds of a clock that never jumps and does not stand still while the machine sleeps: leases run on."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


async def until_renewal(credentials: Credentials) -> None:
    """Wait until `credentials` should be renewed: at about half-life."""
    at = renewal_time(
        not_before=credentials.not_before,
        not_after=credentials.expires_at,
        jitter=random.random(),  # noqa: S311 - spreads load, hides nothing
    )
    await asyncio.sleep(max(1.0, (at - utc_now()).total_seconds()))


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
