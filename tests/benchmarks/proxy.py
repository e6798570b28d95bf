"""A request through real Envoy and the supervisor: what a chain costs over the same proxy without one."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from supervisor_middleware.middleware.builtins import BUILTINS
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.supervisor.exchange import Outcome, Request
from supervisor_middleware.supervisor.runner import run_chain
from supervisor_middleware.supervisor.stages import BuiltinCaller
from tests.benchmarks.figures import percentile, show
from tests.fakes.ext_proc_runtime import EXAMPLE, FakeRuntime
from tests.integration.proxied import a_proxy
from tests.supervisor.builders import stage

REQUESTS = 400
BODY = b'{"prompt": "' + b"x" * 1000 + b'"}'


@dataclass
class BuiltinRuntime(FakeRuntime):
    """Serves a real chain of the built-in redactor."""

    def pin(self) -> AbstractContextManager["BuiltinRuntime"]:
        @contextmanager
        def pinned() -> Iterator["BuiltinRuntime"]:
            yield self

        return pinned()

    async def evaluate(self, stages: tuple[Stage, ...], request: Request) -> Outcome:
        caller = BuiltinCaller(BUILTINS["openshell/regex"])
        return await run_chain(stages, request, caller_of=lambda _: caller, clock=time.monotonic)


async def run() -> None:
    """Latency of one client's requests in turn: without a chain, with one stage, with five."""
    baseline = 0.0
    for name, count in (("no_chain", 0), ("one_builtin_stage", 1), ("five_builtin_stages", 5)):
        median, tail = await _measure(count)
        baseline = baseline or median
        show(f"request_{name}_p50", median * 1e3, "ms")
        show(f"request_{name}_p99", tail * 1e3, "ms")
        show(f"request_{name}_p50_over_no_chain", median / baseline, "ratio")


async def _measure(count: int) -> tuple[float, float]:
    stages = tuple(stage(f"s{i}", binding="openshell/regex", service=None) for i in range(count))
    head = f"POST /v1 HTTP/1.1\r\nhost: {EXAMPLE}\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
    latencies = []
    async with a_proxy(runtime=BuiltinRuntime(stages=stages)) as proxied, proxied.client() as client:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            await client.send(head + BODY)
            await client.response("POST")
            latencies.append(time.perf_counter() - began)
    return percentile(latencies, 0.5), percentile(latencies, 0.99)
