"""Questions under way. Owns the background tasks that ask services, and the catalog they fill.

A slow or dead service is asked in its own task, so it holds back nobody else's policy; each answer calls `answered`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol

import structlog

from supervisor_middleware.compiler.questions import Question
from supervisor_middleware.control.decisions import Decisions
from supervisor_middleware.model.limits import TIMEOUT_MAX
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import Description, Outage, Unreachable, Verdict, VerdictKey
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.telemetry import where

_BROKEN: Final = Unreachable(Outage.CALL_FAILED)
_log = structlog.get_logger(__name__)


class Asker(Protocol):
    """How services are asked; `registry.inquiry.Inquirer` in production."""

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        """What a service is."""

    async def ask(self, questions: Sequence[Question], *, deadline: timedelta) -> Mapping[VerdictKey, Verdict]:
        """A verdict for every question within `deadline`; a built-in is asked in process."""

    def forget(self, keep: frozenset[Connection]) -> None:
        """Close connections that nothing refers to any more."""


class Inquiries:
    """Asks what decisions need, once each at a time."""

    def __init__(
        self,
        asker: Asker,
        *,
        now: Callable[[], datetime],
        answered: Callable[[], None],
        catalog: Catalog | None = None,
    ) -> None:
        """`answered` is called after every answer, good or bad; `catalog` is what is known already."""
        self._asker, self._now, self._answered = asker, now, answered
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self.catalog = Catalog() if catalog is None else catalog

    def pursue(self, decisions: Decisions) -> None:
        """Start asking whatever is due, and forget what nothing refers to any more."""
        services = {
            (r.draft.connection, r.draft.name)
            for r in decisions.registry.registrations
            if r.draft.connection is not None
        }
        asked = {q.key: q for p in decisions.policies for q in p.questions}
        self.catalog.keep(frozenset(services), frozenset(asked))
        accepted = (r.accepted.connection for r in decisions.registry.registrations if r.accepted is not None)
        self._asker.forget(frozenset((*accepted, *(connection for connection, _ in services))))
        now = self._now()
        for connection, name in services:
            if self.catalog.is_due(connection, name, now=now):
                self._start((connection, name), partial(self._describe, connection, name))
        for key, question in asked.items():
            if self.catalog.is_askable(key, now=now):
                self._start(key, partial(self._put, question))

    def lost(self, connection: Connection) -> None:
        """The connection to a service ended: it is described again soon, and whoever waits for it is told when."""
        self.catalog.lost(connection, now=self._now())
        self._answered()

    def next_due(self) -> datetime | None:
        """When to pursue again although nobody asked."""
        due = chain[tuple[object, datetime]](self.catalog.due(), self.catalog.verdicts_due())
        return min((at for key, at in due if key not in self._tasks), default=None)

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
            self._answered()

    async def _describe(self, connection: Connection, name: str) -> None:
        try:
            description = await self._asker.describe(connection, registration_name=name)
        except Exception as error:  # noqa: BLE001 - as an outage it is tried again, later and later
            _log.error("describing a service failed", registration=name, error=where(error))
            description = _BROKEN
        self.catalog.described(connection, name, description=description, now=self._now())

    async def _put(self, question: Question) -> None:
        try:
            verdict = (await self._asker.ask((question,), deadline=TIMEOUT_MAX))[question.key]
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("asking a service failed", service=question.service, error=where(error))
            verdict = _BROKEN
        self.catalog.decided(question.key, verdict, now=self._now())
