"""Questions under way. Owns the background tasks that ask services, and the catalog they fill.

A slow or dead service is asked in its own task, so it holds back nobody else's policy; each answer calls `answered`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

import structlog

from supervisor_middleware.compiler.questions import Question
from supervisor_middleware.control.decisions import Decisions
from supervisor_middleware.model.limits import TIMEOUT_MAX
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import Description, Verdict, VerdictKey
from supervisor_middleware.registry.catalog import Catalog

_OUTAGE_CHECK: Final = timedelta(seconds=1)
_log = structlog.get_logger(__name__)


class Asker(Protocol):
    """How services are asked; `registry.inquiry.Inquirer` in production."""

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        """What a service is."""

    async def ask(self, questions: Sequence[Question], *, deadline: timedelta) -> Mapping[VerdictKey, Verdict]:
        """A verdict for every question within `deadline`; a built-in is asked in process."""


class Inquiries:
    """Asks what decisions need, once each at a time."""

    def __init__(self, asker: Asker, *, now: Callable[[], datetime], answered: Callable[[], None]) -> None:
        """`answered` is called after every answer, good or bad."""
        self._asker, self._now, self._answered = asker, now, answered
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self.catalog = Catalog()

    def pursue(self, decisions: Decisions) -> None:
        """Start asking whatever is due, and forget what nothing refers to any more."""
        services = {
            (r.draft.connection, r.draft.name)
            for r in decisions.registry.registrations
            if r.draft.connection is not None
        }
        asked = {q.key: q for p in decisions.policies for q in p.questions}
        self.catalog.keep(frozenset(services), frozenset(asked))
        now = self._now()
        for connection, name in services:
            if self.catalog.is_due(connection, name, now=now):
                self._start((connection, name), partial(self._describe, connection, name))
        for key, question in asked.items():
            if self.catalog.is_askable(key, now=now):
                self._start(key, partial(self._put, question))

    def next_due(self) -> datetime | None:
        """When to pursue again although nobody asked."""
        due = [at for key, at in self.catalog.due() if key not in self._tasks]
        if self.catalog.has_outages():
            due.append(self._now() + _OUTAGE_CHECK)
        return min(due, default=None)

    def cancel(self) -> None:
        """Stop asking."""
        for task in self._tasks.values():
            task.cancel()

    def _start(self, key: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if key in self._tasks:
            return
        task = self._tasks[key] = asyncio.create_task(work())
        task.add_done_callback(lambda finished: self._finish(key, finished))

    def _finish(self, key: object, finished: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        if not finished.cancelled():
            if (error := finished.exception()) is not None:
                _log.error("asking a service failed", exc_info=error)
            self._answered()

    async def _describe(self, connection: Connection, name: str) -> None:
        description = await self._asker.describe(connection, registration_name=name)
        self.catalog.described(connection, name, description=description, now=self._now())

    async def _put(self, question: Question) -> None:
        verdicts = await self._asker.ask((question,), deadline=TIMEOUT_MAX)
        self.catalog.decided(question.key, verdicts[question.key], now=self._now())
