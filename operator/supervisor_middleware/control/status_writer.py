"""Writes statuses, as seldom as possible, and tells about transitions.

An equal status is not written again. Where only counts moved, at most one write a second and object: many supervisors
may answer at once. Transitions are written at once, and told (an Event, the audit trail) after the write.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.control.conditions import summary_of
from supervisor_middleware.control.standings import condition
from supervisor_middleware.control.status import is_news
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.snapshot import POLICY_KINDS, Stored
from supervisor_middleware.model.violation import Report, Subject

COUNTS_INTERVAL: Final = timedelta(seconds=1)

_CHANGES: Final = {
    **{(kind.value, True): ChangeKind.POLICY_ACCEPTED for kind in POLICY_KINDS},
    **{(kind.value, False): ChangeKind.POLICY_REJECTED for kind in POLICY_KINDS},
    ("SupervisorMiddleware", True): ChangeKind.REGISTRATION_ACCEPTED,
    ("SupervisorMiddleware", False): ChangeKind.REGISTRATION_REJECTED,
}
_IN_THE_CLEAR: Final = "request content and decisions travel in the clear: use https://"
_log = structlog.get_logger(__name__)


class Weight(StrEnum):
    """How much a notice matters, in Kubernetes' words."""

    NORMAL = "Normal"
    WARNING = "Warning"


class StatusStore(Protocol):
    """Where statuses go."""

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        """Replace a status, if the object is still the one that was read. The next snapshot holds it."""

    async def notify(self, subject: Subject, *, uid: str, reason: str, message: str, weight: str) -> None:
        """Tell whoever looks at the object."""


class StatusWriter:
    """One a reconciler."""

    def __init__(self, store: StatusStore, *, emit: Callable[[Event], None], failed: Callable[[], None]) -> None:
        """`emit` takes audit events; `failed` is called when a write should be tried again soon."""
        self._store, self._emit, self._failed = store, emit, failed
        self._written: dict[str, datetime] = {}
        self._postponed: dict[str, datetime] = {}
        self._attempted: set[str] = set()

    def begin_pass(self, uids: frozenset[str]) -> None:
        """Start over with the objects there are; each is written at most once a pass, as it was read once."""
        self._written = {uid: at for uid, at in self._written.items() if uid in uids}
        self._postponed.clear()
        self._attempted.clear()

    async def write(self, stored: Stored, status: Mapping[str, Any], report: Report | None, *, now: datetime) -> bool:
        """Whether the stored status says this now."""
        if stored.uid in self._attempted:
            return False
        if not is_news(status, stored.status):
            return True
        if _moves_counts_only(status, stored.status) and (due := self._due(stored.uid)) > now:
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
        await self._tell(stored, status, report)
        return True

    def next_due(self) -> datetime | None:
        """When the next postponed write is due."""
        return min(self._postponed.values(), default=None)

    def _due(self, uid: str) -> datetime:
        return self._written[uid] + COUNTS_INTERVAL if uid in self._written else datetime.min.replace(tzinfo=UTC)

    async def _tell(self, stored: Stored, status: Mapping[str, Any], report: Report | None) -> None:
        """On transitions only: of `Accepted` to a verdict, and of transport to plaintext."""
        before, after = condition(stored.status, "Accepted"), condition(status, "Accepted")
        if report is not None and after != before:
            is_good = after[0] == "True"
            change = Changed(
                kind=_CHANGES[stored.subject.kind, is_good], subject=str(stored.subject), reason=after[1]
            )
            await self._tell_one(stored, change, message=summary_of(report) or "accepted", is_good=is_good)
        # RFC 0009 "Registration and delivery": OpenShell warns, and records the insecure registration.
        insecure = condition(status, "InsecureTransport")
        if insecure[0] == "True" and condition(stored.status, "InsecureTransport") != insecure:
            change = Changed(
                kind=ChangeKind.REGISTRATION_INSECURE, subject=str(stored.subject), reason="InsecureTransport"
            )
            await self._tell_one(stored, change, message=_IN_THE_CLEAR, is_good=False)

    async def _tell_one(self, stored: Stored, change: Changed, *, message: str, is_good: bool) -> None:
        weight = Weight.NORMAL if is_good else Weight.WARNING
        self._emit(change)
        try:
            await self._store.notify(
                stored.subject, uid=stored.uid, reason=change.reason, message=message, weight=weight
            )
        except SupervisorMiddlewareError as error:
            _log.info("a notice could not be sent", object=str(stored.subject), reason=str(error))


def _moves_counts_only(status: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    return _without_counts(status) == _without_counts(previous)


def _without_counts(status: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in status.items() if k not in {"supervisors", "policies", "lastDescribed", "conditions"}}
    conditions = [(c.get("type"), c.get("status"), c.get("reason")) for c in status.get("conditions", ())]
    return {**rest, "conditions": conditions}
