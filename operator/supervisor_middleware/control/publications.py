"""Tells the audit trail what was published, once a generation and not once a sandbox. PURE but for `emit`.

An operator that starts publishes everything there is, which changes nothing for sandboxes: that is one event.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.model.generation import Sealed
from supervisor_middleware.model.sandbox import Sandbox

STARTED: Final = "Started"
_AT_ONCE: Final = 50


class Publications:
    """One a reconciler."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        """`emit` takes audit events."""
        self._emit = emit
        self._published: Mapping[str, str] | None = None

    async def tell(self, generations: Mapping[str, Sealed], sandboxes: Iterable[Sandbox]) -> None:
        """Say what `generations` (by supervisor key) hold that was not published to that sandbox before."""
        digests = {key: sealed.digest for key, sealed in generations.items()}
        before, self._published = self._published, digests
        if before is None:
            if digests:
                self._emit(_published(_many(len(digests)), count=len(digests), reason=STARTED))
            return
        fresh: dict[str, list[str]] = {}
        for key, digest in digests.items():
            if before.get(key) != digest:
                fresh.setdefault(digest, []).append(key)
        if not fresh:
            return
        names = {s.key: f"Sandbox {s.namespace}/{s.name}" for s in sandboxes}
        for number, (digest, keys) in enumerate(fresh.items(), start=1):
            subject = names.get(keys[0], _many(1)) if len(keys) == 1 else _many(len(keys))
            self._emit(_published(subject, count=len(keys), digest=digest))
            if number % _AT_ONCE == 0:
                # Streams and reviews go on meanwhile.
                await asyncio.sleep(0)


def _published(subject: str, *, count: int, digest: str = "", reason: str = "") -> Changed:
    return Changed(kind=ChangeKind.GENERATION_PUBLISHED, subject=subject, reason=reason, digest=digest, count=count)


def _many(count: int) -> str:
    return "1 sandbox" if count == 1 else f"{count} sandboxes"
