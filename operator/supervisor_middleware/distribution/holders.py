"""Which certificate of a supervisor is its newest. PURE but for what it remembers: one certificate a supervisor.

The rules:
1. What we issued last is the newest, whatever its dates say: we issue only while we lead, so every certificate of
   another leader is older, and two leaders' clocks may differ.
2. A certificate that asked for its successor counts as well until the successor is shown: the answer may have been
   lost. One that a token bought ends all others at once.
3. Until we issue, we know what we are shown: the one that begins later is newer; of two that begin in the same
   second, either.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from supervisor_middleware.distribution.attendance import Leaf

_ROOM: Final = 1024
"""How many are kept before those that have expired are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    certificate: Leaf
    is_ours: bool
    asked_with: Leaf | None = None


class Holders:
    """The newest certificate of every supervisor (by the ledger's key) that this leader has seen or served."""

    def __init__(self, *, now: Callable[[], datetime]) -> None:
        """`now` is the clock of certificates."""
        self._now = now
        self._newest: dict[str, _Newest] = {}
        self._room = _ROOM

    def issued(self, key: str, certificate: Leaf, *, asked_with: Leaf | None) -> None:
        """`certificate` was signed for `key`: for a token, or for a renewal that `asked_with` proved."""
        self._make_room()
        self._newest[key] = _Newest(certificate=certificate, is_ours=True, asked_with=asked_with)

    def shown(self, key: str, certificate: Leaf) -> bool:
        """TLS accepted `certificate` of `key`; whether it is the one that counts."""
        newest = self._newest.get(key)
        if newest is not None and certificate == newest.certificate:
            if newest.asked_with is not None:
                self._newest[key] = replace(newest, asked_with=None)
            return True
        if newest is None or _may_be_later(certificate, than=newest):
            self._make_room()
            self._newest[key] = _Newest(certificate=certificate, is_ours=False)
            return True
        return certificate == newest.asked_with

    def end_of(self, key: str) -> datetime | None:
        """When the last certificate of `key` that counts ends; None: we know of none."""
        newest = self._newest.get(key)
        if newest is None:
            return None
        ends = [leaf.expires_at for leaf in (newest.certificate, newest.asked_with) if leaf is not None]
        return max(ends)

    def _make_room(self) -> None:
        if len(self._newest) < self._room:
            return
        now = self._now()
        self._newest = {key: n for key, n in self._newest.items() if now < n.certificate.expires_at}
        self._room = max(_ROOM, 2 * len(self._newest))


def _may_be_later(certificate: Leaf, *, than: _Newest) -> bool:
    return not than.is_ours and certificate.begins_at >= than.certificate.begins_at
