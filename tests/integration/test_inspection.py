"""Who runs what, asked over real TLS, of supervisors on real streams; and who is told nothing."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
import pytest
import structlog

from supervisor_middleware.cli.status.asking import GaveWay, Inspector, inspecting
from supervisor_middleware.cli.status.reach import Reached
from supervisor_middleware.cli.status.supervisors import state_of, summary_of
from supervisor_middleware.distribution.inspection import (
    MAX_WATCHES,
    MAX_WATCHES_OF_ONE_VIEWER,
    WATCHES_BEGUN,
    Inspection,
    Pace,
)
from supervisor_middleware.distribution.tls import ClientCertificate, server_credentials
from supervisor_middleware.distribution.turns import Turns
from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError, Unavailable, Untrusted
from supervisor_middleware.model.generation import seal
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.supervisor.operator_channel import Busy
from supervisor_middleware.wire.gen import distribution_pb2 as distribution
from supervisor_middleware.wire.gen import inspection_pb2 as pb
from supervisor_middleware.wire.gen import inspection_pb2_grpc as rpc
from tests.builders import a_generation, a_stage
from tests.integration.distributing import (
    AUTHORITY,
    WAIT,
    Operator,
    a_running_supervisor,
    a_sealed,
    an_operator,
)
from tests.pki.builders import TRUST_DOMAIN
from tests.waiting import eventually

ONE, TWO, THREE = a_sealed("one"), a_sealed("two"), a_sealed("three")
ADMIN, TENANT, SPY = "admin-token", "tenant-token", "spy-token"
QUICK: Final = Pace(told=timedelta(milliseconds=10))


class FakeAccess:
    """Who may see which namespaces; can be away, or broken."""

    def __init__(self) -> None:
        self.rights = {ADMIN: {"", "team-a", "team-b"}, TENANT: {"team-a"}, SPY: set[str]()}
        self.error: Exception | None = None
        self.asked = 0
        self.gate: asyncio.Event | None = None

    async def viewer(self, token: str, *, namespace: str) -> str | None:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if token not in self.rights:
            raise Untrusted("no such token")
        return token if namespace in self.rights[token] else None


class Inspected:
    """An operator, whom it asks, and the sandboxes there are."""

    def __init__(self, operator: Operator, access: FakeAccess) -> None:
        self.operator, self.access = operator, access
        self.sandboxes: list[Sandbox] = []
        self.port = 0
        self.inspection: Any = None

    async def publish(self, **generations: Any) -> None:
        """Of sandboxes in team-a, by name."""
        self.sandboxes = [
            Sandbox(namespace="team-a", name=name, uid=f"uid-{name}", pod=f"{name}-0") for name in generations
        ]
        await self.operator.publish({f"uid-{name}": sealed for name, sealed in generations.items()})

    @asynccontextmanager
    async def inspector(self, token: str = ADMIN) -> AsyncIterator[Inspector]:
        reached = Reached(
            address=f"127.0.0.1:{self.port}",
            roots_pem=AUTHORITY.certificate_pem,
            trust_domain=TRUST_DOMAIN,
            token=token,
        )
        async with inspecting(reached) as inspector:
            yield inspector

    async def list(self, token: str = ADMIN, **wanted: Any) -> pb.SupervisorList:
        async with self.inspector(token) as inspector:
            return await inspector.everything(pb.Filter(**wanted))

    async def until(self, is_so: Callable[[pb.Supervisor], bool]) -> pb.Supervisor:
        """The only supervisor, once something holds of it."""
        async with asyncio.timeout(WAIT):
            while not is_so(found := (await self.list()).supervisors[0]):  # noqa: ASYNC110 - it is asked anew
                await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def inspected(*, pace: Pace = QUICK) -> AsyncIterator[Inspected]:
    async with an_operator() as operator:
        world = Inspected(operator, FakeAccess())
        world.inspection = Inspection(
            access=world.access,
            standings=operator.discovery,
            sandboxes=lambda: world.sandboxes,
            trust_bundle=lambda: operator.bundle,
            now=lambda: operator.now,
            leads=lambda: operator.is_leading,
            pace=pace,
        )
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        rpc.add_InspectionServicer_to_server(world.inspection, server)
        tls = server_credentials(lambda: operator.current, client_certificate=ClientCertificate.NOT_ASKED)
        world.port = server.add_secure_port("127.0.0.1:0", tls)
        await server.start()
        try:
            yield world
        finally:
            await server.stop(None)


async def watching(inspector: Inspector, **wanted: Any) -> AsyncGenerator[pb.SupervisorList]:
    """A watch that was told what there is."""
    changes = inspector.changes(pb.Filter(**wanted))
    await asyncio.wait_for(anext(changes), WAIT)
    return changes


def seen(supervisor: pb.Supervisor) -> str:
    return state_of(supervisor)


# ------------------------------------------------------------------------------------------------------ who runs what


async def test_a_supervisor_is_followed_from_its_first_stream_to_its_refusal() -> None:
    async with inspected() as world:
        await world.publish(a=ONE)
        (absent,) = (await world.list()).supervisors
        assert (seen(absent), absent.pod, absent.desired.digest) == ("NotConnected", "a-0", ONE.digest)
        async with a_running_supervisor(world.operator, "a") as supervisor:
            offered = await world.until(lambda s: seen(s) == "Offered")
            assert (offered.version, offered.reconnects, offered.active_digest) == ("1.0.0", 0, "")
            assert offered.trust_bundle == pb.TRUST_BUNDLE_STATE_CURRENT
            assert offered.certificate_expires_at.seconds > 0
            await supervisor.offer()
            await supervisor.say(accepted=distribution.Accepted(digest=ONE.digest))
            assert (await world.until(lambda s: seen(s) == "Prepared")).prepared_digest == ONE.digest
            await supervisor.say(active=distribution.Active(digest=ONE.digest))
            assert (await world.until(lambda s: seen(s) == "Active")).active_digest == ONE.digest
            await world.publish(a=TWO)
            await supervisor.offer()
            down = distribution.ServiceStatus(name="acme", state=distribution.SERVICE_STATE_INCAPABLE)
            await supervisor.say(not_ready=distribution.NotReady(digest=TWO.digest, services=[down]))
            waiting = await world.until(lambda s: seen(s) == "Waiting")
            assert (waiting.desired.digest, waiting.active_digest) == (TWO.digest, ONE.digest)
            assert list(waiting.services) == [down]
            await world.publish(a=THREE)
            await supervisor.offer()
            reasons = [distribution.REJECTION_REASON_UNSUPPORTED]
            await supervisor.say(rejected=distribution.Rejected(digest=THREE.digest, reasons=reasons))
            rejected = await world.until(lambda s: seen(s) == "Rejected")
            assert list(rejected.rejection_reasons) == reasons
            assert rejected.active_digest == ONE.digest
        left = await world.until(lambda s: seen(s) == "NotConnected")
        assert left.HasField("since")
        async with a_running_supervisor(world.operator, "a", active=THREE.digest):
            assert (await world.until(lambda s: seen(s) == "Active")).reconnects == 1


def _misses(service: distribution.ServiceStatus, supervisor: pb.Supervisor) -> bool:
    return list(supervisor.services) == [service]


async def test_why_a_service_is_not_used_reaches_whoever_asks() -> None:
    async with inspected() as world:
        await world.publish(a=ONE)
        async with a_running_supervisor(world.operator, "a") as supervisor:
            await supervisor.offer()
            for state in ("REFUSING", "INCAPABLE", "UNREACHABLE"):
                missing = distribution.ServiceStatus(
                    name="acme", state=distribution.ServiceState.Value(f"SERVICE_STATE_{state}")
                )
                await supervisor.say(not_ready=distribution.NotReady(digest=ONE.digest, services=[missing]))
                await world.until(partial(_misses, missing))


async def test_an_older_trust_bundle_is_seen() -> None:
    async with inspected() as world:
        await world.publish(a=ONE)
        async with a_running_supervisor(world.operator, "a"):
            await world.until(lambda s: s.trust_bundle == pb.TRUST_BUNDLE_STATE_CURRENT)
            world.operator.bundle += AUTHORITY.issue_server(
                dns_names=("x.example",), now=world.operator.now
            ).certificate_chain_pem
            await world.until(lambda s: s.trust_bundle == pb.TRUST_BUNDLE_STATE_OUTDATED)


async def test_totals_are_of_the_scope_and_rows_of_the_states_asked_for() -> None:
    async with inspected() as world, AsyncExitStack() as stack:
        await world.publish(a=ONE, b=ONE, c=ONE)
        for name in ("a", "b"):
            await stack.enter_async_context(a_running_supervisor(world.operator, name, active=ONE.digest))
        async with asyncio.timeout(WAIT):
            while (answer := await world.list()).totals.connected < 2:  # noqa: ASYNC110 - it is asked anew
                await asyncio.sleep(0.01)
        assert summary_of(answer.totals) == "2/3 on desired, 1 NotConnected"
        absent = await world.list(namespace="team-a", states=[pb.SUPERVISOR_STATE_NOT_CONNECTED])
        assert [s.sandbox for s in absent.supervisors] == ["c"]
        assert absent.totals == answer.totals
        one = await world.list(namespace="team-a", sandbox="a")
        assert (one.totals.sandboxes, [s.sandbox for s in one.supervisors]) == (1, ["a"])


async def test_thousands_are_told_page_by_page() -> None:
    async with inspected() as world:
        await world.publish(**{f"s{i:04}": ONE for i in range(4500)})
        answer = await world.list()
        assert [s.sandbox for s in answer.supervisors] == [f"s{i:04}" for i in range(4500)]
        assert (answer.remaining, answer.totals.sandboxes) == (0, 4500)


async def test_no_content_is_told() -> None:
    secret = seal(a_generation(a_stage("key-of-a-stage", config={"pattern": "s3cret"}, include=("bank.example",))))
    async with inspected() as world:
        await world.publish(a=secret)
        async with a_running_supervisor(world.operator, "a") as supervisor:
            await supervisor.offer()
            await world.until(lambda s: seen(s) == "Offered")
            told = (await world.list()).SerializeToString()
        for content in (b"s3cret", b"pattern", b"bank.example", b"key-of-a-stage", b"redactor"):
            assert content not in told
            assert content in secret.payload


# --------------------------------------------------------------------------------------------------------------- live


async def test_a_watch_tells_what_is_and_then_each_change_whole() -> None:
    async with inspected() as world, world.inspector() as inspector:
        await world.publish(a=ONE, b=ONE)
        changes = inspector.changes(pb.Filter())
        first = await asyncio.wait_for(anext(changes), WAIT)
        assert [(s.sandbox, seen(s)) for s in first.supervisors] == [("a", "NotConnected"), ("b", "NotConnected")]
        async with a_running_supervisor(world.operator, "a", active=ONE.digest):
            second = await asyncio.wait_for(anext(changes), WAIT)
            # Those that do not run what they should stand first.
            assert [(s.sandbox, seen(s)) for s in second.supervisors] == [("b", "NotConnected"), ("a", "Active")]
        third = await asyncio.wait_for(anext(changes), WAIT)
        assert third.totals.connected == 0
        await world.publish(a=ONE)
        fourth = await asyncio.wait_for(anext(changes), WAIT)
        assert [s.sandbox for s in fourth.supervisors] == ["a"]


async def test_a_pass_that_changes_nothing_is_no_news() -> None:
    async with inspected() as world, world.inspector() as inspector:
        await world.publish(a=ONE)
        changes = inspector.changes(pb.Filter())
        await asyncio.wait_for(anext(changes), WAIT)
        for _ in range(5):
            await world.operator.discovery.publish({})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(changes), 0.2)


async def test_many_changes_are_told_at_the_pace_of_a_watch() -> None:
    async with inspected(pace=Pace(told=timedelta(milliseconds=200))) as world, world.inspector() as inspector:
        await world.publish(a=ONE)
        changes = inspector.changes(pb.Filter())
        await asyncio.wait_for(anext(changes), WAIT)
        for sealed in (TWO, THREE, ONE, TWO):
            await world.publish(a=sealed)
        told = await asyncio.wait_for(anext(changes), WAIT)
        assert told.supervisors[0].desired.digest == TWO.digest


async def test_a_watch_ends_soon_after_the_right_to_it() -> None:
    pace = Pace(told=timedelta(milliseconds=10), asked=timedelta(milliseconds=50))
    async with inspected(pace=pace) as world, world.inspector(TENANT) as inspector:
        await world.publish(a=ONE)
        changes = inspector.changes(pb.Filter(namespace="team-a"))
        await asyncio.wait_for(anext(changes), WAIT)
        world.access.rights[TENANT] = set()
        with pytest.raises(Untrusted, match=r"PERMISSION_DENIED: .*may not list"):
            await asyncio.wait_for(anext(changes), WAIT)


async def test_a_watch_ends_with_the_leadership() -> None:
    async with inspected() as world, world.inspector() as inspector:
        changes = inspector.changes(pb.Filter())
        await asyncio.wait_for(anext(changes), WAIT)
        world.operator.is_leading = False
        with pytest.raises(Unavailable, match="does not lead"):
            await asyncio.wait_for(anext(changes), WAIT)
        with pytest.raises(Unavailable, match="does not lead"):
            await inspector.everything(pb.Filter())


async def test_a_viewers_newest_watch_takes_the_place_of_its_oldest() -> None:
    async with inspected() as world, world.inspector() as inspector, world.inspector(TENANT) as another:
        theirs = await watching(another, namespace="team-a")
        oldest, *others = [await watching(inspector) for _ in range(MAX_WATCHES_OF_ONE_VIEWER)]
        newest = await watching(inspector)
        with pytest.raises(GaveWay, match=r"this watch is over: a newer one of the same viewer took its place"):
            await asyncio.wait_for(anext(oldest), WAIT)
        await world.publish(a=ONE)
        for watch in (theirs, *others, newest):
            assert (await asyncio.wait_for(anext(watch), WAIT)).totals.sandboxes == 1


async def test_viewers_of_one_namespace_cannot_take_the_places_of_others_however_many_they_are() -> None:
    async with inspected() as world, AsyncExitStack() as stack:
        for n in range(MAX_WATCHES):
            world.access.rights[f"tenant-{n}"] = {"team-a"}
        inspectors = [await stack.enter_async_context(world.inspector(t)) for t in world.access.rights if t != SPY]
        admin, _, *tenants = inspectors
        crowd = [await watching(tenant, namespace="team-a") for tenant in tenants]
        mine = [await watching(admin), await watching(admin)]
        for watch in crowd[:2]:
            with pytest.raises(GaveWay, match="its namespace had the most"):
                await asyncio.wait_for(anext(watch), WAIT)
        # Whoever comes now takes it from its own.
        more = await watching(tenants[0], namespace="team-a")
        await world.publish(a=ONE)
        for watch in (*mine, *crowd[3:], more):
            assert (await asyncio.wait_for(anext(watch), WAIT)).totals.sandboxes == 1


async def test_a_viewer_that_begins_watches_all_the_time_is_told_when_to_come_again() -> None:
    async with inspected() as world, world.inspector() as inspector, world.inspector(TENANT) as another:
        for _ in range(WATCHES_BEGUN.burst):
            await (await watching(inspector)).aclose()
        with pytest.raises(Busy, match=r"RESOURCE_EXHAUSTED: this viewer began too many watches; try again in \d s"):
            await watching(inspector)
        await watching(another, namespace="team-a")


async def test_a_watch_that_takes_nothing_is_cut_off() -> None:
    pace = Pace(told=timedelta(milliseconds=10), taken=timedelta(milliseconds=100))
    async with inspected(pace=pace) as world, world.inspector() as inspector:
        world.sandboxes = [Sandbox(namespace="team-a", name=f"s{i:0100}", uid=f"uid-{i}") for i in range(2000)]
        stub: Any = inspector._stub
        bearer = (("authorization", f"Bearer {ADMIN}"),)
        call = stub.WatchSupervisors(pb.WatchSupervisorsRequest(limit=2000), metadata=bearer)
        await eventually(lambda: len(world.inspection._watches._taken) == 1)
        await eventually(lambda: not world.inspection._watches._taken)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_crowd_of_questions_is_told_when_to_come_again_and_others_are_served() -> None:
    gate = asyncio.Event()
    async with inspected() as world, AsyncExitStack() as stack:
        world.inspection._turns = Turns(at_work=1, waiting=1)
        world.access.gate = gate
        inspectors = [await stack.enter_async_context(world.inspector()) for _ in range(3)]
        asked = [asyncio.ensure_future(inspector.everything(pb.Filter())) for inspector in inspectors]
        await eventually(lambda: any(a.done() for a in asked))
        (refused,) = [a for a in asked if a.done()]
        with pytest.raises(Busy, match="RESOURCE_EXHAUSTED: too many wait; try again in 3 s"):
            await refused
        gate.set()
        for answer in asked:
            if answer is not refused:
                assert (await answer).totals.sandboxes == 0


# -------------------------------------------------------------------------------------------------- who is told nothing


async def refusal(world: Inspected, token: str, **wanted: Any) -> SupervisorMiddlewareError:
    with pytest.raises(SupervisorMiddlewareError) as caught:
        await world.list(token, **wanted)
    async with world.inspector(token) as inspector:
        with pytest.raises(SupervisorMiddlewareError) as again:
            await asyncio.wait_for(anext(inspector.changes(pb.Filter(**wanted))), WAIT)
    assert str(caught.value) == str(again.value)
    return caught.value


async def test_a_tenant_sees_its_namespace_alone() -> None:
    async with inspected() as world:
        await world.publish(a=ONE)
        world.sandboxes.append(Sandbox(namespace="team-b", name="b", uid="uid-b"))
        mine = await world.list(TENANT, namespace="team-a")
        assert ([s.sandbox for s in mine.supervisors], mine.totals.sandboxes) == (["a"], 1)
        assert (await world.list(ADMIN)).totals.sandboxes == 2
        for wanted in ({}, {"namespace": "team-b"}, {"namespace": "team-b", "sandbox": "b"}):
            error = await refusal(world, TENANT, **wanted)
            assert isinstance(error, Untrusted)
            assert "PERMISSION_DENIED" in str(error)
        assert "PERMISSION_DENIED" in str(await refusal(world, SPY, namespace="team-a"))


@pytest.mark.parametrize("token", ["forged", "x" * 20_000])
async def test_a_token_that_proves_nothing_is_told_nothing_and_logged_nowhere(token: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with inspected() as world:
            error = await refusal(world, token, namespace="team-a")
    assert isinstance(error, Untrusted | Unavailable)
    assert token not in str(error) + str(logs)


async def test_without_a_token_nobody_is_asked() -> None:
    async with inspected() as world:
        for token in ("", " "):
            assert "UNAUTHENTICATED" in str(await refusal(world, token))
        assert world.access.asked == 0


@pytest.mark.parametrize("metadata", [(), (("authorization", "Basic YTpi"),), (("authorization", ADMIN),)])
async def test_only_a_bearer_token_is_one(metadata: Any) -> None:
    async with inspected() as world, world.inspector() as inspector:
        stub: Any = inspector._stub
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await stub.ListSupervisors(pb.ListSupervisorsRequest(), metadata=metadata, timeout=WAIT)
        twice = (("authorization", f"Bearer {ADMIN}"), ("authorization", f"Bearer {SPY}"))
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await stub.ListSupervisors(pb.ListSupervisorsRequest(), metadata=twice, timeout=WAIT)
        lower = (("authorization", f"bearer {ADMIN}"),)
        await stub.ListSupervisors(pb.ListSupervisorsRequest(), metadata=lower, timeout=WAIT)


@pytest.mark.parametrize(
    ("error", "code"),
    [(Unavailable("the API server is away"), "UNAVAILABLE"), (RuntimeError(f"quotes {ADMIN}"), "INTERNAL")],
)
async def test_what_cannot_be_checked_is_not_told(error: Exception, code: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with inspected() as world:
            world.access.error = error
            shown = str(await refusal(world, ADMIN))
    assert code in shown
    assert ADMIN not in shown + str(logs)


@pytest.mark.parametrize(
    "wanted", [{"namespace": "Team"}, {"sandbox": "a"}, {"namespace": "a", "sandbox": ".."}, {"states": [99]}]
)
async def test_a_question_that_makes_no_sense_is_refused(wanted: Any) -> None:
    async with inspected() as world:
        error = await refusal(world, ADMIN, **wanted)
        assert isinstance(error, InvalidInput)
        assert "filter." in str(error)
        assert world.access.asked == 0


async def test_a_page_token_of_nobody_is_refused() -> None:
    async with inspected() as world, world.inspector() as inspector:
        stub: Any = inspector._stub
        bearer = (("authorization", f"Bearer {ADMIN}"),)
        with pytest.raises(grpc.aio.AioRpcError, match="page_token"):
            await stub.ListSupervisors(pb.ListSupervisorsRequest(page_token="x"), metadata=bearer, timeout=WAIT)
