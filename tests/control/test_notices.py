"""Notices go out in order, beside whoever asked for them."""

import asyncio
from collections.abc import Callable

from supervisor_middleware.control.notices import MAX_WAITING, Notice, Notices, Weight
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.violation import Subject
from tests.waiting import eventually


class Events:
    """Takes notices while `gate` is open."""

    def __init__(self, fails: Callable[[str], Exception | None] = lambda _: None) -> None:
        self.sent: list[str] = []
        self.gate = asyncio.Event()
        self._fails = fails

    async def notify(self, subject: Subject, *, uid: str, reason: str, message: str, weight: str) -> None:
        await self.gate.wait()
        if (error := self._fails(reason)) is not None:
            raise error
        self.sent.append(reason)


def a_notice(reason: str) -> Notice:
    subject = Subject(kind="SandboxPolicy", namespace="a", name="p")
    return Notice(subject=subject, uid="uid", reason=reason, message="m", weight=Weight.NORMAL)


async def test_nobody_waits_for_them_and_they_keep_their_order() -> None:
    events = Events()
    notices = Notices(events)
    for reason in ("a", "b"):
        notices.put(a_notice(reason))
    await asyncio.sleep(0)
    notices.put(a_notice("c"))
    assert events.sent == []
    events.gate.set()
    await eventually(lambda: events.sent == ["a", "b", "c"])
    notices.put(a_notice("d"))
    await eventually(lambda: events.sent == ["a", "b", "c", "d"])


async def test_one_that_cannot_be_sent_holds_up_no_other_and_neither_does_a_fault() -> None:
    errors = {"a": Unavailable("away"), "c": ZeroDivisionError()}
    events = Events(errors.get)
    notices = Notices(events)
    events.gate.set()
    for reason in "abcd":
        notices.put(a_notice(reason))
    await eventually(lambda: events.sent == ["b"] and notices._task is None)
    notices.put(a_notice("e"))
    await eventually(lambda: events.sent == ["b", "d", "e"])


async def test_so_many_wait_and_the_oldest_give_way() -> None:
    events = Events()
    notices = Notices(events)
    for number in range(MAX_WAITING + 5):
        notices.put(a_notice(str(number)))
    events.gate.set()
    await eventually(lambda: len(events.sent) == MAX_WAITING)
    assert events.sent[-1] == str(MAX_WAITING + 4)


async def test_a_leader_that_ends_sends_no_more() -> None:
    events = Events()
    notices = Notices(events)
    notices.put(a_notice("a"))
    await asyncio.sleep(0)
    notices.cancel()
    await eventually(lambda: notices._task is None)
    events.gate.set()
    await asyncio.sleep(0)
    assert events.sent == []
