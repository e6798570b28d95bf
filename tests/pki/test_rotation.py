"""How the root of identities gives way to the next: what each stage waits for, and that nobody is ever locked out."""

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor_middleware.distribution.possession import Possession
from supervisor_middleware.pki.profiles import CLOCK_SKEW
from supervisor_middleware.pki.rotation import (
    SKEW,
    Awaited,
    Cause,
    Facts,
    Rotation,
    Rules,
    advance,
    is_begun_by,
    next_stage,
    waits,
)
from supervisor_middleware.pki.rotation_requests import Request, Stage, new_request
from supervisor_middleware.pki.succession import Succession
from tests.pki.builders import DAY, an_authority
from tests.pki.foreign import a_foreign_root

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST = an_authority(now=NOW - DAY)
RULES = Rules()
GOOD = Facts(is_published=True, is_counted=True)
STEADY = Rotation(roots=Succession(current=FIRST), since=NOW - DAY)
PREPARED = replace(STEADY, roots=STEADY.roots.with_successor(now=NOW)).at(
    Stage.PREPARED, now=NOW, cause=Cause.REQUESTED
)
ACTIVATED = replace(PREPARED, roots=PREPARED.roots.promoted()).at(Stage.ACTIVATED, now=NOW, cause=Cause.ACKNOWLEDGED)
TAINTED = ACTIVATED.at(Stage.TAINTED, now=NOW, cause=Cause.ACKNOWLEDGED)
REVOKED = replace(TAINTED, roots=replace(TAINTED.roots, retired=())).at(
    Stage.REVOKED, now=NOW, cause=Cause.ACKNOWLEDGED
)
BY_STAGE = {r.stage: r for r in (STEADY, PREPARED, ACTIVATED, TAINTED, REVOKED)}

SETTLED = NOW + RULES.overlap
OVER = NOW + STEADY.longest + SKEW


def step(rotation: Rotation, facts: Facts = GOOD, *, now: datetime = SETTLED) -> Rotation | None:
    return advance(rotation, facts, now=now, rules=RULES)


def awaited(rotation: Rotation, facts: Facts, *, now: datetime = SETTLED) -> set[Awaited]:
    return {wait.awaited for wait in waits(rotation, facts, now=now, rules=RULES)}


# ---------------------------------------------------------------------------------------------------------- the stages


def test_the_stages_follow_each_other_in_a_ring() -> None:
    assert [next_stage(stage) for stage in Stage] == [*list(Stage)[1:], Stage.STEADY]


def test_a_root_is_trusted_before_it_issues_and_the_old_one_after_it() -> None:
    first, second = PREPARED.roots.roots
    assert PREPARED.roots.current.certificate_pem == first
    assert ACTIVATED.roots.current.certificate_pem == second
    assert ACTIVATED.roots.bundle == PREPARED.roots.bundle == TAINTED.roots.bundle
    assert REVOKED.roots.bundle == second


@pytest.mark.parametrize("stage", [s for s in Stage if s is not Stage.STEADY])
def test_a_stage_that_waits_for_nothing_ends_after_the_overlap(stage: Stage) -> None:
    rotation = BY_STAGE[stage]
    assert awaited(rotation, GOOD, now=SETTLED - timedelta(seconds=1)) == {Awaited.OVERLAP}
    assert step(rotation, now=SETTLED - timedelta(seconds=1)) is None
    following = step(rotation)
    assert following is not None
    assert (following.stage, following.since, following.cause) == (next_stage(stage), SETTLED, Cause.ACKNOWLEDGED)
    assert following.roots.bundle == BY_STAGE[next_stage(stage)].roots.bundle or stage is Stage.REVOKED


WAITING = {
    Stage.PREPARED: {
        Awaited.SERVICES_SILENT: replace(GOOD, silent=("terms",)),
        Awaited.SUPERVISORS_UNKNOWN: replace(GOOD, is_counted=False),
        Awaited.SUPERVISORS_UNACKNOWLEDGED: replace(GOOD, unacknowledged=1),
        Awaited.SUPERVISORS_ABSENT: replace(GOOD, absent=1),
    },
    Stage.ACTIVATED: {
        Awaited.SERVICES_REFUSING: replace(GOOD, refusing=("terms",)),
        Awaited.SERVICES_SILENT: replace(GOOD, silent=("terms",)),
    },
    Stage.TAINTED: {
        Awaited.SUPERVISORS_UNKNOWN: replace(GOOD, is_counted=False),
        Awaited.SUPERVISORS_OLD: replace(GOOD, old=1),
        Awaited.SUPERVISORS_ABSENT: replace(GOOD, absent=1),
    },
    Stage.REVOKED: {
        Awaited.SUPERVISORS_UNKNOWN: replace(GOOD, is_counted=False),
        Awaited.SUPERVISORS_UNACKNOWLEDGED: replace(GOOD, unacknowledged=1),
    },
}
CASES = [(stage, what, facts) for stage, by in WAITING.items() for what, facts in by.items()]


