"""What one supervisor, or all of them at once, cannot do to the operator; and that every stream ends as it should."""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import grpc
import pytest
import structlog.testing

from supervisor_middleware.distribution.admission import Rush
from supervisor_middleware.distribution.ledger import State
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.distribution.outflow import Flow
from supervisor_middleware.distribution.pacing import Pace
from supervisor_middleware.distribution.watch import MAX_STREAMS, Patience
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as rpc
from tests.integration.distributing import (
    AUTHORITY,
    NOW,
    Operator,
    Supervisor,
    a_channel,
    a_running_supervisor,
    a_sealed,
    a_supervisor,
    an_operator,
    credentials_of,
    enroll,
    refusal,
    watch,
)
from tests.waiting import eventually

ONE, TWO, BIG = a_sealed("one"), a_sealed("two"), a_sealed("big", size=500_000)
NARROW = (("grpc.http2.bdp_probe", 0),)
IMPATIENT = Flow(patience=0.3, slowest=10**9)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def state_of(operator: Operator, name: str, digest: str) -> State:
    return operator.discovery.view(f"uid-{name}", digest=digest).state


# --------------------------------------------------------------------------------------------------------- slow readers


async def test_one_that_stops_reading_is_cut_off_and_gets_the_state_of_the_world_when_it_is_back() -> None:
    async with an_operator(flow=IMPATIENT) as operator:
        await operator.publish({"uid-a": BIG, "uid-b": BIG})
        async with (
            a_supervisor(operator, credentials_of("a"), options=NARROW) as slow,
            a_running_supervisor(operator, "b") as quick,
        ):
            await slow.hello()
            await quick.runs((await quick.offer()).digest)
            await eventually(lambda: not operator.discovery.view("uid-a", digest=BIG.digest).is_connected)
            # Nothing of it is left: not the call, not what was being written.
            await eventually(lambda: operator.watch._open_calls.keys() == {"uid-b"})
            assert await slow.end() is grpc.StatusCode.UNAVAILABLE
            await operator.publish({"uid-a": TWO, "uid-b": BIG})
            async with a_running_supervisor(operator, "a") as back:
                assert (await back.offer()).digest == TWO.digest
            assert state_of(operator, "b", BIG.digest) is State.ACTIVE
            await quick.hears_nothing()


async def test_slow_readers_of_something_large_hold_back_nobody_for_long() -> None:
    flow = Flow(at_once=len(BIG.payload), prompt=0.2, patience=30)
    names = [f"slow{n}" for n in range(4)]
    async with an_operator(flow=flow) as operator, AsyncExitStack() as stack:
        await operator.publish({f"uid-{n}": BIG for n in (*names, "b")})
        for name in names:
            slow = await stack.enter_async_context(a_supervisor(operator, credentials_of(name), options=NARROW))
            await slow.hello()
        await eventually(lambda: operator.discovery.states().get("offered") == len(names))
        async with a_running_supervisor(operator, "b") as quick:
            assert (await quick.offer()).digest == BIG.digest


# ------------------------------------------------------------------------------------------------------------------ age


async def test_an_old_stream_ends_well_and_another_one_is_served() -> None:
    async with an_operator(patience=Patience(age=seconds(0.4))) as operator:
        await operator.publish({"uid-a": ONE})
        began = time.monotonic()
        async with a_running_supervisor(operator, "a", active=ONE.digest) as old:
            assert await old.end() is grpc.StatusCode.OK
        assert time.monotonic() - began >= 0.3
        async with a_running_supervisor(operator, "a") as new:
            assert (await new.offer()).digest == ONE.digest


async def test_an_offer_under_way_is_not_cut_off_by_age() -> None:
    async with an_operator(patience=Patience(age=seconds(0.2), grace=seconds(30))) as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as old:
            await old.offer()
            await old.hears_nothing(0.4)
            await old.say(accepted=pb.Accepted(digest=ONE.digest))
            assert await old.end() is grpc.StatusCode.OK


