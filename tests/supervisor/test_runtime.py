"""Preparing, pinning and swapping, without a socket: channels are named, opened and closed on paper."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import grpc
import pytest

from supervisor_middleware.errors import Bug, InvalidInput, Unavailable, Untrusted
from supervisor_middleware.model.evaluation import Decision, Evaluation, OnError, Result
from supervisor_middleware.model.generation import Generation, Rank, Service, seal
from supervisor_middleware.model.manifest import Dialect, Manifest
from supervisor_middleware.model.registration import ClientAuthentication, Connection
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.supervisor.activation import Candidate
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.connections import Pool, open_service_channel
from supervisor_middleware.supervisor.describe import CallerRefused
from supervisor_middleware.supervisor.exchange import Allowed, Denied, Request, Whole
from supervisor_middleware.supervisor.preparation import ANSWER_LASTS, Preparer, is_settled
from supervisor_middleware.supervisor.runtime import Evaluator, Prepared, Runtime
from supervisor_middleware.wire.channels import dial_target
from tests.fakes.echo_service import echo_binding, echo_manifest
from tests.pki.builders import an_authority, supervisor_credentials
from tests.supervisor.builders import CONTEXT, stage, target

AUTHORITY: Final = an_authority(now=datetime.now(UTC))
OLD_CERTIFICATE: Final = supervisor_credentials(AUTHORITY, now=datetime.now(UTC))
NEW_CERTIFICATE: Final = supervisor_credentials(AUTHORITY, now=datetime.now(UTC))
REQUEST: Final = Request(context=CONTEXT, target=target(), headers=(), body=Whole(b""))


class PaperChannel:
    def __init__(self, credentials: Credentials | None) -> None:
        self.credentials = credentials
        self.is_closed = False
        self.state = grpc.ChannelConnectivity.READY

    def get_state(self, *, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.state

    def unary_unary(self, *_: object) -> Callable[..., Awaitable[bytes]]:
        async def call(*_: object, **__: object) -> bytes:
            raise AssertionError

        return call

    async def close(self, grace: float | None) -> None:
        self.is_closed = True


class PaperWorld:
    """A pool whose channels are paper, a describer that answers what a test says, and the preparer over both."""

    def __init__(self) -> None:
        self.channels: list[PaperChannel] = []
        self.manifests: dict[str, Manifest | Exception] = {}
        self.described: list[str] = []
        self.never = asyncio.Event()
        self.now = 0.0
        self.refused: list[Credentials] = []
        self.pool = Pool(self._open)
        self.preparer = Preparer(
            pool=self.pool,
            describer=self,
            evaluator=Evaluator(builtins={"openshell/yes": Yes()}, clock=lambda: self.now),
        )

    def _open(self, _: Connection, credentials: Credentials | None) -> Any:
        self.channels.append(PaperChannel(credentials))
        return self.channels[-1]

    async def describe(self, channel: Any, *, service: Service) -> Manifest:
        self.described.append(service.name)
        if service.name == "silent":
            await self.never.wait()
        if channel.credentials in self.refused:
            raise Unavailable("handshake")
        answer = self.manifests.get(service.name, echo_manifest())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def prepared(
        self,
        generation: Generation,
        running: Prepared | None = None,
        *,
        attempt: Prepared | None = None,
        credentials: Credentials | None = None,
    ) -> Prepared:
        candidate = Candidate(sealed=seal(generation), rank=Rank())
        return await self.preparer.prepare(
            candidate, credentials=credentials or OLD_CERTIFICATE, running=running, attempt=attempt
        )


class Yes:
    def evaluate(self, evaluation: Evaluation) -> Result:
        return Result(decision=Decision.ALLOW, metadata={"by": evaluation.binding})


def a_connection(
    host: str = "echo.test", *, client: ClientAuthentication = ClientAuthentication.MUTUAL_TLS
) -> Connection:
    return Connection(endpoint=f"https://{host}", timeout=timedelta(seconds=1), client_authentication=client)


def a_service(name: str = "echo", *, connection: Connection | None = None, limit: int = 100) -> Service:
    return Service(
        name=name,
        connection=connection or a_connection(f"{name}.test"),
        dialect=Dialect.RFC0009,
        needs=(echo_binding(max_body_bytes=limit),),
    )


def a_generation(*services: Service, mark: str = "A") -> Generation:
    stages = tuple(stage(s.name, service=s.name, config={"mark": mark}) for s in services)
    return Generation(stages=stages, services=services)


async def test_a_policy_only_change_opens_and_describes_nothing() -> None:
    world, runtime = PaperWorld(), Runtime()
    runtime.swap(first := await world.prepared(a_generation(a_service())))
    runtime.swap(await world.prepared(a_generation(a_service(), mark="B"), first))
    await world.pool.close()
    assert (world.pool.opened, world.described) == (1, ["echo"])


async def test_more_of_a_connected_service_is_read_from_its_manifest_and_only_then_asked_for() -> None:
    world = PaperWorld()
    first = await world.prepared(a_generation(a_service(limit=1)))
    second = await world.prepared(a_generation(a_service(limit=2)), first)
    assert world.described == ["echo"]
    third = await world.prepared(a_generation(a_service(limit=2**22)), second)
    assert third.states() == {"echo": ServiceState.INCAPABLE}
    assert (world.pool.opened, world.described) == (1, ["echo", "echo"])


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Unavailable("down"), ServiceState.UNREACHABLE),
        (CallerRefused("not you"), ServiceState.REFUSING),
        (Untrusted("garbled"), ServiceState.INCAPABLE),
        (echo_manifest(echo_binding("acme/other")), ServiceState.INCAPABLE),
        (echo_manifest(), ServiceState.READY),
    ],
)
async def test_what_a_service_answers_decides_its_state(answer: Manifest | Exception, state: ServiceState) -> None:
    world = PaperWorld()
    world.manifests["echo"] = answer
    prepared = await world.prepared(a_generation(a_service()))
    assert prepared.states() == {"echo": state}
    assert is_settled(prepared, credentials=OLD_CERTIFICATE) is (state is ServiceState.READY)
    outcome = await prepared.evaluate(prepared.chain_for("api.example.com"), REQUEST)
    assert isinstance(outcome, Denied)


async def test_an_answer_counts_for_a_while_and_is_asked_for_again_over_the_same_connection() -> None:
    world = PaperWorld()
    first = await world.prepared(a_generation(a_service()))
    world.now = ANSWER_LASTS
    second = await world.prepared(a_generation(a_service(), mark="B"), attempt=first)
    assert world.described == ["echo"]
    world.now += 1
    world.manifests["echo"] = echo_manifest(echo_binding("acme/other"))
    third = await world.prepared(a_generation(a_service(), mark="B"), attempt=second)
    assert third.states() == {"echo": ServiceState.INCAPABLE}
    assert (world.pool.opened, world.described) == (1, ["echo", "echo"])


async def test_what_runs_as_it_is_needed_is_taken_over_however_old_its_answer_and_more_is_asked_for() -> None:
    world, runtime = PaperWorld(), Runtime()
    runtime.swap(first := await world.prepared(a_generation(a_service(limit=2))))
    world.now = 10 * ANSWER_LASTS
    world.manifests["echo"] = Unavailable("down")
    for limit in (2, 1):
        taken = await world.prepared(a_generation(a_service(limit=limit), mark="B"), first)
        assert taken.states() == {"echo": ServiceState.READY}
    assert world.described == ["echo"]
    more = await world.prepared(a_generation(a_service(limit=3), mark="B"), first)
    assert more.states() == {"echo": ServiceState.UNREACHABLE}
    assert (world.pool.opened, world.described) == (1, ["echo", "echo"])


async def test_services_that_are_upgraded_out_of_step_are_not_waited_for_in_vain() -> None:
    """Each is capable every other time it is asked, and never both at once."""
    world, attempt = PaperWorld(), None
    able, unable = echo_manifest(), echo_manifest(echo_binding("acme/other"))
    for n in range(2):
        world.now += ANSWER_LASTS / 2
        world.manifests = {"odd": unable if n % 2 else able, "even": able if n % 2 else unable}
        attempt = await world.prepared(a_generation(a_service("odd"), a_service("even")), attempt=attempt)
    assert attempt is not None
    assert set(attempt.states().values()) == {ServiceState.READY}


async def test_a_service_that_lacks_one_binding_serves_the_others() -> None:
    world = PaperWorld()
    needs = (echo_binding("acme/a"), echo_binding("acme/b"))
    service = replace(a_service(), needs=needs)
    stages = tuple(stage(n.id[-1], service="echo", binding=n.id, on_error=OnError.FAIL_OPEN) for n in needs)
    world.manifests["echo"] = echo_manifest(needs[0])
    prepared = await world.prepared(Generation(stages=stages, services=(service,)))
    assert prepared.states() == {"echo": ServiceState.INCAPABLE}
    assert [prepared.services["echo"].serves(n.id) for n in needs] == [True, False]
    world.manifests["echo"] = replace(echo_manifest(*needs), dialect=Dialect.RELEASED)
    prepared = await world.prepared(Generation(stages=stages, services=(service,)))
    assert [prepared.services["echo"].serves(n.id) for n in needs] == [False, False]


async def test_a_thousand_swaps_leave_no_channel_open_but_those_of_what_is_served() -> None:
    world, runtime, held = PaperWorld(), Runtime(), ExitStack()
    previous: Prepared | None = None
    most = 0
    for n in range(1000):
        current = await world.prepared(a_generation(a_service("kept"), a_service(f"s{n % 7}"), mark=str(n)), previous)
        runtime.swap(current)
        previous = current
        if n == 500 and (pin := runtime.pin()) is not None:
            held.enter_context(pin)  # a request that takes its time
        most = max(most, sum(not c.is_closed for c in world.channels))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert most <= 4
    assert sum(not c.is_closed for c in world.channels) == 3
    held.close()
    await asyncio.sleep(0)
    assert len(world.pool.keys) == sum(not c.is_closed for c in world.channels) == 2
    assert world.described.count("kept") == 1
    runtime.stop()
    await asyncio.sleep(0)
    assert world.pool.keys == frozenset()
    assert all(c.is_closed for c in world.channels)


async def test_a_service_that_wants_a_certificate_waits_for_one() -> None:
    pool = Pool()
    preparer = Preparer(pool=pool, describer=PaperWorld(), evaluator=Evaluator(builtins={}, clock=lambda: 0.0))
    candidate = Candidate(sealed=seal(a_generation(a_service())), rank=Rank())
    prepared = await preparer.prepare(candidate, credentials=None)
    assert prepared.states() == {"echo": ServiceState.UNREACHABLE}


async def test_a_lost_connection_is_reported_but_keeps_its_place() -> None:
    world = PaperWorld()
    prepared = await world.prepared(a_generation(a_service()))
    world.channels[0].state = grpc.ChannelConnectivity.TRANSIENT_FAILURE
    assert prepared.states() == {"echo": ServiceState.UNREACHABLE}
    assert is_settled(prepared, credentials=OLD_CERTIFICATE)


async def test_a_generation_that_is_pinned_keeps_its_channels_until_its_last_request_ends() -> None:
    world, runtime = PaperWorld(), Runtime()
    assert runtime.pin() is None
    runtime.swap(first := await world.prepared(a_generation(a_service("old"))))
    one, two = runtime.pin(), runtime.pin()
    assert one is not None
    assert two is not None
    with one as pinned:
        with two:
            runtime.swap(await world.prepared(a_generation(a_service("new"))))
            assert pinned is first
            assert runtime.current is not first
        await asyncio.sleep(0)
        assert not world.channels[0].is_closed
    await asyncio.sleep(0)
    assert [c.is_closed for c in world.channels] == [True, False]
    with pytest.raises(Bug), first.pinned():
        pass
    runtime.stop()
    assert not runtime.is_ready
    await world.pool.close()
    assert all(c.is_closed for c in world.channels)


async def test_a_cancelled_preparation_returns_what_it_leased() -> None:
    world = PaperWorld()
    preparing = asyncio.ensure_future(world.prepared(a_generation(a_service("quick"), a_service("silent"))))
    while "silent" not in world.described:  # noqa: ASYNC110 - a list
        await asyncio.sleep(0)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert world.pool.keys == frozenset()


async def test_renewed_credentials_get_a_channel_of_their_own() -> None:
    world, runtime = PaperWorld(), Runtime()
    runtime.swap(first := await world.prepared(a_generation(a_service())))
    assert not is_settled(first, credentials=NEW_CERTIFICATE)
    runtime.swap(second := await world.prepared(a_generation(a_service()), first, credentials=NEW_CERTIFICATE))
    await asyncio.sleep(0)
    assert is_settled(second, credentials=NEW_CERTIFICATE)
    assert [c.is_closed for c in world.channels] == [True, False]


async def test_a_renewed_certificate_that_is_not_taken_costs_nobody_the_connection_that_works() -> None:
    world, runtime = PaperWorld(), Runtime()
    runtime.swap(first := await world.prepared(a_generation(a_service())))
    world.refused = [NEW_CERTIFICATE]
    runtime.swap(second := await world.prepared(a_generation(a_service()), first, credentials=NEW_CERTIFICATE))
    await asyncio.sleep(0)
    assert second.states() == {"echo": ServiceState.READY}
    assert not is_settled(second, credentials=NEW_CERTIFICATE)
    assert not world.channels[0].is_closed
    world.refused = []
    runtime.swap(third := await world.prepared(a_generation(a_service()), second, credentials=NEW_CERTIFICATE))
    await asyncio.sleep(0)
    assert is_settled(third, credentials=NEW_CERTIFICATE)
    assert [c.is_closed for c in world.channels] == [True, False]


async def test_a_service_that_is_not_to_see_our_certificate_gets_a_connection_without_it() -> None:
    world = PaperWorld()
    first = await world.prepared(a_generation(a_service()))
    without = a_service(connection=a_connection(client=ClientAuthentication.NONE))
    second = await world.prepared(a_generation(without), first)
    assert world.pool.opened == 2
    assert is_settled(second, credentials=NEW_CERTIFICATE)


async def test_built_ins_are_called_in_process_and_unknown_ones_follow_on_error() -> None:
    world = PaperWorld()
    builtin = stage("yes", service=None, binding="openshell/yes")
    unknown = stage("no", service=None, binding="openshell/no")
    prepared = await world.prepared(Generation(stages=(builtin,)))
    outcome = await prepared.evaluate(prepared.chain_for("api.example.com"), REQUEST)
    assert isinstance(outcome, Allowed)
    assert outcome.metadata == {"yes": {"by": "openshell/yes"}}
    prepared = await world.prepared(Generation(stages=(builtin, unknown)))
    assert isinstance(await prepared.evaluate(prepared.chain_for("api.example.com"), REQUEST), Denied)


async def test_leases_are_counted_and_the_last_one_closes() -> None:
    world = PaperWorld()
    first = world.pool.lease(a_connection(), credentials=None)
    second = first.renewed()
    first.release()
    first.release()
    await asyncio.sleep(0)
    assert not world.channels[0].is_closed
    second.release()
    await world.pool.close()
    assert world.channels[0].is_closed


async def test_a_closed_pool_takes_leases_back_without_complaint() -> None:
    world = PaperWorld()
    lease = world.pool.lease(a_connection(), credentials=None)
    await world.pool.close()
    lease.release()
    assert world.channels[0].is_closed


@pytest.mark.parametrize(
    ("endpoint", "dialled"),
    [
        ("https://redactor.team.svc", "dns:///redactor.team.svc:443"),
        ("https://redactor.team.svc:8443/", "dns:///redactor.team.svc:8443"),
        ("http://10.0.0.1", "dns:///10.0.0.1:80"),
        ("https://[::1]:50051", "dns:///[::1]:50051"),
        ("https://unix:443", "dns:///unix:443"),
    ],
)
def test_endpoints_are_dialled_by_dns_alone(endpoint: str, dialled: str) -> None:
    assert dial_target(endpoint) == dialled


@pytest.mark.parametrize(
    "endpoint",
    ["", "redactor:443", "ftp://a", "https://", "https://a:x", "https://a/b", "https://me@a", "https://a?b"],
)
def test_what_is_no_endpoint_is_not_dialled(endpoint: str) -> None:
    with pytest.raises(InvalidInput):
        dial_target(endpoint)


async def test_channels_open_for_every_kind_of_connection() -> None:
    insecure = Connection(endpoint="http://a.test", timeout=timedelta(seconds=1))
    named = Connection(
        endpoint="https://a.test",
        timeout=timedelta(seconds=1),
        server_name="b.test",
        ca_bundle_pem=AUTHORITY.certificate_pem.decode(),
    )
    for connection in (insecure, named, a_connection(client=ClientAuthentication.NONE)):
        await open_service_channel(connection, OLD_CERTIFICATE).close(None)
    with pytest.raises(Unavailable, match="not enrolled"):
        open_service_channel(a_connection(), None)
