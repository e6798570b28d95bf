"""Sends notices (a cluster's Events) beside the passes, in their order: no sandbox waits for what people read."""

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import structlog

from supervisor_middleware.errors import SupervisorMiddlewareError
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.telemetry import where

MAX_WAITING: Final = 1000
"""Of more the oldest are not sent: newer ones, and the statuses, say what holds."""

_log = structlog.get_logger(__name__)


class Weight(StrEnum):
    """How much a notice matters, in Kubernetes' words."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """About one object, by its UID."""

    subject: Subject
    uid: str
    reason: str
    message: str
    weight: Weight


class Notifier(Protocol):
    """Where notices go."""

    async def notify(self, subject: Subject, *, uid: str, reason: str, message: str, weight: str) -> None:
        """Tell whoever looks at the object."""


class Notices:
    """One a reconciler."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._waiting = deque[Notice](maxlen=MAX_WAITING)
        self._task: asyncio.Task[None] | None = None

    def put(self, notice: Notice) -> None:
        """Have it sent."""
        self._waiting.append(notice)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all())
            self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Stop; what waits is not sent."""
        if self._task is not None:
            self._task.cancel()

    async def _send_all(self) -> None:
        while self._waiting:
            await self._send(self._waiting.popleft())

    async def _send(self, notice: Notice) -> None:
        try:
            await self._notifier.notify(
                notice.subject, uid=notice.uid, reason=notice.reason, message=notice.message, weight=notice.weight
            )
        except SupervisorMiddlewareError as error:
            _log.info("a notice could not be sent", object=str(notice.subject), reason=str(error))

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a notice failed", error=where(error))
