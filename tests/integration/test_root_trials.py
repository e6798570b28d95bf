"""Whether services take a root, asked over real TLS; and what supervisors are told of roots on real streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from supervisor_middleware.apps.replica import Replica, client_identity
from supervisor_middleware.apps.root_facts import RENEWAL_REPEATED, RENEWALS_AT_ONCE, LeaderFacts
from supervisor_middleware.apps.root_trials import Outcome, Trial, Trials
from supervisor_middleware.distribution.census import Census
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.registration import ClientAuthentication, Registration
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import Snapshot, Stored
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.profiles import key_identifier
from supervisor_middleware.pki.rotation import Cause, Facts, Rotation
from supervisor_middleware.pki.rotation_requests import Stage
from supervisor_middleware.pki.succession import Succession
from supervisor_middleware.settings import ControlPlaneSettings
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.channels import ClientIdentity
from tests.builders import a_manifest
from tests.fakes.echo_generations import AUTHORITY, SERVICE, a_service
from tests.fakes.echo_service import EchoService
from tests.integration.distributing import AUTHORITY as OPERATORS
from tests.integration.distributing import STRANGER as OTHER
from tests.integration.distributing import a_running_supervisor, a_sealed, an_operator
from tests.waiting import eventually

_NOW = datetime.now(UTC)
NEXT = Authority.create(trust_domain=AUTHORITY.trust_domain, now=_NOW - timedelta(hours=1))


def trial(candidate: Authority, *, present: Authority | None = AUTHORITY) -> Trial:
    def shown(authority: Authority) -> ClientIdentity:
        return client_identity(authority.issue_operator(namespace="system", now=_NOW))

    return Trial(candidate=shown(candidate), present=None if present is None else shown(present))


@asynccontextmanager
async def asking(**options: float) -> AsyncIterator[Trials]:
    trials = Trials(retry=timedelta(seconds=options.get("retry", 0.05)))
    try:
        yield trials
    finally:
        await trials.aclose()


async def outcome(trials: Trials, port: int, asked: Trial, *, subject: str = "x") -> Outcome:
    """What is known once the service was asked."""
    services = {"echo": a_service(port).connection}
    trials.outcomes(services, subject=subject, trial=lambda: asked)
    assert trials._asking is not None
    await trials._asking
    return trials.outcomes(services, subject=subject, trial=lambda: asked)["echo"]


async def test_a_service_that_trusts_both_roots_takes_the_next_one() -> None:
    both = AUTHORITY.certificate_pem + NEXT.certificate_pem
    async with EchoService.serving(SERVICE, clients=both) as service, asking() as trials:
        services = {"echo": a_service(service.port).connection}
        unasked = trials.outcomes(services, subject="x", trial=lambda: trial(NEXT))
        assert unasked == {"echo": Outcome.SILENT}
        await eventually(
            lambda: trials.outcomes(services, subject="x", trial=lambda: trial(NEXT)) == {"echo": Outcome.TAKEN}
        )
        asked = service.described
        # Who has taken it is not asked again, unless it is about another root.
        await asyncio.sleep(0.2)
        trials.outcomes(services, subject="x", trial=lambda: trial(NEXT))
        assert service.described == asked
        trials.outcomes(services, subject="y", trial=lambda: trial(NEXT))
        await eventually(lambda: service.described > asked)


async def test_a_service_that_trusts_the_present_root_alone_refuses_the_next_one_and_is_asked_again() -> None:
    async with EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem) as service, asking() as trials:
        port = service.port
        assert await outcome(trials, port, trial(NEXT)) is Outcome.REFUSED
    both = AUTHORITY.certificate_pem + NEXT.certificate_pem
    async with EchoService.serving(SERVICE, clients=both, port=port), asking() as trials:
        assert await outcome(trials, port, trial(NEXT)) is Outcome.TAKEN


async def test_a_service_that_answers_to_neither_is_silent() -> None:
    async with EchoService.serving(SERVICE, clients=OTHER.certificate_pem) as service, asking() as trials:
        assert await outcome(trials, service.port, trial(NEXT)) is Outcome.SILENT
        # Where there is nothing to compare with, what TLS says has to do.
        assert await outcome(trials, service.port, trial(NEXT, present=None), subject="y") is Outcome.REFUSED
    async with asking() as trials:
        assert await outcome(trials, service.port, trial(NEXT)) is Outcome.SILENT
        assert await outcome(trials, service.port, trial(NEXT, present=None), subject="y") is Outcome.SILENT


# --------------------------------------------------------------------------------------------------- what a leader knows


@dataclass(kw_only=True)
class Others:
    """Supervisors, the source and the publisher, as far as a leader's facts need them."""

    snapshot_now: Snapshot = field(default_factory=Snapshot)
    counted: Census | None = field(default_factory=Census)
    published: list[tuple[bytes, frozenset[str]]] = field(default_factory=list)
    told: int = 0
    renewals: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)
    is_away: bool = False

    async def snapshot(self) -> Snapshot:
        return self.snapshot_now

    async def publish_bundle(self, pem: bytes, *, namespaces: frozenset[str]) -> None:
        if self.is_away:
            raise Unavailable("away")
        self.published.append((pem, namespaces))

    def tell_bundle(self) -> None:
        self.told += 1

    def renew(self, *, issuer: str, at_most: int, spared: object) -> frozenset[str]:
        self.renewals.append((issuer, at_most, tuple(spared)))  # type: ignore[arg-type]
        return frozenset({f"key-{len(self.renewals)}"})

    def census(self, *, trust_bundle: str, issuer: str, may_hold: Callable[[str], bool]) -> Census | None:
        assert trust_bundle.startswith("sha256:")
        assert issuer
        assert [key for key in ("somebody", "nobody") if may_hold(key)] == ["somebody"]
        return self.counted

    def may_hold(self, key: str, *, longest: timedelta) -> bool:
        return key == "somebody" and longest == PREPARED.longest


