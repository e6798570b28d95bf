"""The election's loop: campaign, lead while the Lease is renewed, step down, campaign again.

Owns the order of an end: work is ended first, then the Lease is released, so that whoever is next finds nobody at
work. What leading means is the caller's. Decisions are `control.lease`'s; how a Lease is stored is `LeaseStore`'s.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Protocol

import structlog

from supervisor_middleware.control import lease as rules
from supervisor_middleware.control.lease import RENEW_DEADLINE, RETRY, View
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.lease import Lease

_ATTEMPT: Final = 3.0
"""Of a request about the Lease: one that hangs must leave time for another."""
_RENEWAL_ATTEMPTS: Final = 3
_VIEW_PAUSE: Final = 0.1

_log = structlog.get_logger(__name__)


class Deposed(Unavailable):
    """This operator led, and does not any more: nothing may be written."""


class LeaseStore(Protocol):
    """Where the Lease is kept."""

    async def read(self) -> Lease | None:
        """The record, or None if there is none."""

    async def write(self, lease: Lease) -> bool:
        """Replace exactly what was read last, or create it if there was nothing; whether nobody else was faster."""


class Leadership:
    """One term of leading, asked before everything that only a leader may do. Over is over: it never comes back.

    Asked by the clock, not told by a loop: a process that was stopped for a while acts before its loop learns of it.
    """

    def __init__(self, *, epoch: int, until: float, monotonic: Callable[[], float]) -> None:
        """Led under `epoch` until `until` of `monotonic`, unless extended."""
        self.epoch = epoch
        self._until, self._monotonic, self._is_over = until, monotonic, False

    def is_held(self) -> bool:
        """Whether we lead at this moment."""
        self._is_over = self._is_over or self._monotonic() >= self._until
        return not self._is_over

    def check(self) -> None:
        """Raise `Deposed` unless we lead at this moment."""
        if not self.is_held():
            raise Deposed("this operator does not lead any more")

    def extend(self, until: float) -> bool:
        """Lead until `until`; not if the term is over already. Whether we lead."""
        if self.is_held():
            self._until = max(self._until, until)
        return self.is_held()

    def end(self) -> None:
        """Lead no more."""
        self._is_over = True

    @property
    def remaining(self) -> float:
        """Seconds until the term ends if it is not extended."""
        return max(0.0, self._until - self._monotonic())


class Election:
    """One replica's part in it."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
        highest_epoch: Callable[[], Awaitable[int | None]],
    ) -> None:
        """`identity` is this process's alone; `highest_epoch` is of all that is persisted, None until known."""
        self._store, self._monotonic, self._now = store, monotonic, now
        self._highest_epoch = highest_epoch
        self._view = View(identity=identity)
        self._told = ""

    async def run(self, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        """Campaign and lead, term after term, until cancelled. `lead` is cancelled when its term ends.

        A `lead` that returns resigns. What it raises ends the election, after the Lease was released.
        """
        while True:
            leadership = await self._win()
            _log.info("this operator leads", epoch=leadership.epoch)
            await self._serve(leadership, lead)

    async def _serve(self, leadership: Leadership, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        working = asyncio.ensure_future(lead(leadership))
        keeping = asyncio.create_task(self._keep(leadership))
        expiring = asyncio.create_task(_expire(leadership))
        try:
            await asyncio.wait((working, keeping, expiring), return_when=asyncio.FIRST_COMPLETED)
        finally:
            expiring.cancel()
            if keeping.done() or not leadership.is_held():
                # Nobody may think that we still lead.
                leadership.end()
                await _end(keeping)
                why = rules.NOT_RENEWED.why if keeping.cancelled() or keeping.exception() else keeping.result()
                _log.warning("this operator leads no more", epoch=leadership.epoch, reason=why)
                await _end(working)
            else:
                # The Lease is still renewed while work ends, and released only after it has.
                await _end(working)
                await _end(keeping)
                await self._release(leadership)
            self._view = rules.ended(self._view)
            failures = [t.exception() for t in (keeping, working) if t.done() and not t.cancelled()]
        for failure in failures:
            # Also one while ending: a term that could not be cleaned up must not be followed by another.
            if failure is not None:
                raise failure

    # ------------------------------------------------------------------------------------------------- campaigning

    async def _win(self) -> Leadership:
        while True:
            if not await self._look():
                await asyncio.sleep(RETRY)
                continue
            match rules.decide(self._view, now=self._monotonic()):
                case rules.Wait(until):
                    self._tell("following", holder=self._holder())
                    await asyncio.sleep(min(max(until - self._monotonic(), 0.0), RETRY))
                case _:
                    if (leadership := await self._take()) is not None:
                        return leadership
                    await asyncio.sleep(_VIEW_PAUSE)

    async def _look(self) -> bool:
        """Read the Lease; whether that could be done."""
        try:
            async with asyncio.timeout(_ATTEMPT):
                lease = await self._store.read()
        except (Unavailable, TimeoutError) as error:
            self._tell("the lease cannot be read", reason=_text(error))
            return False
        self._view = rules.observe(self._view, lease, now=self._monotonic())
        return True

    async def _take(self) -> Leadership | None:
        """Acquire; None if somebody was faster, or the epoch cannot be chosen yet."""
        highest = await self._highest_epoch()
        if highest is None:
            self._tell("no campaign yet: not every kind is known")
            return None
        asked_at, now = self._monotonic(), self._now()
        lease = rules.acquisition(
            self._view, mark=_mark(now), unix_seconds=int(now.timestamp()), highest_epoch=highest
        )
        if not await self._write(lease):
            return None
        self._view = rules.written(self._view, lease, asked_at=asked_at)
        self._told = ""
        return Leadership(epoch=lease.epoch, until=asked_at + RENEW_DEADLINE, monotonic=self._monotonic)

    async def _write(self, lease: Lease) -> bool:
        try:
            async with asyncio.timeout(_ATTEMPT):
                return await self._store.write(lease)
        except (Unavailable, TimeoutError) as error:
            self._tell("the lease cannot be written", reason=_text(error))
            return False

    # ----------------------------------------------------------------------------------------------------- leading

    async def _keep(self, leadership: Leadership) -> str:
        """Renew; returns when the term is over, and why it is."""
        while leadership.is_held():
            match rules.decide(self._view, now=self._monotonic()):
                case rules.StepDown(why):
                    return why
                case rules.Wait(until):
                    await asyncio.sleep(max(until - self._monotonic(), 0.0))
                case _:
                    await self._renew(leadership)
        return rules.NOT_RENEWED.why

    async def _renew(self, leadership: Leadership) -> None:
        for _ in range(_RENEWAL_ATTEMPTS):
            asked_at = self._monotonic()
            lease = rules.renewal(self._view, mark=_mark(self._now()))
            if await self._write(lease):
                if leadership.extend(asked_at + RENEW_DEADLINE):
                    self._view = rules.written(self._view, lease, asked_at=asked_at)
                    self._told = ""
                return
            # Somebody touched it, perhaps only a label; or ours was written and the answer was lost.
            if not await self._look():
                break
            if self._view.lease is not None and not rules.holds(self._view):
                return
        await asyncio.sleep(min(RETRY / 2, leadership.remaining))

    async def _release(self, leadership: Leadership) -> None:
        if not leadership.is_held():
            return
        leadership.end()
        if await self._write(rules.release(self._view, mark=_mark(self._now()))):
            _log.info("the lease is released")

    def _holder(self) -> str:
        return "" if self._view.lease is None else self._view.lease.holder

    def _tell(self, what: str, **more: str) -> None:
        """Once, not at each attempt."""
        if self._told != (told := f"{what} {more}"):
            self._told = told
            _log.info(what, **more)


async def _expire(leadership: Leadership) -> None:
    """Return the moment the term is over by the clock, whatever a renewal is waiting for."""
    while leadership.is_held():  # noqa: ASYNC110 - the clock sets no event
        await asyncio.sleep(leadership.remaining)


async def _end(task: "asyncio.Future[Any]") -> None:
    """Cancel and wait. What it raises is its owner's to read."""
    task.cancel()
    await asyncio.wait((task,))


def _mark(now: datetime) -> str:
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _text(error: Exception) -> str:
    return str(error) or "no answer in time"
