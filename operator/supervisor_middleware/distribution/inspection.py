"""`Inspection`: who runs what, for people and their tools. On the enrolment port: who asks has no certificate.

A bearer token says who asks, and somebody else (`Access`) what that one may see; a namespace at a time, or all. A
watch is told of changes at most once a second, and is asked again every minute whether it still may. One viewer, and
one namespace's viewers, leave others their watches.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

import grpc
import grpc.aio

from supervisor_middleware.distribution.attendance import Standing
from supervisor_middleware.distribution.complaints import Complaints
from supervisor_middleware.distribution.connections import cut
from supervisor_middleware.distribution.endings import abort, refusal
from supervisor_middleware.distribution.issuance import answering
from supervisor_middleware.distribution.overview import (
    Filter,
    Row,
    after,
    filter_of,
    in_states,
    page_of,
    rows_of,
    token_of,
    totals_of,
    troubled_first,
)
from supervisor_middleware.distribution.pacing import Allowances
from supervisor_middleware.distribution.pacing import Pace as Rate
from supervisor_middleware.distribution.seats import Seat, Seats
from supervisor_middleware.distribution.shares import Owner
from supervisor_middleware.distribution.streams import NOT_LEADING, End
from supervisor_middleware.distribution.turns import TooMany, Turns, caller_of
from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.model.sandbox import GROUP, Sandbox
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.wire.gen import inspection_pb2 as pb
from supervisor_middleware.wire.gen import inspection_pb2_grpc as pb_grpc

AUDIENCE: Final = "supervisor-middleware-status"
"""What tokens made for this are meant for; no Pod's token that enrols is."""
MAX_WATCHES: Final = 64
MAX_WATCHES_OF_ONE_VIEWER: Final = 16
WATCHES_BEGUN: Final = Rate(burst=32, rate=0.5)
"""By one viewer."""
MAX_TOKEN: Final = 16_384

RESOURCE: Final = "sandboxpolicies/supervisors"
"""What roles grant `list` of; no object stands behind it."""

_AT_ONCE: Final = 50
"""Rows that are made without letting anybody else run."""
_UNPROVEN: Final = "the token proves nothing: it expired, is not known, or is not meant for this"
_PREFIX: Final = "bearer "
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Access(Protocol):
    """Says what the bearer of a token may see."""

    async def viewer(self, token: str, *, namespace: str) -> str | None:
        """Who the bearer is, if it may see the supervisors of `namespace`, or of all if it is empty; None if not.

        Raises:
            Untrusted: the token proves nothing; the reason is for our log.
            Unavailable: it could not be checked now.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a watch is told of changes, and asked whether it still may; and how long it takes one answer."""

    told: timedelta = timedelta(seconds=1)
    asked: timedelta = timedelta(minutes=1)
    taken: timedelta = timedelta(seconds=30)


class Standings(Protocol):
    """Who knows how supervisors stand."""

    @property
    def moves(self) -> int:
        """Another number whenever somebody may stand elsewhere."""

    def standing(self, key: str) -> Standing:
        """All that is known of one supervisor."""


