"""Writes statuses, as seldom as possible, and tells about transitions.

An equal status is not written again. Where only counts moved, at most one write a second and object: many supervisors
may answer at once. Transitions are written at once, and told (an Event, the audit trail) after the write. Nothing
waits for the Event.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import structlog

from supervisor_middleware.audit.events import Event
from supervisor_middleware.control.news import News, news_of
from supervisor_middleware.control.notices import Notice, Notices, Notifier, Weight
from supervisor_middleware.control.status import is_news
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.compact import expanded
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.violation import Report

COUNTS_INTERVAL: Final = timedelta(seconds=1)
PENDING_GRACE: Final = timedelta(seconds=0.5)
"""A spec that is judged within it costs one write, not two. Until then the object itself says that nobody has looked:
its `observedGeneration` is behind, or -1 by the CRD's default."""

_log = structlog.get_logger(__name__)


class StatusStore(Notifier, Protocol):
    """Where statuses go."""

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        """Replace a status, if the object is still the one that was read. The next snapshot holds it."""


class StatusWriter:
    """One a reconciler."""

    def __init__(self, store: StatusStore, *, emit: Callable[[Event], None], failed: Callable[[], None]) -> None:
        """`emit` takes audit events; `failed` is called when a write should be tried again soon."""
        self._store, self._emit, self._failed = store, emit, failed
        self._notices = Notices(store)
        self._written: dict[str, datetime] = {}
        self._postponed: dict[str, datetime] = {}
        self._pending: dict[str, tuple[int | None, datetime]] = {}
        self._attempted: set[str] = set()

    def begin_pass(self, uids: frozenset[str]) -> None:
        """Start over with the objects there are; each is written at most once a pass, as it was read once."""
        self._written = {uid: at for uid, at in self._written.items() if uid in uids}
        self._pending = {uid: since for uid, since in self._pending.items() if uid in uids}
        self._postponed.clear()
        self._attempted.clear()

    async def write(self, stored: Stored, status: Mapping[str, Any], report: Report | None, *, now: datetime) -> bool:
        """Whether the stored status says this now."""
        if stored.uid in self._attempted:
            return False
        previous = expanded(stored.status)
        if not is_news(status, previous):
            return True
        due = self._due(stored, status, report, previous=previous, now=now)
        if due is not None and due > now:
            self._postponed[stored.uid] = due
            return False
        self._attempted.add(stored.uid)
        try:
            await self._store.write_status(stored, status)
        except Unavailable as error:
            _log.info("a status could not be written yet", object=str(stored.subject), reason=str(error))
            self._failed()
            return False
        except SupervisorMiddlewareError as error:
            # One object's status must not keep the others from theirs.
            _log.error("a status cannot be written", object=str(stored.subject), reason=str(error))
            return False
        self._written[stored.uid] = now
        if report is not None:
            self._pending.pop(stored.uid, None)
        self._tell(stored, news_of(stored.subject, status, previous, report))
        return True

    def cancel(self) -> None:
        """Stop telling."""
        self._notices.cancel()

    def next_due(self) -> datetime | None:
        """When the next postponed write is due."""
        return min(self._postponed.values(), default=None)

    def _due(
        self,
        stored: Stored,
        status: Mapping[str, Any],
        found: Report | None,
        *,
        previous: Mapping[str, Any],
        now: datetime,
    ) -> datetime | None:
        """What may wait, and until when."""
        if found is None:
            return self._pending_until(stored, now=now)
        if _moves_counts_only(status, previous) and stored.uid in self._written:
            return self._written[stored.uid] + COUNTS_INTERVAL
        return None

    def _tell(self, stored: Stored, found: Iterable[News]) -> None:
        for news in found:
            if news.change is not None:
                self._emit(news.change)
            if news.reason:
                weight = Weight.NORMAL if news.is_good else Weight.WARNING
                self._notices.put(
                    Notice(
                        subject=stored.subject,
                        uid=stored.uid,
                        reason=news.reason,
                        message=news.message,
                        weight=weight,
                    )
                )

    def _pending_until(self, stored: Stored, *, now: datetime) -> datetime:
        """Until when nothing is said of a spec whose answers are under way; most come at once."""
        generation, since = self._pending.get(stored.uid, (None, now))
        if generation != stored.generation:
            since = now
        self._pending[stored.uid] = (stored.generation, since)
        return since + PENDING_GRACE


def _moves_counts_only(status: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    return _without_counts(status) == _without_counts(previous)


def _without_counts(status: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in status.items() if k not in {"supervisors", "policies", "lastDescribed", "conditions"}}
    return {**rest, "conditions": [_stand(c) for c in status.get("conditions", ())]}


def _stand(condition: Mapping[str, Any]) -> tuple[object, ...]:
    kind, status = condition.get("type"), condition.get("status")
    # How far supervisors have got, and why not further, is theirs to say, and one may change its mind all the time.
    # Whatever else `Reconciling` follows from moves another condition, too.
    if kind == "Reconciling":
        return (kind,)
    is_theirs = (kind, status) == ("Programmed", "False")
    return kind, status, None if is_theirs else condition.get("reason")
