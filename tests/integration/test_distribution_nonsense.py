"""What the operator does for one that talks nonsense, or comes back at once however often it is sent away: counted.

What cannot be counted here is what a handshake costs; how many there may be is `test_distribution_crowds`' subject.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
import structlog.testing

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.distribution.admission import RUSH
from supervisor_middleware.distribution.complaints import PACE
from supervisor_middleware.distribution.discovery import REPORTS_AN_OFFER
from supervisor_middleware.distribution.ledger import State
from supervisor_middleware.distribution.pacing import Pace
from supervisor_middleware.distribution.streams import REPORTS
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.drills.babbler import WORD, nonsense
from tests.integration.distributing import (
    Operator,
    Supervisor,
    a_channel,
    a_running_supervisor,
    a_sealed,
    an_operator,
    credentials_of,
    watch,
)
from tests.waiting import eventually

GENERATIONS: Final = [a_sealed(f"g{n}") for n in range(6)]
ATTEMPTS: Final = 60
_HELLO: Final = 1
_LAST_STRAW: Final = 1
"""The report that is one too many is read, too."""


@dataclass(slots=True)
class Taken:
    """What was read of one stream, over which time, and how the operator ended it."""

    began: float
    ended: float = 0.0
    reports: int = 0
    code: object = None


@dataclass
class Ears(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # a generic in the stubs alone
    """Every stream that anybody begins, and whatever the operator reads of it."""

    streams: dict[str, list[Taken]] = field(default_factory=dict)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        if not handler.request_streaming:
            return handler

        async def counted(reports: AsyncIterator[bytes], context: Any) -> None:
            clock = asyncio.get_running_loop().time
            taken = Taken(began=clock())
            name = str(context.auth_context()["x509_subject_alternative_name"][0], "ascii")
            self.streams.setdefault(name.rpartition("/")[2], []).append(taken)

            async def read() -> AsyncIterator[bytes]:
                async for report in reports:
                    taken.reports += 1
                    yield report

            try:
                await handler.stream_stream(read(), context)
            finally:
                taken.ended, taken.code = clock(), context.code()

        return grpc.stream_stream_rpc_method_handler(counted)


def allowed(pace: Pace, taken: Taken | float) -> float:
    """By a pace in the time that something took."""
    seconds = taken.ended - taken.began if isinstance(taken, Taken) else taken
    return pace.burst + pace.rate * seconds


async def is_told(operator: Operator, other: Supervisor, number: int) -> None:
    """A change for both is made, and the one that behaves runs it."""
    sealed = GENERATIONS[number]
    await operator.publish({"uid-liar": sealed, "uid-other": sealed})
    assert (await other.offer()).digest == sealed.digest
    await other.runs(sealed.digest)
    await eventually(lambda: operator.discovery.view("uid-other", digest=sealed.digest).state is State.ACTIVE)


def series(operator: Operator) -> set[str]:
    """Of all metrics there are, by name and labels."""
    lines = operator.metrics.render().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def babbles(operator: Operator, draw: random.Random) -> None:
    """One stream, filled until the operator ends it, or it is clear that it does not."""
    known = [sealed.digest for sealed in GENERATIONS]
    async with a_channel(operator.port, credentials_of("liar")) as channel:
        supervisor = Supervisor(watch(channel))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await supervisor.hello(active_digest=WORD)
            for report in itertools.islice(nonsense(draw, known), 20 * REPORTS.burst):
                await supervisor.say_bytes(report)
        supervisor.cut()


async def test_nonsense_at_full_speed_costs_what_its_allowance_says_and_others_are_told_of_every_change() -> None:
    ears, draw = Ears(), random.Random(1)
    clock = asyncio.get_running_loop().time
    async with an_operator(interceptors=(ears,)) as operator:
        await operator.publish({"uid-liar": GENERATIONS[0], "uid-other": GENERATIONS[0]})
        async with a_running_supervisor(operator, "other", active=GENERATIONS[0].digest) as other:
            await other.offer()
            known, changes, began = series(operator), operator.changes, clock()
            with structlog.testing.capture_logs() as logs:
                for number in range(1, len(GENERATIONS)):
                    flood = asyncio.gather(*(babbles(operator, draw) for _ in range(2)))
                    await is_told(operator, other, number)
                    await flood
                    for _ in range(ATTEMPTS // len(GENERATIONS)):
                        await babbles(operator, draw)
                await eventually(lambda: all(taken.ended for taken in ears.streams["liar"]))
            seconds = clock() - began

    streams = ears.streams["liar"]
    let_in = [taken for taken in streams if taken.reports]
    total = sum(taken.reports for taken in streams)
    assert len(let_in) < len(streams)
    assert len(let_in) <= allowed(RUSH.of_one, seconds) + 1
    assert max(taken.reports for taken in let_in) > REPORTS.burst
    for taken in let_in:
        offers = len(GENERATIONS)
        assert taken.reports <= _HELLO + allowed(REPORTS, taken) + REPORTS_AN_OFFER * offers + _LAST_STRAW
    # Nothing grows beyond what was read: neither what the control plane looks at again, nor what people are told.
    behaved = 2 * len(GENERATIONS)
    assert operator.changes - changes <= total + 2 * len(let_in) + behaved
    noisy = [entry for entry in logs if entry["event"] == "a supervisor reports too much"]
    rejected = [entry for entry in logs if entry["event"] == "a supervisor rejected a generation"]
    assert 0 < len(noisy) <= min(len(let_in), allowed(PACE, seconds))
    assert len(rejected) <= len(GENERATIONS)
    assert len(logs) == len(noisy) + len(rejected)
    assert len(operator.audited) == len(rejected)
    assert all(isinstance(e, Changed) and e.kind is ChangeKind.GENERATION_REJECTED for e in operator.audited)
    reasons = {name.removeprefix("REJECTION_REASON_").lower() for name, _ in pb.RejectionReason.items()}
    new = {line.partition("{")[2] for line in series(operator) - known}
    assert new <= {f'reason="{reason}"}}' for reason in reasons}
    assert not any(WORD in str(entry) for entry in (*logs, *operator.audited))


async def test_one_that_does_not_stay_away_is_let_in_so_often_and_others_are_told_of_every_change() -> None:
    ears = Ears()
    clock = asyncio.get_running_loop().time
    async with an_operator(interceptors=(ears,)) as operator:
        await operator.publish({"uid-liar": GENERATIONS[0], "uid-other": GENERATIONS[0]})
        async with (
            a_running_supervisor(operator, "other", active=GENERATIONS[0].digest) as other,
            a_channel(operator.port, credentials_of("liar")) as channel,
        ):
            await other.offer()
            changes, began = operator.changes, clock()
            with structlog.testing.capture_logs() as logs:
                for number, attempt in itertools.product(range(1, len(GENERATIONS)), range(ATTEMPTS)):
                    # On one connection, which costs nothing but the stream.
                    supervisor = Supervisor(watch(channel))
                    if attempt == ATTEMPTS // 2:
                        await is_told(operator, other, number)
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await supervisor.hello()
                        await supervisor.offer()
                    supervisor.cut()
                await eventually(lambda: all(taken.ended for taken in ears.streams["liar"]))
            seconds = clock() - began
    streams = ears.streams["liar"]
    let_in = [taken for taken in streams if taken.reports]
    assert len(let_in) <= allowed(RUSH.of_one, seconds) + 1
    # gRPC tells a client that writes just then of another end than the operator's.
    refused = [taken for taken in streams if taken.code is grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert len(refused) == len(streams) - len(let_in) > len(let_in)
    assert all(taken.reports == _HELLO for taken in let_in)
    # Each that was let in came and went; who behaved said two things of each generation. Nobody is told of the rest.
    assert operator.changes - changes <= 2 * len(let_in) + 2 * len(GENERATIONS)
    assert not logs
    assert not operator.audited
