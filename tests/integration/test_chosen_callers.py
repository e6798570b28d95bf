"""A service that admits only sandboxes it chose, over real mutual TLS (OS-TLS-06): what each side then does and says."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from supervisor_middleware.apps.replica import client_identity
from supervisor_middleware.audit.events import Bypassed, Failed
from supervisor_middleware.middleware import (
    Caller,
    Decision,
    Evaluation,
    JsonObject,
    Middleware,
    Result,
    ServerTls,
    chosen,
    current_caller,
    http_binding,
    http_manifest,
    serve,
)
from supervisor_middleware.model.evaluation import FailureCode, OnError
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.verdict import Accepted, Described, Outage, Unreachable
from supervisor_middleware.registry.client import RegistryClient
from supervisor_middleware.supervisor.exchange import Allowed, Cause, Denied
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.fakes.echo_generations import AUTHORITY, FAR, SERVICE, a_service, echo_stage
from tests.fakes.echo_service import BINDING, LIMIT
from tests.fakes.operator_server import FakeOperator
from tests.fakes.supervisor_control import RunningSupervisor, a_supervisor, prepare_folder
from tests.pki.builders import TRUST_DOMAIN, an_identity

CODER = f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/coder"
OPERATOR = f"spiffe://{TRUST_DOMAIN}/ns/system/operator"


class WhoAsks(Middleware):
    """Answers everybody it is handed, and keeps what it was told of who that is."""

    manifest = http_manifest(http_binding(BINDING, max_body_bytes=LIMIT), name="who", version="1")

    def __init__(self) -> None:
        self.asked = list[str | None]()
        self.judged = list[str | None]()

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        del binding, config
        self.judged.append(current_caller().spiffe_id)
        return None

    async def evaluate(self, evaluation: Evaluation) -> Result:
        self.asked.append(current_caller().spiffe_id)
        return Result(decision=Decision.ALLOW, metadata={"generation": str(evaluation.config["generation"])})


@dataclass(kw_only=True)
class Choosing:
    """A running service, its rule (a person may change it), and who was turned away."""

    service: WhoAsks = field(default_factory=WhoAsks)
    rule: Callable[[Caller], bool]
    port: int = 0
    turned_away: list[str | None] = field(default_factory=list)

    def admits(self, caller: Caller) -> bool:
        if not (is_admitted := self.rule(caller)):
            self.turned_away.append(caller.spiffe_id)
        return is_admitted

    def generation(self, on_error: OnError) -> Generation:
        stage = echo_stage("who", "A", service="who", on_error=on_error)
        return Generation(stages=(stage,), services=(a_service(self.port, "who"),))


@asynccontextmanager
async def choosing(*sandboxes: str) -> AsyncIterator[Choosing]:
    world = Choosing(rule=chosen(TRUST_DOMAIN, sandboxes=sandboxes))
    tls = ServerTls(
        certificate_chain_pem=SERVICE.certificate_chain_pem,
        private_key_pem=SERVICE.private_key_pem,
        client_ca_pem=AUTHORITY.certificate_pem,
    )
    server = await serve(world.service, address="127.0.0.1:0", tls=tls, allowed_callers=world.admits)
    world.port = server.port
    try:
        yield world
    finally:
        await server.stop(grace=0)


@asynccontextmanager
async def enrolled(folder: Path, sandbox: str) -> AsyncIterator[tuple[FakeOperator, RunningSupervisor]]:
    """A supervisor of team-a that gets its certificate as any does, of the CA that the service trusts."""
    async with FakeOperator.serving(AUTHORITY, an_identity(sandbox=sandbox)) as operator:
        prepare_folder(folder / sandbox, operator)
        async with a_supervisor(folder / sandbox, operator) as supervisor:
            yield operator, supervisor


async def served(operator: FakeOperator, generation: Generation, *, sequence: int = 1) -> dict[str, Any]:
    """What a supervisor says of its services once it runs `generation`."""
    active = await operator.heard("active", await operator.offer(generation, sequence=sequence))
    return {s.name: s.state for s in active.services}


@asynccontextmanager
async def asking_as_the_operator() -> AsyncIterator[RegistryClient]:
    credentials = AUTHORITY.issue_operator(namespace="system", now=datetime.now(UTC))
    client = RegistryClient(lambda: client_identity(credentials))
    try:
        yield client
    finally:
        await client.close()


async def test_the_chosen_sandbox_is_served_and_the_service_is_told_which_it_is(tmp_path: Path) -> None:
    async with choosing("team-a/coder") as world, enrolled(tmp_path, "coder") as (operator, supervisor):
        assert await served(operator, world.generation(OnError.FAIL_CLOSED)) == {"who": pb.SERVICE_STATE_READY}
        outcome = await supervisor.ask()
        assert isinstance(outcome, Allowed)
        assert outcome.metadata == {"who": {"generation": "A"}}
        assert (world.service.asked, world.turned_away) == ([CODER], [])


@pytest.mark.parametrize("on_error", list(OnError))
async def test_another_sandbox_is_refused_and_its_requests_follow_on_error(tmp_path: Path, on_error: OnError) -> None:
    async with choosing("team-a/coder") as world, enrolled(tmp_path, "other") as (operator, supervisor):
        with structlog.testing.capture_logs() as logs:
            states = await served(operator, world.generation(on_error))
        # The operator hears that the service is there, and that it is its rule that keeps this one out.
        assert states == {"who": pb.SERVICE_STATE_REFUSING}
        (said,) = [log for log in logs if log["event"] == "serving without some services"]
        assert said["services"] == {"who": "refusing"}
        assert_follows(await supervisor.ask(), on_error, FailureCode.BINDING_NOT_DESCRIBED)
        assert set(world.turned_away) == {f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/other"}
        # What it is told next is what its request meets: once it is chosen it is served, without a new offer.
        world.rule = chosen(TRUST_DOMAIN, namespaces={"team-a"})
        ready = await operator.heard("active")
        assert [s.state for s in ready.services] == [pb.SERVICE_STATE_READY]
        assert isinstance(await supervisor.ask(), Allowed)
        assert world.service.asked == [f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/other"]


@pytest.mark.parametrize("on_error", list(OnError))
async def test_a_sandbox_that_is_chosen_no_longer_is_refused_from_its_next_request_on(
    tmp_path: Path, on_error: OnError
) -> None:
    async with choosing("team-a/coder") as world, enrolled(tmp_path, "coder") as (operator, supervisor):
        await served(operator, world.generation(on_error))
        assert isinstance(await supervisor.ask(), Allowed)
        world.rule = chosen(TRUST_DOMAIN, sandboxes={"team-a/somebody-else"})
        assert_follows(await supervisor.ask(), on_error, FailureCode.SERVICE_ERROR)
        assert (world.service.asked, world.turned_away) == ([CODER], [CODER])


async def test_a_service_that_is_newly_needed_and_refuses_leaves_what_runs_alone(tmp_path: Path) -> None:
    async with choosing("team-a/coder") as first, choosing() as second, enrolled(tmp_path, "coder") as both:
        operator, supervisor = both
        await served(operator, first.generation(OnError.FAIL_CLOSED))
        new = echo_stage("new", "B", service="new")
        candidate = Generation(
            stages=(*first.generation(OnError.FAIL_CLOSED).stages, new),
            services=(a_service(second.port, "new"), a_service(first.port, "who")),
        )
        with structlog.testing.capture_logs() as logs:
            waiting = await operator.heard("not_ready", await operator.offer(candidate, sequence=2))
        assert {s.name: s.state for s in waiting.services} == {
            "new": pb.SERVICE_STATE_REFUSING,
            "who": pb.SERVICE_STATE_READY,
        }
        assert [log["services"] for log in logs if log["event"] == "waiting for services"] == [{"new": "refusing"}]
        assert isinstance(await supervisor.ask(), Allowed)


async def test_the_same_rule_admits_the_operator_which_shows_itself_as_that() -> None:
    async with choosing("team-a/coder") as world, asking_as_the_operator() as client:
        connection = a_service(world.port).connection
        described = await client.describe(connection, registration_name="who")
        assert isinstance(described, Described)
        assert described.manifest == world.service.manifest
        verdict = await client.validate_config(
            connection, dialect=Dialect.RFC0009, binding=BINDING, config={}, deadline=FAR
        )
        assert verdict == Accepted()
        assert (world.service.judged, world.turned_away) == ([OPERATOR], [])


async def test_a_rule_that_forgets_the_operator_is_told_as_that() -> None:
    async with choosing() as world, asking_as_the_operator() as client:
        world.rule = lambda caller: caller.spiffe_id == CODER
        connection = a_service(world.port).connection
        described = await client.describe(connection, registration_name="who")
        assert described == Unreachable(Outage.CREDENTIALS_REFUSED)
        assert world.turned_away == [OPERATOR]


def assert_follows(outcome: object, on_error: OnError, code: FailureCode) -> None:
    """Denied, or let pass and audited; either with our word for it."""
    if on_error is OnError.FAIL_CLOSED:
        assert isinstance(outcome, Denied), outcome
        assert (outcome.cause, outcome.key, outcome.code) == (Cause.FAILED, "who", code)
        (event,) = outcome.events
        assert isinstance(event, Failed)
    else:
        assert isinstance(outcome, Allowed), outcome
        assert outcome.metadata == {}
        (event,) = outcome.events
        assert isinstance(event, Bypassed)
    assert (event.stage.key, event.code) == ("who", code)
