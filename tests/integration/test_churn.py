"""Generations are swapped without a pause under load: every request is judged whole, under one of them, or refused."""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from supervisor_middleware.model.generation import Generation, Rank, Service, seal
from supervisor_middleware.supervisor.activation import Candidate
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.connections import Pool
from supervisor_middleware.supervisor.describe import GrpcDescriber
from supervisor_middleware.supervisor.preparation import Preparer
from supervisor_middleware.supervisor.runtime import Evaluator, Runtime
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.fakes.churn import Churn, churning
from tests.fakes.echo_generations import AUTHORITY, SERVICE, a_service, marking
from tests.fakes.echo_service import EchoService, echo_binding, echo_manifest
from tests.fakes.operator_server import FakeOperator
from tests.fakes.supervisor_control import a_supervisor, prepare_folder
from tests.pki.builders import an_identity, supervisor_credentials
from tests.waiting import eventually

SWAPS: Final = 100


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[FakeOperator]:
    async with FakeOperator.serving(AUTHORITY, an_identity()) as running:
        prepare_folder(tmp_path, running)
        yield running


def a_generation(churn: Churn, mark: int, *services: Service) -> Generation:
    churn.expects(str(mark), frozenset(s.name for s in services))
    return marking(str(mark), *services)


async def echoes(stack: AsyncExitStack, count: int) -> list[EchoService]:
    return [
        await stack.enter_async_context(EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem))
        for _ in range(count)
    ]


async def test_no_request_is_judged_under_a_mixed_generation_or_none(tmp_path: Path, operator: FakeOperator) -> None:
    async with AsyncExitStack() as stack:
        services = [a_service(s.port, f"s{n}") for n, s in enumerate(await echoes(stack, 3))]
        supervisor = await stack.enter_async_context(a_supervisor(tmp_path, operator))
        async with churning(supervisor.runtime) as churn:
            await eventually(lambda: len(churn.seen) > 20)
            assert set(churn.errors) == {"supervisor_not_configured"}
            for mark in range(1, SWAPS + 1):
                # Not only other configs: services come and go, so policy and registry change as one.
                needed = [s for n, s in enumerate(services) if mark % 7 & (1 << n)] or services[:1]
                digest = await operator.offer(a_generation(churn, mark, *needed), sequence=mark)
                await operator.heard("active", digest)
            await eventually(lambda: churn.allowed and churn.allowed[-1].mark == SWAPS)
        assert churn.problems() == []
        assert set(churn.errors) == {"supervisor_not_configured"}
        assert len({s.mark for s in churn.allowed}) > SWAPS / 3
        await eventually(lambda: len(supervisor.pool.keys) == len(needed))


async def test_swaps_of_policy_alone_keep_the_connections(tmp_path: Path, operator: FakeOperator) -> None:
    async with AsyncExitStack() as stack:
        running = await echoes(stack, 2)
        services = [a_service(s.port, f"s{n}") for n, s in enumerate(running)]
        supervisor = await stack.enter_async_context(a_supervisor(tmp_path, operator))
        async with churning(supervisor.runtime) as churn:
            for mark in range(1, SWAPS + 1):
                # The last one has not been activated when the next comes: the newest wins.
                await operator.offer(a_generation(churn, mark, *services), sequence=mark)
                if mark % 3 == 0:
                    await operator.heard("active")
            await eventually(lambda: churn.allowed and churn.allowed[-1].mark == SWAPS)
        assert churn.problems() == []
        assert (supervisor.pool.opened, [s.described for s in running]) == (2, [1, 1])
        assert [len(s.peers) for s in running] == [1, 1]


async def test_channels_of_generations_that_are_gone_are_closed_and_so_are_their_sockets() -> None:
    """With each swap one service is needed no longer, and another one anew."""
    async with AsyncExitStack() as stack:
        services = [a_service(s.port, f"s{n}") for n, s in enumerate(await echoes(stack, 3))]
        pool, runtime = Pool(), Runtime()
        stack.push_async_callback(pool.close)
        stack.callback(runtime.stop)
        evaluator = Evaluator(builtins={}, clock=time.monotonic)
        preparer = Preparer(pool=pool, describer=GrpcDescriber(), evaluator=evaluator)
        credentials = supervisor_credentials(AUTHORITY, now=datetime.now(UTC))
        most = 0
        for n in range(3 * SWAPS):
            candidate = Candidate(sealed=seal(marking(str(n), services[0], services[1 + n % 2])), rank=Rank())
            prepared = await preparer.prepare(candidate, credentials=credentials, running=runtime.current)
            assert set(prepared.states().values()) == {ServiceState.READY}
            runtime.swap(prepared)
            most = max(most, open_sockets())
            if n == SWAPS // 10:
                early = most
        assert pool.opened == 3 * SWAPS + 1
        assert most <= early + 4
        await eventually(lambda: len(pool.keys) == 2)


