"""A clock for the supervisor's control side: real time, but no pause is longer than a blink."""

import asyncio
import time
from datetime import UTC, datetime

BLINK = 0.02


class QuickClock:
    """`slept` is what was asked for, so that a test can look at backoff; `ahead` are seconds that have passed."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(min(seconds, BLINK))
