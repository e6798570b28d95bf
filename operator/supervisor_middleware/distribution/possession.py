"""Who may hold a good certificate, as far as a leader can know. PURE but for what it remembers.

Whoever does must learn of another root before the old one goes; a sandbox that nobody ever enrolled for need not.

1. What we issued or were shown ends when it says.
2. Whoever was there when our term began and showed nothing yet may hold a certificate that an earlier leader issued
   in its last moment. So it counts until the longest life after our beginning.
3. Whoever came later got nothing from anybody but us.
4. Where joins are remembered (standalone), nobody holds anything without one.

A view that lags may not show at once who is there: our term begins a while later for rule 3.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.pki.rotation import SKEW

SETTLING: Final = 60.0
"""Seconds until everybody who was there when our term began is seen: twice what a list takes to follow a watch."""


class Possession:
    """Of one term of leading."""

    def __init__(
        self,
        *,
        end_of: Callable[[str], datetime | None],
        now: Callable[[], datetime],
        has_joined: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`end_of` a supervisor's last certificate that is known (by key); `now` is the clock of certificates."""
        self._end_of, self._now, self._has_joined = end_of, now, has_joined
        self._began = now()
        self._earlier: frozenset[str] | None = None

    def settle(self, keys: Iterable[str]) -> None:
        """These may have been there before our term; whoever comes from now on was not."""
        self._earlier = frozenset(keys)

    def may_hold(self, key: str, *, longest: timedelta) -> bool:
        """Whether the supervisor of `key` may hold a certificate that is still good; `longest` is the life of one."""
        if not self._has_joined(key):
            return False
        end = self._end_of(key)
        if end is None:
            is_earlier = self._earlier is None or key in self._earlier
            return is_earlier and self._now() < self._began + longest + SKEW
        return self._now() < end + SKEW