def open_sockets() -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


async def test_services_that_go_and_come_back_let_nothing_past(tmp_path: Path, operator: FakeOperator) -> None:
    """Requests may be refused meanwhile; they are not let go on by half a chain."""
    async with AsyncExitStack() as stack:
        (steady,) = await echoes(stack, 1)
        supervisor = await stack.enter_async_context(a_supervisor(tmp_path, operator))
        async with churning(supervisor.runtime) as churn:
            for mark in range(1, 13):
                async with EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem) as fleeting:
                    both = (a_service(steady.port, "steady"), a_service(fleeting.port, "fleeting"))
                    digest = await operator.offer(a_generation(churn, mark, *both), sequence=mark)
                    await operator.heard("active", digest)
                    asked = len(churn.seen)
                    await eventually(lambda asked=asked: len(churn.seen) > asked + 20)  # type: ignore[misc]
            await eventually(lambda: churn.errors["middleware_failed"] > 0)
        assert churn.problems() == []
        assert set(churn.errors) <= {"supervisor_not_configured", "middleware_failed"}


async def test_a_service_that_is_upgraded_behind_its_address_never_makes_a_supervisor_stick(
    tmp_path: Path, operator: FakeOperator
) -> None:
    """It answers as the old version and as the new one by turns, as behind a load balancer in the middle of a rollout."""
    old, new = echo_manifest(), echo_manifest(echo_binding(), echo_binding("acme/more"))
    async with AsyncExitStack() as stack:
        (rolling,) = await echoes(stack, 1)
        supervisor = await stack.enter_async_context(a_supervisor(tmp_path, operator))
        async with churning(supervisor.runtime) as churn:
            known = a_service(rolling.port, "echo")
            await operator.heard("active", await operator.offer(a_generation(churn, 1, known)))
            more = a_service(rolling.port, "echo", needs=(*known.needs, echo_binding("acme/more")))
            digest = await operator.offer(a_generation(churn, 2, more), sequence=2)
            waiting = await operator.heard("not_ready", digest)
            assert [s.state for s in waiting.services] == [pb.SERVICE_STATE_INCAPABLE]
            rolling.by_turns = itertools.cycle([old, old, new])
            await operator.heard("active", digest)
            await eventually(lambda: churn.allowed[-1].mark == 2)
        assert churn.problems() == []
        assert set(churn.errors) <= {"supervisor_not_configured"}
        assert supervisor.pool.opened == 1


async def test_a_service_that_shrinks_while_another_is_waited_for_is_found_out(
    tmp_path: Path, operator: FakeOperator
) -> None:
    async with AsyncExitStack() as stack:
        steady, shrinking, late = await echoes(stack, 3)
        late.manifest = None
        supervisor = await stack.enter_async_context(a_supervisor(tmp_path, operator))
        async with churning(supervisor.runtime) as churn:
            first = a_service(steady.port, "steady")
            await operator.heard("active", await operator.offer(a_generation(churn, 1, first)))
            others = (a_service(shrinking.port, "shrinking"), a_service(late.port, "late"))
            digest = await operator.offer(a_generation(churn, 2, first, *others), sequence=2)
            await operator.heard("not_ready", digest)
            shrinking.manifest = echo_manifest(echo_binding(max_body_bytes=1))
            supervisor.clock.ahead += 60
            await eventually(lambda: shrinking.described > 1)
            late.manifest = echo_manifest()
            asked = shrinking.described
            await eventually(lambda: shrinking.described > asked + 2)
            assert supervisor.keeper.is_waiting
            assert churn.allowed[-1].mark == 1
            shrinking.manifest = echo_manifest()
            await operator.heard("active", digest)
            await eventually(lambda: churn.allowed[-1].mark == 2)
        assert churn.problems() == []
