"""An allowance that fills up by time. PURE: time is an argument."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`burst` at once, then `rate` a second."""

    burst: int
    rate: float


class Allowance:
    """What one peer may still do."""

    __slots__ = ("_at", "_left", "_pace")

    def __init__(self, pace: Pace, *, now: float) -> None:
        """A full one."""
        self._pace, self._left, self._at = pace, float(pace.burst), now

    def take(self, now: float) -> bool:
        """Do one thing; whether that was allowed."""
        self.grant(0, now=now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def grant(self, things: int, *, now: float) -> None:
        """Allow `things` more, never more than a burst."""
        self._left = min(self._left + things + (now - self._at) * self._pace.rate, float(self._pace.burst))
        self._at = now

    def until_next(self, now: float) -> float:
        """Seconds until one more thing is allowed."""
        self.grant(0, now=now)
        return max(0.0, (1 - self._left) / self._pace.rate)

    def is_full(self, now: float) -> bool:
        """Whether nothing was done for long."""
        self.grant(0, now=now)
        return self._left >= self._pace.burst