@pytest.mark.parametrize(("stage", "what", "facts"), CASES)
def test_what_holds_a_stage_holds_it_until_the_deadline_and_no_longer(
    stage: Stage, what: Awaited, facts: Facts
) -> None:
    rotation = BY_STAGE[stage]
    just_before = OVER - timedelta(seconds=1)
    assert awaited(rotation, facts) == awaited(rotation, facts, now=just_before) == {what}
    assert step(rotation, facts, now=just_before) is None
    following = step(rotation, facts, now=OVER)
    assert following is not None
    assert (following.stage, following.cause) == (next_stage(stage), Cause.DEADLINE)
    (wait,) = waits(rotation, facts, now=SETTLED, rules=RULES)
    assert (wait.count, wait.until) == (what is not Awaited.SUPERVISORS_UNKNOWN, rotation.deadline)


@pytest.mark.parametrize(
    ("stage", "facts"),
    [
        (Stage.PREPARED, replace(GOOD, old=3)),
        (Stage.ACTIVATED, replace(GOOD, old=3, unacknowledged=1, absent=2, is_published=False, is_counted=False)),
        (Stage.TAINTED, replace(GOOD, unacknowledged=1, refusing=("terms",), silent=("b",), is_published=False)),
        (Stage.REVOKED, replace(GOOD, absent=1, old=1, refusing=("terms",), silent=("b",))),
    ],
)
def test_a_stage_is_not_held_by_what_it_is_not_for(stage: Stage, facts: Facts) -> None:
    assert awaited(BY_STAGE[stage], facts) == set()


def test_a_service_that_refuses_the_next_root_holds_activation_beyond_the_deadline() -> None:
    facts = replace(GOOD, refusing=("terms",))
    assert step(PREPARED, facts, now=OVER + 100 * DAY) is None
    (wait,) = waits(PREPARED, facts, now=OVER, rules=RULES)
    assert (wait.awaited, wait.names, wait.until) == (Awaited.SERVICES_REFUSING, ("terms",), None)


def test_a_root_whose_leaves_end_soon_waits_for_nobody() -> None:
    worst = Facts(is_published=True, refusing=("a",), silent=("b",), absent=1, unacknowledged=1)
    end = FIRST.expires_at - STEADY.longest
    late = PREPARED.at(Stage.PREPARED, now=end - DAY / 2, cause=Cause.SCHEDULED)
    assert step(late, worst, now=end - timedelta(seconds=1)) is None
    following = step(late, worst, now=end)
    assert following is not None
    assert (following.stage, following.cause) == (Stage.ACTIVATED, Cause.EXPIRING)


@pytest.mark.parametrize("rotation", [PREPARED, REVOKED])
def test_a_stage_that_changed_the_bundle_waits_for_its_publication_always(rotation: Rotation) -> None:
    unpublished = replace(GOOD, is_published=False)
    assert awaited(rotation, unpublished, now=OVER + DAY) == {Awaited.PUBLICATION}
    assert step(rotation, unpublished, now=FIRST.expires_at) is None
    forced = new_request("now", force=rotation.stage)
    assert advance(rotation, unpublished, now=SETTLED, rules=RULES, request=forced) is None
    following = advance(rotation, GOOD, now=SETTLED, rules=RULES, request=forced)
    assert following is not None
    assert following.stage is next_stage(rotation.stage)


# -------------------------------------------------------------------------------------------------------- how it begins


def test_a_rotation_begins_when_a_third_of_the_root_is_left_unless_that_is_switched_off() -> None:
    due = FIRST.not_before + (FIRST.expires_at - FIRST.not_before) * 2 / 3
    assert step(STEADY, now=due - DAY) is None
    following = step(STEADY, now=due)
    assert following is not None
    assert (following.stage, following.cause) == (Stage.PREPARED, Cause.SCHEDULED)
    assert following.roots.current == FIRST
    assert advance(STEADY, GOOD, now=due, rules=Rules(is_scheduled=False)) is None