class Inspection(pb_grpc.InspectionServicer):
    """The servicer."""

    def __init__(
        self,
        *,
        access: Access,
        standings: Standings,
        sandboxes: Callable[[], Iterable[Sandbox]],
        trust_bundle: Callable[[], bytes],
        now: Callable[[], datetime],
        leads: Callable[[], bool] = lambda: True,
        pace: Pace = Pace(),
    ) -> None:
        """`sandboxes` are those there are now; nobody is told anything unless `leads`."""
        self._access, self._standings, self._sandboxes = access, standings, sandboxes
        self._trust_bundle, self._now, self._leads, self._pace = trust_bundle, now, leads, pace
        self._turns, self._complaints = Turns(), Complaints()
        self._watches, self._begun = Seats(MAX_WATCHES, of_one=MAX_WATCHES_OF_ONE_VIEWER), Allowances(WATCHES_BEGUN)

    async def ListSupervisors(  # noqa: N802 - gRPC's spelling
        self, request: pb.ListSupervisorsRequest, context: _Context
    ) -> pb.SupervisorList:
        """One page."""
        wanted, _ = await self._admit(request.filter, context)
        rows = self._rows(wanted)
        try:
            rest = after(in_states(rows, wanted), request.page_token)
        except InvalidInput as error:
            await abort(context, End(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        answer = await self._answer(rows, rest, limit=request.limit)
        if answer.remaining:
            answer.next_page_token = token_of(rest[len(answer.supervisors) - 1].place)
        return answer

    async def WatchSupervisors(  # noqa: N802 - gRPC's spelling
        self, request: pb.WatchSupervisorsRequest, context: _Context
    ) -> AsyncIterator[pb.SupervisorList]:
        """All there is now, and again when something changed."""
        wanted, viewer = await self._admit(request.filter, context)
        loop, taken = asyncio.get_running_loop(), self._pace.taken.total_seconds()
        try:
            self._begin(viewer)
            with self._watches.seat(Owner(group=wanted.namespace, member=viewer)) as seat:
                async for rows in self._changes(wanted, seat, context):
                    answer = await self._answer(rows, troubled_first(in_states(rows, wanted)), limit=request.limit)
                    # A write cannot be cancelled, and an answer that nobody takes is kept.
                    timer = loop.call_later(taken, loop.run_in_executor, None, cut, context.peer())
                    try:
                        yield answer
                    finally:
                        timer.cancel()
        except TooMany as error:
            await abort(context, refusal(error))

    def _begin(self, viewer: str) -> None:
        now = asyncio.get_running_loop().time()
        allowance = self._begun.of(viewer, now=now)
        if not allowance.take(now):
            raise TooMany("this viewer began too many watches", pause=allowance.until_next(now))

    async def _changes(self, wanted: Filter, seat: Seat, context: _Context) -> AsyncIterator[tuple[Row, ...]]:
        rows: tuple[Row, ...] | None = None
        clock = asyncio.get_running_loop().time
        seen, asked = -1, clock()
        while True:
            if clock() - asked >= self._pace.asked.total_seconds():
                await self._authorize(wanted, context)
                asked = clock()
            if seat.lost:
                await abort(context, End(grpc.StatusCode.ABORTED, f"this watch is over: {seat.lost}"))
            if not self._leads():
                await abort(context, NOT_LEADING)
            if (moves := self._standings.moves) != seen:
                seen, before, rows = moves, rows, self._rows(wanted)
                if rows != before:
                    yield rows
            await asyncio.sleep(self._pace.told.total_seconds())

    async def _admit(self, asked: pb.Filter, context: _Context) -> tuple[Filter, str]:
        """What is wanted, and by whom, who may have it."""
        if not self._leads():
            await abort(context, NOT_LEADING)
        try:
            wanted = filter_of(asked)
        except InvalidInput as error:
            await abort(context, End(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        return wanted, await self._authorize(wanted, context)

    async def _authorize(self, wanted: Filter, context: _Context) -> str:
        # Anybody may ask, and each question is two to the API server.
        async with (
            answering(context, what="an inspection", untrusted=_UNPROVEN, complaints=self._complaints),
            self._turns.turn(caller_of(context.peer())),
        ):
            viewer = await self._access.viewer(_token(context), namespace=wanted.namespace)
        if viewer is None:
            where = f"in namespace {wanted.namespace}" if wanted.namespace else "in all namespaces"
            details = f"the token's bearer may not list {RESOURCE}.{GROUP} {where}"
            await abort(context, End(grpc.StatusCode.PERMISSION_DENIED, details))
        return viewer

    def _rows(self, wanted: Filter) -> tuple[Row, ...]:
        return rows_of(self._sandboxes(), self._standings.standing, wanted=wanted)

    async def _answer(self, rows: Sequence[Row], shown: Sequence[Row], *, limit: int) -> pb.SupervisorList:
        """What `rows` say, of one moment; streams go on while it is made."""
        answer = pb.SupervisorList(totals=totals_of(rows))
        answer.taken_at.FromDatetime(self._now())
        page = page_of(shown, limit=limit, trust_bundle=bundle_digest(self._trust_bundle()))
        while some := tuple(islice(page, _AT_ONCE)):
            answer.supervisors.extend(some)
            await asyncio.sleep(0)
        answer.remaining = len(shown) - len(answer.supervisors)
        return answer


def _token(context: _Context) -> str:
    """The bearer's, as HTTP has it.

    Raises:
        Untrusted: there is none, more than one, or none that could be one.
    """
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    match found:
        case [str() as value] if value[: len(_PREFIX)].lower() == _PREFIX:
            token = value[len(_PREFIX) :].strip()
        case _:
            token = ""
    if not token or len(token) > MAX_TOKEN or not token.isascii():
        raise Untrusted("there is no bearer token")
    return token
