"""One supervisor's outgoing side, without a wire: what is written, and when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import pytest

from supervisor_middleware.distribution.attendance import Leaf
from supervisor_middleware.distribution.guests import Guest
from supervisor_middleware.distribution.streams import NOT_LEADING, OVER, End, Lifetime, Stream
from tests.pki.builders import an_identity

GONE = End(grpc.StatusCode.PERMISSION_DENIED, "gone")
LEAF = Leaf(serial=1, begins_at=datetime.now(UTC), expires_at=datetime.now(UTC), issuer="")


class Wire:
    """What was written; a write takes until `taken`."""

    def __init__(self) -> None:
        self.written = list[bytes]()
        self.taken = asyncio.Event()
        self.taken.set()
        self.is_leading, self.is_busy = True, False
        self.stream = Stream(Guest(identity=an_identity(), leaf=LEAF))

    async def write(self, data: bytes) -> None:
        self.written.append(data)
        await self.taken.wait()

    @asynccontextmanager
    async def room(self, _: int) -> AsyncIterator[None]:
        yield

    def serve(self, *, rest: float = 60, grace: float = 60) -> "asyncio.Task[End]":
        return asyncio.create_task(
            self.stream.serve(
                self.write,
                room=self.room,
                leads=lambda: self.is_leading,
                lifetime=Lifetime(rest=rest, grace=grace),
                is_busy=lambda: self.is_busy,
            )
        )


@pytest.fixture
async def wire() -> Wire:
    return Wire()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_newest_waits_while_one_is_taken_and_others_are_forgotten(wire: Wire) -> None:
    wire.taken.clear()
    serving = wire.serve()
    wire.stream.put(b"1")
    await settle()
    wire.stream.put(b"2")
    wire.stream.put(b"3")
    assert not wire.stream.is_idle
    wire.taken.set()
    await settle()
    assert wire.written == [b"1", b"3"]
    wire.stream.close(GONE)
    wire.stream.close(OVER)
    assert await serving is GONE


async def test_an_end_goes_before_what_waits(wire: Wire) -> None:
    wire.stream.put(b"1")
    wire.stream.close(GONE)
    assert await wire.serve() is GONE
    assert wire.written == []


async def test_whoever_leads_no_more_writes_nothing_more(wire: Wire) -> None:
    serving = wire.serve()
    await settle()
    wire.is_leading = False
    wire.stream.put(b"1")
    assert await serving is NOT_LEADING
    assert wire.written == []


async def test_an_old_stream_ends_when_nothing_is_under_way(wire: Wire) -> None:
    wire.is_busy = True
    serving = wire.serve(rest=0)
    await asyncio.sleep(0.01)
    wire.stream.answered()
    wire.stream.put(b"1")
    await settle()
    assert not serving.done()
    wire.is_busy = False
    wire.stream.answered()
    assert await serving is OVER
    assert wire.written == [b"1"]


async def test_an_old_stream_that_is_always_busy_ends_after_a_grace(wire: Wire) -> None:
    wire.is_busy = True
    assert await wire.serve(rest=0, grace=0.01) is OVER


async def test_at_rest_nothing_is_woken(wire: Wire) -> None:
    leads_asked = 0

    def leads() -> bool:
        nonlocal leads_asked
        leads_asked += 1
        return True

    serving = asyncio.create_task(
        wire.stream.serve(
            wire.write, room=wire.room, leads=leads, lifetime=Lifetime(rest=60, grace=1), is_busy=lambda: False
        )
    )
    await asyncio.sleep(0.05)
    assert leads_asked == 1
    wire.stream.close(GONE)
    await serving