def test_a_request_begins_a_rotation_once() -> None:
    request = new_request("2026-03-01T12:00:00Z")
    begun = advance(STEADY, GOOD, now=NOW, rules=Rules(root_lifetime=DAY * 90), request=request)
    assert begun is not None
    assert (begun.stage, begun.cause, begun.handled) == (Stage.PREPARED, Cause.REQUESTED, request.identifier)
    assert begun.roots.successor is not None
    assert begun.roots.successor.expires_at == NOW + DAY * 90
    assert advance(begun, GOOD, now=NOW, rules=RULES, request=request) is None
    steady = replace(STEADY, handled=request.identifier)
    assert advance(steady, GOOD, now=NOW, rules=RULES, request=request) is None


@pytest.mark.parametrize("rotation", [PREPARED, ACTIVATED, TAINTED])
def test_a_request_while_one_is_under_way_is_heard_and_does_nothing(rotation: Rotation) -> None:
    request = new_request("again")
    assert not is_begun_by(rotation, request)
    heard = advance(rotation, Facts(), now=NOW, rules=RULES, request=request)
    assert heard == replace(rotation, handled="again")


def test_a_rotation_can_begin_anew_as_soon_as_the_old_root_is_out() -> None:
    begun = advance(REVOKED, Facts(), now=NOW, rules=RULES, request=new_request("next"))
    assert begun is not None
    assert begun.stage is Stage.PREPARED


@pytest.mark.parametrize("stage", [s for s in Stage if s is not Stage.STEADY])
def test_force_ends_the_stage_it_names_and_no_other(stage: Stage) -> None:
    worst = Facts(is_published=True, refusing=("a",), silent=("b",), absent=1, unacknowledged=1, old=1)
    forced = advance(BY_STAGE[stage], worst, now=NOW, rules=RULES, request=new_request("x", force=stage))
    assert forced is not None
    assert (forced.stage, forced.cause, forced.since) == (next_stage(stage), Cause.FORCED, NOW)
    for other in Stage:
        if other is not stage:
            request = new_request("x", force=other)
            heard = advance(BY_STAGE[stage], worst, now=NOW, rules=RULES, request=request)
            assert heard == replace(BY_STAGE[stage], handled=request.identifier)


def test_force_where_nothing_is_under_way_begins() -> None:
    begun = advance(STEADY, Facts(), now=NOW, rules=RULES, request=new_request("x", force=Stage.STEADY))
    assert begun is not None
    assert (begun.stage, begun.cause) == (Stage.PREPARED, Cause.REQUESTED)


def test_a_supplied_root_is_never_replaced_by_one_of_ours() -> None:
    supplied = replace(STEADY, roots=Succession(current=a_foreign_root(now=NOW - DAY)))
    assert supplied.is_supplied
    assert not STEADY.is_supplied
    request = new_request("x")
    heard = advance(supplied, GOOD, now=NOW, rules=RULES, request=request)
    assert heard == replace(supplied, handled="x")
    assert step(supplied, now=supplied.roots.current.expires_at - DAY) is None
    displaced = replace(STEADY, is_displaced=True)
    assert step(displaced, now=FIRST.expires_at - DAY) is None


# ------------------------------------------------------------------------------------- nobody is ever locked out (rules)

_LIFE = timedelta(hours=1)
_STEPS = 400


@dataclass(kw_only=True, eq=False)
class Supervisor:
    """Its bundle and its leaf: the root that issued it, and when it ends by the clock of who issued it."""

    bundle: bytes = b""
    issuer: bytes = b""
    ends: datetime = NOW
    is_connected: bool = True

    @property
    def key(self) -> str:
        """By which a leader knows it."""
        return str(id(self))


