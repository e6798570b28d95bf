"""Removes revisions that nobody needs any more, beside the passes: no sandbox waits for that, so no pass does."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from supervisor_middleware.control.batches import for_each
from supervisor_middleware.errors import SupervisorMiddlewareError

_log = structlog.get_logger(__name__)


class Collector:
    """One a reconciler."""

    def __init__(self, delete: Callable[[str], Awaitable[None]]) -> None:
        """`delete` removes a revision by its name; an absent one is fine."""
        self._delete = delete
        self._wanted: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_collecting(self) -> bool:
        """Whether something is being removed."""
        return self._task is not None

    def collect(self, names: Iterable[str]) -> None:
        """Have these removed; what cannot be is for a later pass to find again."""
        self._wanted = tuple(names)
        if self._wanted and self._task is None:
            self._task = asyncio.create_task(self._collect())
            self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()

    async def _collect(self) -> None:
        tried = set[str]()
        while names := [name for name in self._wanted if name not in tried]:
            tried.update(names)
            await for_each(names, self._remove)

    async def _remove(self, name: str) -> None:
        try:
            await self._delete(name)
        except SupervisorMiddlewareError as error:
            _log.info("an old revision could not be removed yet", revision=name, reason=str(error))

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("removing old revisions failed", error=type(error).__name__)
