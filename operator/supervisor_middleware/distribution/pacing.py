"""Allowances that fill up by time. PURE but for what they remember: time is an argument."""

from dataclasses import dataclass
from typing import Final

_ROOM: Final = 1024
"""How many peers are known before those that are forgotten are looked for."""


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


class Allowances:
    """Of many peers; of whoever did nothing for long nothing needs to be known."""

    __slots__ = ("_known", "_pace", "_room")

    def __init__(self, pace: Pace) -> None:
        self._pace, self._room = pace, _ROOM
        self._known: dict[str, Allowance] = {}

    def of(self, peer: str, *, now: float) -> Allowance:
        """That of one."""
        if len(self._known) >= self._room:
            self._known = {p: a for p, a in self._known.items() if not a.is_full(now)}
            self._room = max(_ROOM, 2 * len(self._known))
        if (allowance := self._known.get(peer)) is None:
            allowance = self._known[peer] = Allowance(self._pace, now=now)
        return allowance