class Fleet:
    """Replicas with wrong clocks, supervisors that come and go, services that read what was published some time ago."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.time, self.skew = NOW, timedelta()
        first = an_authority(now=NOW - timedelta(days=1), lifetime=timedelta(days=3000))
        self.state = Rotation(roots=Succession(current=first), since=NOW, longest=_LIFE)
        self.published = self.state.roots.bundle
        self.services = [self.published, self.published]
        self.requests = 0
        self.issuers = [first.certificate_pem]
        self.supervisors = list[Supervisor]()
        self.possession = self.begin_term()
        self.supervisors.extend(self.supply(Supervisor()) for _ in range(3))

    def supply(self, supervisor: Supervisor) -> Supervisor:
        """Enrolment and renewal: the bundle comes with the certificate."""
        supervisor.bundle = self.state.roots.bundle
        supervisor.issuer = self.state.roots.current.certificate_pem
        supervisor.ends = self.known[supervisor.key] = self.time + self.skew + _LIFE
        return supervisor

    def begin_term(self) -> Possession:
        """A leader knows of certificates what it issues and is shown, and who was there before it."""
        self.known = {s.key: s.ends for s in self.supervisors if s.is_connected}
        possession = Possession(end_of=self.known.get, now=lambda: self.time + self.skew)
        possession.settle(s.key for s in self.supervisors)
        return possession

    # ------------------------------------------------------------------------------------------------- what happens

    def time_passes(self) -> None:
        self.time += timedelta(minutes=self.draw.choice([1, 1, 1, 2, 5, 20, 60]))
        for supervisor in self.supervisors:
            if supervisor.is_connected and self.time >= supervisor.ends - _LIFE / 2 and self.draw.random() < 0.8:
                self.supply(supervisor)

    def another_replica_leads(self) -> None:
        """All it has is what was stored."""
        self.skew = self.draw.choice([-CLOCK_SKEW, CLOCK_SKEW])
        self.possession = self.begin_term()

    def publish(self) -> None:
        self.published = self.state.roots.bundle

    def a_service_reads(self) -> None:
        self.services[self.draw.randrange(2)] = self.published

    def somebody_hears(self) -> None:
        supervisor = self.draw.choice(self.supervisors)
        if supervisor.is_connected:
            supervisor.bundle = self.state.roots.bundle

    def somebody_renews(self) -> None:
        supervisor = self.draw.choice(self.supervisors)
        if supervisor.is_connected:
            self.supply(supervisor)

    def somebody_parts(self) -> None:
        self.draw.choice(self.supervisors).is_connected = False

    def somebody_is_back(self) -> None:
        supervisor = self.draw.choice(self.supervisors)
        if not supervisor.is_connected:
            supervisor.is_connected = True
            supervisor.bundle = self.state.roots.bundle
            self.known[supervisor.key] = supervisor.ends
            if self.time >= supervisor.ends:
                self.supply(supervisor)

    def somebody_new_comes(self) -> None:
        self.supervisors[self.draw.randrange(3)] = self.supply(Supervisor())

    def somebody_asks(self) -> None:
        self.requests += 1
        self.look(new_request(str(self.requests)))

    def look(self, request: Request | None = None) -> None:
        following = advance(self.state, self.facts(), now=self.time + self.skew, rules=Rules(), request=request)
        if following is None:
            return
        if following.roots.current != self.state.roots.current:
            self.issuers.append(following.roots.current.certificate_pem)
        self.state = following

    def facts(self) -> Facts:
        roots = self.state.roots
        judged = (roots.successor or roots.current).certificate_pem
        connected = [s for s in self.supervisors if s.is_connected]
        return Facts(
            is_published=self.published == roots.bundle,
            is_counted=True,
            refusing=tuple(str(i) for i, service in enumerate(self.services) if judged not in service),
            absent=sum(
                self.possession.may_hold(s.key, longest=self.state.longest)
                for s in self.supervisors
                if not s.is_connected
            ),
            unacknowledged=sum(s.bundle != roots.bundle for s in connected),
            old=sum(s.issuer != roots.current.certificate_pem for s in connected),
        )

    WEIGHTS = (
        (time_passes, 8),
        (look, 8),
        (publish, 4),
        (a_service_reads, 6),
        (somebody_hears, 6),
        (somebody_renews, 2),
        (somebody_is_back, 2),
        (somebody_parts, 1),
        (somebody_new_comes, 1),
        (another_replica_leads, 1),
        (somebody_asks, 1),
    )

    def step(self) -> None:
        acts, weights = zip(*self.WEIGHTS, strict=True)
        (act,) = self.draw.choices(acts, weights)
        act(self)

    # --------------------------------------------------------------------------------------------------- what must hold

    def check(self) -> None:
        issuer = self.state.roots.current.certificate_pem
        # By the clock of any peer, within the skew.
        in_use = [s for s in self.supervisors if self.time - CLOCK_SKEW < s.ends]
        for believed in (self.state.roots.bundle, self.published, *self.services):
            assert issuer in believed
            assert all(s.issuer in believed for s in in_use)
        for supervisor in self.supervisors:
            # One that never hears is waited for until the deadline; one that is away, until its leaf has ended.
            if supervisor.bundle == self.state.roots.bundle or (supervisor in in_use and not supervisor.is_connected):
                assert issuer in supervisor.bundle
        assert len(set(self.issuers)) == len(self.issuers)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_every_leaf_in_use_is_believed_by_whoever_it_is_shown_to_whatever_happens(seed: int) -> None:
    fleet = Fleet(random.Random(seed))
    for _ in range(_STEPS):
        fleet.step()
        fleet.check()


def test_the_fleet_goes_through_whole_rotations() -> None:
    """Else the property above would say little."""
    fleets = [Fleet(random.Random(seed)) for seed in range(20)]
    for fleet in fleets:
        for _ in range(_STEPS):
            fleet.step()
    assert sum(len(fleet.issuers) for fleet in fleets) > 3 * len(fleets)