@asynccontextmanager
async def leading(others: Others, rotation: Rotation, *, clock: list[float]) -> AsyncIterator[LeaderFacts]:
    replica = Replica(ControlPlaneSettings(), namespace="system", rotation=rotation, metrics=ControlMetrics())
    facts = LeaderFacts(
        replica=replica,
        source=others,
        publisher=others,
        supervisors=others,
        possession=others,
        check=lambda: None,
        monotonic=lambda: clock[0],
    )
    try:
        yield facts
    finally:
        await facts.aclose()
        await replica.aclose()


def registered(name: str, connection: object) -> Stored:
    registration = Registration(
        name=name,
        uid=name,
        created_at=_NOW,
        connection=connection,  # type: ignore[arg-type]
        max_body_bytes=1,
        manifest=a_manifest(),
    )
    return Stored(
        subject=Subject(kind="SupervisorMiddleware", name=name),
        uid=name,
        generation=1,
        created_at=_NOW,
        spec={},
        status={"accepted": registration.to_json()},
    )


STEADY = Rotation(roots=Succession(current=AUTHORITY), since=_NOW)
PREPARED = replace(STEADY, roots=replace(STEADY.roots, successor=NEXT)).at(
    Stage.PREPARED, now=_NOW, cause=Cause.REQUESTED
)
ACTIVATED = replace(PREPARED, roots=PREPARED.roots.promoted()).at(Stage.ACTIVATED, now=_NOW, cause=Cause.FORCED)
TAINTED = ACTIVATED.at(Stage.TAINTED, now=_NOW, cause=Cause.FORCED)


async def test_a_leader_publishes_everywhere_and_asks_those_services_that_see_a_certificate() -> None:
    async with (
        EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem) as strict,
        EchoService.serving(SERVICE, clients=PREPARED.roots.bundle) as ready,
    ):
        anonymous = replace(a_service(1).connection, client_authentication=ClientAuthentication.NONE)
        plain = replace(a_service(1).connection, endpoint="http://127.0.0.1:1")
        never = replace(registered("never", plain), status={})
        others = Others(
            snapshot_now=Snapshot(
                registrations=(
                    registered("strict", a_service(strict.port).connection),
                    registered("ready", a_service(ready.port).connection),
                    registered("down", a_service(1).connection),
                    registered("anonymous", anonymous),
                    registered("plain", plain),
                    never,
                ),
                sandboxes=(Sandbox(namespace="team-a", name="coder"),),
            ),
            counted=Census(absent=1, unacknowledged=2, old=3),
        )
        async with leading(others, PREPARED, clock=[0.0]) as facts:
            first = await facts.facts(PREPARED)
            assert set(first.silent) == {"strict", "ready", "down"}

            async def known() -> Facts:
                return await facts.facts(PREPARED)

            for _ in range(100):
                if (found := await known()).refusing:
                    break
                await asyncio.sleep(0.05)
            assert found == Facts(
                is_published=True,
                is_counted=True,
                refusing=("strict",),
                silent=("down",),
                absent=1,
                unacknowledged=2,
                old=3,
            )
            assert others.published[0] == (PREPARED.roots.bundle, frozenset({"team-a"}))
            # Of the root that issues already: the operator's own certificate.
            facts.replica.follow(ACTIVATED)
            for _ in range(100):
                if (found := await facts.facts(ACTIVATED)).refusing:
                    break
                await asyncio.sleep(0.05)
            assert (found.refusing, found.silent) == (("strict",), ("down",))
            assert (await facts.facts(TAINTED)).silent == ()


