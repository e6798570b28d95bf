"""What goes on for a while after a term of leading: streams that end one by one, so that supervisors are no herd.

Whoever leads next need not wait for that: nothing is said on those streams any more, so the lease is released first.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

_AT_ONCE: Final = 0.05
"""Seconds for what comes first: a listener is closed, so that its port is free for another term."""


class Farewells:
    """One a process; whoever ends it waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    async def add(self, farewell: Coroutine[Any, Any, object]) -> None:
        """Let `farewell` begin, and go on by itself."""
        task: asyncio.Task[object] = asyncio.create_task(farewell)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait((task,), timeout=_AT_ONCE)

    async def aclose(self) -> None:
        """Wait for all of them."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
