"""Tells the audit trail what was published, once a generation and not once a sandbox. PURE but for `emit`.

An operator that starts publishes everything there is, which changes nothing for sandboxes: that is one event.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.model.sandbox import Sandbox

STARTED: Final = "Started"
_AT_ONCE: Final = 50


class Publications:
    """One a reconciler."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        """`emit` takes audit events."""
        self._emit = emit
        self._published: dict[str, str] = {}
        self._is_begun = False

    async def tell(self, changes: Mapping[str, Assignment | None]) -> None:
        """Say what `changes` (by supervisor key) hold that was not published to that sandbox before."""
        fresh = dict[str, list[Sandbox]]()
        for key, assigned in changes.items():
            before = self._published.pop(key, None)
            if assigned is not None:
                digest = self._published[key] = assigned.sealed.digest
                if digest != before:
                    fresh.setdefault(digest, []).append(assigned.sandbox)
        if not self._is_begun:
            self._is_begun = True
            if fresh:
                count = len(self._published)
                self._emit(_published(_many(count), count=count, reason=STARTED))
            return
        for number, (digest, sandboxes) in enumerate(fresh.items(), start=1):
            count = len(sandboxes)
            subject = f"Sandbox {sandboxes[0].namespace}/{sandboxes[0].name}" if count == 1 else _many(count)
            self._emit(_published(subject, count=count, digest=digest))
            if number % _AT_ONCE == 0:
                # Streams and reviews go on meanwhile.
                await asyncio.sleep(0)


def _published(subject: str, *, count: int, digest: str = "", reason: str = "") -> Changed:
    return Changed(kind=ChangeKind.GENERATION_PUBLISHED, subject=subject, reason=reason, digest=digest, count=count)


def _many(count: int) -> str:
    return "1 sandbox" if count == 1 else f"{count} sandboxes"
