"""Requests without a pause through the real ext_proc server, while generations are swapped beneath it.

    async with churning(runtime) as churn:
        ...                                 # swap; `churn.expects(mark, keys)` before a generation can be served
    assert churn.problems() == []

Every stage writes its generation's mark into a header named like the stage (`echo_generations.marking`), so an answer
tells under which generation each of its stages was asked. All stages are `FailClosed`. The rules:

1.  What is let go on carries the mark of every stage of one generation, and of no other.
2.  Nothing is let go on without one.
3.  No stage is bypassed.
4.  Who begins after another has ended is not judged under an older generation (marks are numbers that grow).
5.  Who is refused gets a reason of ours, not an error of gRPC's.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as rpc

from supervisor_middleware.audit.events import Bypassed, Event
from supervisor_middleware.supervisor.envoy_config import TcpAddress
from supervisor_middleware.supervisor.ext_proc import ExtProcServer, Processor, RequestIdentity
from supervisor_middleware.supervisor.runtime import Runtime
from tests.fakes.echo_generations import MARK
from tests.supervisor.ext_proc_caller import a_body, a_head, refusal

CLIENTS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request: when (by a counter of all beginnings and ends), what its stages wrote, or why it was refused."""

    began: int
    ended: int
    marks: tuple[tuple[str, str], ...] = ()
    error: str = ""

    @property
    def mark(self) -> int:
        """Of the generation it was let go on under."""
        return int(self.marks[0][1])


@dataclass(slots=True)
class Churn:
    """What was seen so far."""

    stub: rpc.ExternalProcessorStub
    seen: list[Seen] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    whole: dict[str, frozenset[str]] = field(default_factory=dict)
    moments: Iterator[int] = field(default_factory=itertools.count)
    is_over: bool = False

    def expects(self, mark: str, keys: frozenset[str]) -> None:
        """A generation marked `mark` has stages with these keys."""
        self.whole[mark] = keys

    @property
    def allowed(self) -> list[Seen]:
        """Those that were let go on."""
        return [s for s in self.seen if not s.error]

    @property
    def errors(self) -> Counter[str]:
        """Why others were not."""
        return Counter(s.error for s in self.seen if s.error)

    def problems(self) -> list[str]:
        """Every breach of a rule."""
        return [*self._mixed(), *self._bypassed(), *self._out_of_order()]

    def _mixed(self) -> Iterator[str]:
        for seen in self.allowed:
            marks, keys = {mark for _, mark in seen.marks}, [key for key, _ in seen.marks]
            if len(marks) != 1 or frozenset(keys) != self.whole.get(min(marks)) or len(keys) != len(set(keys)):
                yield f"let go on marked {seen.marks}"

    def _bypassed(self) -> Iterator[str]:
        yield from (f"bypassed: {event}" for event in self.events if isinstance(event, Bypassed))

    def _out_of_order(self) -> Iterator[str]:
        ends = sorted(self.allowed, key=lambda s: s.ended)
        newest, done = -1, 0
        for seen in sorted(self.allowed, key=lambda s: s.began):
            while ends[done].ended < seen.began:
                newest = max(newest, ends[done].mark)
                done += 1
            if seen.mark < newest:
                yield f"judged under {seen.mark} after {newest} was served"

    async def client(self, *, has_body: bool) -> None:
        """Ask again and again."""
        while not self.is_over:
            self.seen.append(await self.ask(has_body=has_body))

    async def ask(self, *, has_body: bool = False) -> Seen:
        """One request. A body is sent only when it is asked for: a swap may come between it and its head."""
        began = next(self.moments)
        call = self.stub.Process()
        await call.write(a_head(end=not has_body))
        answer = await call.read()
        if has_body and answer.WhichOneof("response") == "request_headers":
            await call.write(a_body())
            answer = await call.read()
        await call.done_writing()
        error = "" if answer.WhichOneof("response") != "immediate_response" else str(refusal(answer)[1]["error"])
        return Seen(began=began, ended=next(self.moments), marks=() if error else tuple(_marks(answer)), error=error)


def _marks(answer: Any) -> Iterator[tuple[str, str]]:
    message: pb.ProcessingResponse = answer
    response = getattr(message, message.WhichOneof("response")).response
    for option in response.header_mutation.set_headers:
        if option.header.key.startswith(MARK):
            yield option.header.key.removeprefix(MARK), option.header.raw_value.decode()


@asynccontextmanager
async def churning(runtime: Runtime) -> AsyncIterator[Churn]:
    """Clients that ask without a pause, until the end of the block."""
    events, numbers = list[Event](), itertools.count()
    processor = Processor(
        runtime,
        identity=RequestIdentity(sandbox_id="team/agent", new_request_id=lambda: f"request-{next(numbers)}"),
        record=events.extend,
    )
    server = ExtProcServer(processor, address=TcpAddress("127.0.0.1", 0))
    address = await server.start()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel, asyncio.TaskGroup() as clients:
            churn = Churn(rpc.ExternalProcessorStub(channel), events=events)
            for n in range(CLIENTS):
                clients.create_task(churn.client(has_body=n % 2 == 1))
            try:
                yield churn
            finally:
                churn.is_over = True
    finally:
        await server.stop(timedelta(seconds=1))