async def test_an_offer_that_is_never_answered_keeps_a_stream_for_a_while_only() -> None:
    async with an_operator(patience=Patience(age=seconds(0.1), grace=seconds(0.2))) as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as old:
            await old.offer()
            assert await old.end() is grpc.StatusCode.OK


async def test_no_stream_outlives_its_certificate_and_none_begins_with_an_expired_one() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        client = credentials_of("a")
        operator.now = client.expires_at - seconds(0.2)
        async with a_supervisor(operator, client) as supervisor:
            await supervisor.hello(active_digest=ONE.digest)
            assert await supervisor.end() is grpc.StatusCode.OK
        operator.now = client.expires_at
        # TLS, which goes by the real time, still takes it: as it would on a connection that is older.
        assert await refusal(operator, client) is grpc.StatusCode.UNAUTHENTICATED
        assert client.expires_at > NOW


# ------------------------------------------------------------------------------------------------------------ admission


async def test_many_at_once_are_served_in_turn_and_the_rest_told_when_to_come() -> None:
    names = [f"s{n}" for n in range(12)]
    async with an_operator(rush=Rush(rate=2, burst=1, longest=0.6)) as operator, AsyncExitStack() as stack:
        await operator.publish({f"uid-{n}": ONE for n in names})
        came = [await stack.enter_async_context(a_supervisor(operator, credentials_of(n))) for n in names]
        await asyncio.gather(*(s.hello() for s in came))
        await eventually(lambda: operator.discovery.states().get("offered", 0) + sum(s.is_over for s in came) == 12)
        over = [s for s in came if s.is_over]
        assert 1 <= len(over) <= 10
        assert {await s.end() for s in over} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        pauses = [await s.pause() for s in over]
        assert all(p is not None and p >= 0.6 for p in pauses)
        for supervisor in came:
            if supervisor not in over:
                assert (await supervisor.offer()).digest == ONE.digest


async def test_one_that_comes_again_and_again_is_told_to_stay_away_and_others_are_not() -> None:
    rush = Rush(of_one=Pace(burst=3, rate=0.1))
    async with an_operator(rush=rush) as operator:
        await operator.publish({"uid-a": ONE, "uid-b": ONE})
        for _ in range(3):
            async with a_running_supervisor(operator, "a") as supervisor:
                await supervisor.offer()
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            assert await supervisor.end() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert 5 < (await supervisor.pause() or 0) <= 10
        async with a_running_supervisor(operator, "b") as other:
            await other.offer()


@pytest.mark.parametrize("is_known", [True, False])
async def test_who_says_nothing_or_has_no_sandbox_any_more_takes_nobodys_place(is_known: bool) -> None:  # noqa: FBT001
    names = [f"s{n}" for n in range(33)]
    patience = Patience(sandbox=seconds(30), hello=seconds(30))
    async with an_operator(patience=patience) as operator, AsyncExitStack() as stack:
        await operator.publish({f"uid-{n}": ONE for n in (*(names if is_known else ()), "b")})
        channels = [await stack.enter_async_context(a_channel(operator.port, credentials_of(n))) for n in names]
        calls = [watch(channel) for channel in channels for _ in range(MAX_STREAMS)]
        await eventually(lambda: operator.watch._open_calls.total() == len(calls))
        async with a_running_supervisor(operator, "b") as other:
            assert (await other.offer()).digest == ONE.digest


async def test_a_hundred_at_once_are_all_served() -> None:
    names = [f"s{n}" for n in range(100)]
    async with an_operator(patience=Patience()) as operator, AsyncExitStack() as stack:
        await operator.publish({f"uid-{n}": ONE for n in names})

        async def come(name: str) -> str:
            supervisor = await stack.enter_async_context(a_running_supervisor(operator, name))
            return (await supervisor.offer()).digest

        assert set(await asyncio.gather(*map(come, names))) == {ONE.digest}
        assert operator.discovery.encodings == 1