@pytest.mark.parametrize(
    "others",
    [Others(is_away=True), Others(snapshot_now=Snapshot(unknown=frozenset({"Pod"})))],
)
async def test_what_could_not_be_published_everywhere_is_not_published(others: Others) -> None:
    async with leading(others, STEADY, clock=[0.0]) as facts:
        assert not (await facts.facts(STEADY)).is_published


async def test_supervisors_are_told_to_renew_while_tainted_a_few_at_a_time_and_not_again_at_once() -> None:
    others, clock = Others(), [0.0]
    async with leading(others, ACTIVATED, clock=clock) as facts:
        facts.tell(ACTIVATED)
        assert (others.told, others.renewals) == (1, [])
        issuer = key_identifier(NEXT.certificate)
        facts.tell(TAINTED)
        facts.tell(TAINTED)
        assert others.renewals == [(issuer, RENEWALS_AT_ONCE, ()), (issuer, RENEWALS_AT_ONCE, ("key-1",))]
        clock[0] = RENEWAL_REPEATED
        facts.tell(TAINTED)
        assert others.renewals[-1][2] == ()
        # Another rotation is another reason.
        again = replace(TAINTED, roots=replace(TAINTED.roots, current=AUTHORITY))
        facts.tell(again)
        assert others.renewals[-1] == (key_identifier(AUTHORITY.certificate), RENEWALS_AT_ONCE, ())


# ------------------------------------------------------------------------------------------- what supervisors are told


async def test_a_bundle_that_changes_is_sent_once_a_stream_to_those_who_have_another() -> None:
    async with an_operator() as operator:
        sealed = a_sealed()
        await operator.publish({"uid-a": sealed, "uid-b": sealed})
        async with (
            a_running_supervisor(operator, "a", active=sealed.digest) as old,
            a_running_supervisor(operator, "b", active=sealed.digest) as new,
        ):
            await old.offer()
            await new.offer()
            operator.discovery.tell_bundle()
            await old.hears_nothing()
            operator.bundle = OPERATORS.certificate_pem + OTHER.certificate_pem
            operator.discovery.tell_bundle()
            operator.discovery.tell_bundle()
            offer = await old.offer()
            assert (offer.trust_bundle_pem, offer.digest) == (operator.bundle, "")
            await old.hears_nothing()
            await new.offer()
        await eventually(lambda: operator.discovery.census(trust_bundle="", issuer="") == Census(absent=2))


async def test_a_leader_that_has_published_nothing_knows_of_nobody_and_does_not_take_that_for_an_answer() -> None:
    async with an_operator() as operator:
        assert operator.discovery.census(trust_bundle="", issuer="") is None
        await operator.publish({})
        assert operator.discovery.census(trust_bundle="", issuer="") == Census()
    others = Others(counted=None)
    async with leading(others, TAINTED, clock=[0.0]) as facts:
        assert not (await facts.facts(TAINTED)).is_counted


async def test_those_with_an_old_leaf_are_sent_away_to_renew_and_may_come_back() -> None:
    async with an_operator() as operator:
        sealed = a_sealed()
        await operator.publish({"uid-a": sealed, "uid-b": sealed})
        digest, issuer = bundle_digest(operator.bundle), key_identifier(OPERATORS.certificate)
        async with (
            a_running_supervisor(operator, "a", active=sealed.digest) as first,
            a_running_supervisor(operator, "b", active=sealed.digest) as second,
        ):
            await first.offer()
            await second.offer()
            discovery = operator.discovery
            assert discovery.census(trust_bundle=digest, issuer=issuer) == Census()
            assert discovery.census(trust_bundle="other", issuer="other") == Census(unacknowledged=2, old=2)
            assert discovery.renew(issuer=issuer, at_most=9) == frozenset()
            assert discovery.renew(issuer="other", at_most=9, spared={"uid-b"}) == {"uid-a"}
            assert await first.end() is grpc.StatusCode.UNAUTHENTICATED
            await second.hears_nothing()
        async with a_running_supervisor(operator, "a", active=sealed.digest) as again:
            await again.offer()
