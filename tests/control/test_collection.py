"""Old revisions go beside the passes, and what cannot go now goes later."""

import asyncio

from structlog.testing import capture_logs

from supervisor_middleware.control.collection import Collector
from supervisor_middleware.errors import Unavailable


class Shelf:
    """Where revisions are; deleting waits while it is `closed`."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.error: Exception | None = None
        self.collector = Collector(self.delete)

    async def delete(self, name: str) -> None:
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        self.deleted.append(name)

    async def settle(self) -> None:
        self.is_open.set()
        while self.collector.is_collecting:  # noqa: ASYNC110 - tasks that end at once
            await asyncio.sleep(0)


async def test_nobody_waits_for_what_is_removed() -> None:
    shelf = Shelf()
    shelf.is_open.clear()
    shelf.collector.collect(["a-1", "b-1"])
    assert shelf.collector.is_collecting
    await shelf.settle()
    assert shelf.deleted == ["a-1", "b-1"]


async def test_what_is_wanted_meanwhile_is_removed_next_and_nothing_twice() -> None:
    shelf = Shelf()
    shelf.is_open.clear()
    shelf.collector.collect(["a-1"])
    await asyncio.sleep(0)
    shelf.collector.collect(["a-1", "a-2"])
    await shelf.settle()
    assert shelf.deleted == ["a-1", "a-2"]


async def test_nothing_to_remove_starts_nothing() -> None:
    shelf = Shelf()
    shelf.collector.collect([])
    assert not shelf.collector.is_collecting


async def test_what_cannot_be_removed_is_for_the_next_time() -> None:
    shelf = Shelf()
    shelf.error = Unavailable("away")
    shelf.collector.collect(["a-1"])
    await shelf.settle()
    shelf.error = None
    shelf.collector.collect(["a-1"])
    await shelf.settle()
    assert shelf.deleted == ["a-1"]


async def test_a_defect_is_logged_without_its_text_and_ends_nothing() -> None:
    shelf = Shelf()
    shelf.error = ZeroDivisionError("canary")
    with capture_logs() as logs:
        shelf.collector.collect(["a-1"])
        await shelf.settle()
    assert "ZeroDivisionError" in str(logs)
    assert "canary" not in str(logs)
    shelf.error = None
    shelf.collector.collect(["a-1"])
    await shelf.settle()
    assert shelf.deleted == ["a-1"]


async def test_a_term_that_ends_removes_no_more() -> None:
    shelf = Shelf()
    shelf.is_open.clear()
    shelf.collector.collect(["a-1"])
    await asyncio.sleep(0)
    shelf.collector.cancel()
    await shelf.settle()
    assert shelf.deleted == []
    shelf.collector.cancel()