async def test_whoever_is_refused_again_and_again_does_not_fill_the_log() -> None:
    stranger = AUTHORITY.issue_operator(namespace="system", now=NOW)
    async with an_operator() as operator:
        with structlog.testing.capture_logs() as logs:
            async with a_channel(operator.port, stranger) as channel:
                for _ in range(60):
                    assert await watch(channel).code() is grpc.StatusCode.UNAUTHENTICATED
        told = [e for e in logs if e["event"] == "refused a supervisor"]
        assert 32 <= len(told) < 50


async def test_calls_that_are_begun_and_never_made_are_few() -> None:
    _, csr = new_key_and_csr()
    async with an_operator() as operator, a_channel(operator.enrollment_port, None) as channel:
        made: Any = rpc.EnrollmentStub(channel).Enroll
        begin: Any = channel.stream_stream
        # Of a call that has no message yet the server knows the name alone.
        calls = [begin("/supervisor_middleware.distribution.v1alpha1.Enrollment/Enroll")() for _ in range(300)]

        async def make() -> None:
            for _ in range(5):  # until the others have begun
                await made(pb.EnrollRequest(csr_pem=csr, token="token-a"), timeout=1)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await make()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # Others have connections of their own.
        assert (await enroll(operator, csr, "token-a")).certificate_chain_pem
        for call in calls:
            call.cancel()


# -------------------------------------------------------------------------------------------------------------- leaving


async def test_an_operator_that_leaves_ends_streams_one_by_one_and_says_nothing_more() -> None:
    names = [f"s{n}" for n in range(10)]
    ended = list[float]()
    async with an_operator() as operator, AsyncExitStack() as stack:
        await operator.publish({f"uid-{n}": ONE for n in names})
        served = [await stack.enter_async_context(a_running_supervisor(operator, n)) for n in names]
        for supervisor in served:
            await supervisor.offer()
        operator.discovery.leave_slowly(pace=1, at_most=3.0, random=lambda: 0.5)
        await operator.publish({f"uid-{n}": TWO for n in names})
        assert await refusal(operator, credentials_of("s1")) is grpc.StatusCode.UNAVAILABLE
        await served[-1].say(accepted=pb.Accepted(digest=ONE.digest))

        async def watch(supervisor: Supervisor) -> None:
            assert await supervisor.end() is grpc.StatusCode.UNAVAILABLE
            ended.append(time.monotonic())

        await asyncio.gather(*map(watch, served))
    assert max(ended) - min(ended) > 1
    assert operator.discovery.encodings == 1


async def test_a_resumed_operator_hears_nothing_and_says_nothing() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            before = operator.changes
            operator.is_leading = False
            await supervisor.runs(ONE.digest)
            await supervisor.hears_nothing()
            assert operator.changes == before
            assert state_of(operator, "a", ONE.digest) is State.OFFERED


# ------------------------------------------------------------------------------------------------------------ sandboxes


async def test_a_pod_of_another_name_than_its_certificate_loses_its_stream() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            renamed = Sandbox(namespace="team-a", name="other", uid="uid-a")
            await operator.discovery.publish({"uid-a": Assignment(sandbox=renamed, sealed=ONE)})
            assert await supervisor.end() is grpc.StatusCode.PERMISSION_DENIED
        async with a_running_supervisor(operator, "a") as supervisor:
            assert await supervisor.end() is grpc.StatusCode.PERMISSION_DENIED
        assert not operator.discovery.view("uid-a", digest=ONE.digest).is_connected


async def test_a_pod_that_takes_the_place_of_another_of_its_name_is_another_supervisor() -> None:
    async with an_operator() as operator:
        sandbox = Sandbox(namespace="team-a", name="a", uid="uid-a")
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as old:
            await old.offer()
            successor = Sandbox(namespace="team-a", name="a", uid="uid-new")
            await operator.discovery.publish({"uid-new": Assignment(sandbox=successor, sealed=TWO)})
            await old.hears_nothing()
            assert operator.discovery.view("uid-a", digest=ONE.digest).is_connected
            await operator.discovery.publish({sandbox.key: None})
            assert await old.end() is grpc.StatusCode.PERMISSION_DENIED
        assert await refusal(operator, credentials_of("a")) is grpc.StatusCode.PERMISSION_DENIED
