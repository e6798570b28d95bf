"""How long a candidate waits, and for whom: a table for one candidate, stories for one that takes another's place."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.limits import PLATFORM_PATIENCE
from supervisor_middleware.model.manifest import Binding
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.waiting import (
    NO_TIME,
    NOT_WAITING,
    Activate,
    Decision,
    Wait,
    Waits,
    asks_no_more,
    decide,
    waits_of,
)
from tests.builders import a_connection, a_service
from tests.supervisor.builders import stage

READY, DOWN, INCAPABLE = ServiceState.READY, ServiceState.UNREACHABLE, ServiceState.INCAPABLE
MINUTE = timedelta(minutes=1)
ROOT, NEXT_ROOT = (f"-----BEGIN CERTIFICATE-----\n{n}\n-----END CERTIFICATE-----\n" for n in "AB")


def needs(*identifiers: str, limit: int = 100) -> tuple[Binding, ...]:
    (binding,) = a_service().needs
    return tuple(replace(binding, id=identifier, max_body_bytes=limit) for identifier in identifiers)


def on(
    name: str, *, deadline: timedelta | None = None, bindings: tuple[str, ...] = ("b",), limit: int = 100
) -> Service:
    connection = a_connection(f"https://{name}.test:443")
    return a_service(name, connection=connection, needs=needs(*bindings, limit=limit), activation_deadline=deadline)


def tenants(service: Service, *, mark: str = "") -> tuple[Stage, ...]:
    return tuple(
        stage(f"{service.name}-{n.id}", service=service.name, binding=n.id, config={"mark": mark})
        for n in service.needs
    )


def baseline(service: Service, *, mark: str = "") -> tuple[Stage, ...]:
    return tuple(replace(s, key=f"platform:{s.key}", policy="baseline") for s in tenants(service, mark=mark))


def of(*services: Service, mark: str = "") -> Generation:
    """Tenants' stages on these services."""
    return Generation(stages=tuple(s for service in services for s in tenants(service, mark=mark)), services=services)


def under(generation: Generation, *services: Service, mark: str = "") -> Generation:
    """The same with a baseline on these services before it."""
    laid = tuple(s for service in services for s in baseline(service, mark=mark))
    names = {s.name for s in services}
    others = tuple(s for s in generation.services if s.name not in names)
    return Generation(stages=(*laid, *generation.stages), services=(*others, *services))


OLD, NEW, GUARD = on("old"), on("new"), on("guard")


@pytest.mark.parametrize(
    ("running", "candidate", "states", "waited", "expected"),
    [
        pytest.param(None, of(NEW), {}, NO_TIME, Activate(missing=("new",)), id="none runs: at once"),
        pytest.param(None, of(), {}, NO_TIME, Activate(), id="none runs, nothing needed"),
        pytest.param(of(OLD), of(), {}, NO_TIME, Activate(), id="fewer services"),
        pytest.param(of(OLD), of(OLD, NEW), {"old": READY, "new": READY}, NO_TIME, Activate(), id="all up"),
        pytest.param(
            of(OLD),
            of(OLD, NEW),
            {"old": READY, "new": DOWN},
            NO_TIME,
            Wait(blocking=("new",), remaining=None),
            id="new one down: wait",
        ),
        pytest.param(
            of(OLD),
            of(OLD, NEW),
            {"old": READY, "new": INCAPABLE},
            24 * 60 * MINUTE,
            Wait(blocking=("new",), remaining=None),
            id="no deadline: for ever",
        ),
        pytest.param(
            of(OLD), of(NEW), {}, NO_TIME, Wait(blocking=("new",), remaining=None), id="nothing known of it: down"
        ),
        pytest.param(
            of(OLD), of(OLD, mark="B"), {"old": DOWN}, NO_TIME, Activate(missing=("old",)), id="policy-only change"
        ),
        pytest.param(
            of(OLD),
            of(replace(OLD, activation_deadline=MINUTE)),
            {"old": DOWN},
            NO_TIME,
            Activate(missing=("old",)),
            id="only the deadline changes",
        ),
        pytest.param(
            of(on("old", bindings=("b", "c"), limit=100)),
            of(on("old", limit=99)),
            {"old": DOWN},
            NO_TIME,
            Activate(missing=("old",)),
            id="less is needed of a known service",
        ),
        pytest.param(
            of(OLD),
            of(replace(OLD, connection=replace(OLD.connection, timeout=timedelta(seconds=9)))),
            {"old": DOWN},
            NO_TIME,
            Activate(missing=("old",)),
            id="calls of a known service may take another time",
        ),
        pytest.param(
            of(OLD),
            of(on("old", bindings=("b", "c"))),
            {"old": INCAPABLE},
            NO_TIME,
            Wait(blocking=("old",), remaining=None),
            id="more is needed of a known service",
        ),
        pytest.param(
            of(OLD),
            of(on("old", limit=101)),
            {"old": INCAPABLE},
            NO_TIME,
            Wait(blocking=("old",), remaining=None),
            id="a higher limit is needed of a known service",
        ),
        pytest.param(
            of(OLD),
            of(replace(OLD, connection=a_connection("https://moved.test:443"))),
            {"old": DOWN},
            NO_TIME,
            Wait(blocking=("old",), remaining=None),
            id="a known service moved",
        ),
        pytest.param(
            of(OLD),
            of(OLD, on("new", deadline=MINUTE)),
            {"old": READY, "new": DOWN},
            MINUTE / 4,
            Wait(blocking=("new",), remaining=MINUTE * 3 / 4),
            id="within the deadline",
        ),
        pytest.param(
            of(OLD),
            of(OLD, on("new", deadline=MINUTE)),
            {"old": DOWN, "new": DOWN},
            MINUTE,
            Activate(missing=("old", "new")),
            id="the deadline ends the wait",
        ),
        pytest.param(
            of(OLD), of(on("new", deadline=NO_TIME)), {}, NO_TIME, Activate(missing=("new",)), id="0s never waits"
        ),
        pytest.param(
            of(OLD),
            of(on("a", deadline=MINUTE), on("b", deadline=2 * MINUTE)),
            {},
            MINUTE / 2,
            Wait(blocking=("a", "b"), remaining=MINUTE * 3 / 2),
            id="the longest deadline counts",
        ),
        pytest.param(
            of(OLD),
            of(on("a", deadline=MINUTE), on("b", deadline=2 * MINUTE)),
            {},
            MINUTE * 3 / 2,
            Wait(blocking=("b",), remaining=MINUTE / 2),
            id="one that is over blocks no longer",
        ),
        pytest.param(
            of(OLD),
            of(on("a", deadline=MINUTE), on("b")),
            {},
            NO_TIME,
            Wait(blocking=("a", "b"), remaining=None),
            id="one without a deadline has no end",
        ),
        pytest.param(
            of(OLD),
            of(on("a", deadline=MINUTE), on("b")),
            {"b": READY},
            MINUTE,
            Activate(missing=("a",)),
            id="the patient one is there, the other one's time is over",
        ),
        pytest.param(
            of(OLD),
            under(of(OLD, on("new", deadline=NO_TIME)), on("guard", deadline=5 * MINUTE)),
            {"old": READY},
            NO_TIME,
            Wait(blocking=("guard",), remaining=5 * MINUTE),
            id="a tenant's 0s does not shorten the baseline's wait",
        ),
    ],
)
def test_whether_a_candidate_is_activated(
    running: Generation | None,
    candidate: Generation,
    states: dict[str, ServiceState],
    waited: timedelta,
    expected: Decision,
) -> None:
    waits = waits_of(candidate, running=running, before=NOT_WAITING, now=1000.0)
    now = 1000.0 + waited.total_seconds()
    assert decide(running=running, candidate=candidate, states=states, waits=waits, now=now) == expected


class Story:
    """One supervisor that receives candidates one after another; services are up if `up` has them."""

    def __init__(self, running: Generation, *up: str) -> None:
        self.running = running
        self.states = dict.fromkeys(up, READY)
        self.waits: Waits = NOT_WAITING
        self.candidate = running

    def receives(self, candidate: Generation, *, at: float) -> None:
        self.waits = waits_of(candidate, running=self.running, before=self.waits, now=at)
        self.candidate = candidate

    def at(self, now: float) -> Decision:
        decided = decide(
            running=self.running, candidate=self.candidate, states=self.states, waits=self.waits, now=now
        )
        if isinstance(decided, Activate):
            self.running, self.waits = self.candidate, NOT_WAITING
        return decided


PATIENCE = PLATFORM_PATIENCE.total_seconds()


def test_an_edit_does_not_begin_the_wait_anew() -> None:
    story = Story(of(OLD), "old")
    story.receives(of(OLD, on("new", deadline=MINUTE)), at=0)
    story.receives(of(OLD, on("new", deadline=MINUTE), mark="B"), at=50)
    assert story.at(50) == Wait(blocking=("new",), remaining=timedelta(seconds=10))
    story.receives(of(OLD, on("new", deadline=MINUTE, bindings=("b", "c")), mark="C"), at=59)
    assert story.at(60) == Activate(missing=("new",))


def test_another_service_of_the_same_name_is_waited_for_from_its_own_receipt() -> None:
    story = Story(of(OLD), "old")
    story.receives(of(OLD, on("new", deadline=MINUTE)), at=0)
    moved = replace(on("new", deadline=MINUTE), connection=a_connection("https://moved.test:443"))
    story.receives(of(OLD, moved), at=59)
    assert story.at(60) == Wait(blocking=("new",), remaining=timedelta(seconds=59))


def test_a_deadline_that_is_given_later_counts_from_the_first_receipt() -> None:
    story = Story(of(OLD), "old")
    story.receives(of(OLD, NEW), at=0)
    assert isinstance(story.at(7200), Wait)
    story.receives(of(OLD, on("new", deadline=MINUTE)), at=7200)
    assert story.at(7200) == Activate(missing=("new",))


def test_a_tenants_wait_holds_back_no_baseline_for_longer_than_the_platforms_patience() -> None:
    story = Story(under(of(OLD), GUARD), "old", "guard")
    story.receives(under(of(OLD, NEW), GUARD), at=0)
    assert story.at(10) == Wait(blocking=("new",), remaining=None)
    story.receives(under(of(OLD, NEW), GUARD, mark="B"), at=10)
    assert story.at(10) == Wait(blocking=("new",), remaining=timedelta(seconds=PATIENCE - 10))
    assert story.at(PATIENCE) == Activate(missing=("new",))


def test_a_service_that_has_been_missing_for_long_holds_back_no_baseline_at_all() -> None:
    story = Story(under(of(OLD), GUARD), "old", "guard")
    story.receives(under(of(OLD, NEW), GUARD), at=0)
    story.receives(under(of(OLD, NEW), GUARD, mark="B"), at=3600)
    assert story.at(3600) == Activate(missing=("new",))


def test_a_tenants_own_change_stays_blocked_by_its_own_service() -> None:
    story = Story(under(of(OLD), GUARD), "old", "guard")
    story.receives(under(of(OLD, NEW), GUARD), at=0)
    story.receives(under(of(OLD, NEW, mark="B"), GUARD), at=3600)
    assert story.at(7200) == Wait(blocking=("new",), remaining=None)


def test_a_tenant_that_needs_more_of_the_baselines_service_holds_back_nobody_else() -> None:
    story = Story(under(of(OLD), GUARD), "old")
    story.states["guard"] = INCAPABLE
    greedy = on("guard", bindings=("b", "more"))
    candidate = under(of(OLD), GUARD, mark="B")
    story.receives(
        replace(
            candidate, services=(OLD, greedy), stages=(*candidate.stages, *tenants(on("guard", bindings=("more",))))
        ),
        at=0,
    )
    assert story.at(0) == Wait(blocking=("guard",), remaining=PLATFORM_PATIENCE)


def test_what_the_baseline_newly_needs_is_waited_for_as_the_baseline_says() -> None:
    story = Story(of(OLD), "old")
    story.receives(under(of(OLD), GUARD), at=0)
    assert story.at(10 * PATIENCE) == Wait(blocking=("guard",), remaining=None)
    story.receives(under(of(OLD, mark="B"), GUARD), at=10 * PATIENCE)
    assert story.at(10 * PATIENCE) == Wait(blocking=("guard",), remaining=None)


def test_a_baseline_that_moves_to_the_other_end_is_a_changed_baseline() -> None:
    first, tenant = under(of(OLD), GUARD), tenants(OLD)
    last = replace(first, stages=(*tenant, *baseline(GUARD), *tenants(NEW)), services=(OLD, NEW, GUARD))
    story = Story(first, "old", "guard")
    story.receives(last, at=0)
    assert story.at(0) == Wait(blocking=("new",), remaining=PLATFORM_PATIENCE)
    alone = Story(replace(first, stages=baseline(GUARD)), "guard")
    alone.receives(replace(last, stages=(*tenants(NEW), *baseline(GUARD))), at=0)
    assert alone.at(0) == Wait(blocking=("new",), remaining=None)


def test_a_baseline_that_is_reached_in_another_way_is_a_changed_baseline() -> None:
    story = Story(under(of(OLD), GUARD), "old", "guard")
    moved = replace(GUARD, connection=a_connection("https://moved.test:443"))
    story.receives(under(of(OLD, NEW), moved), at=0)
    assert story.at(0) == Wait(blocking=("new",), remaining=PLATFORM_PATIENCE)


def rooted(service: Service, pem: str) -> Service:
    return replace(service, connection=replace(service.connection, ca_bundle_pem=pem))


@pytest.mark.parametrize(
    ("before", "after", "remaining"),
    [
        (ROOT, ROOT, None),
        (ROOT, ROOT + NEXT_ROOT, None),
        (ROOT + NEXT_ROOT, NEXT_ROOT + ROOT, None),
        (ROOT + NEXT_ROOT, NEXT_ROOT, PLATFORM_PATIENCE),
        (ROOT, "", PLATFORM_PATIENCE),
        ("", ROOT, PLATFORM_PATIENCE),
    ],
)
def test_a_root_that_is_taken_away_is_held_back_by_nobody(
    before: str, after: str, remaining: timedelta | None
) -> None:
    story = Story(of(rooted(OLD, before)), "old")
    story.receives(of(rooted(OLD, after), NEW), at=0)
    assert story.at(0) == Wait(blocking=("new",), remaining=remaining)


def test_a_registration_that_is_taken_away_is_held_back_by_nobody() -> None:
    story = Story(of(OLD, on("leaky")))
    gone = replace(tenants(on("leaky"))[0], service=None, unresolved=Unresolved.REGISTRATION_MISSING)
    candidate = of(OLD)
    story.receives(under(replace(candidate, stages=(*candidate.stages, gone)), GUARD), at=0)
    assert story.at(0) == Wait(blocking=("guard",), remaining=PLATFORM_PATIENCE)
    assert story.at(PATIENCE) == Activate(missing=("old", "guard"))
    story.receives(
        replace(
            story.running, stages=(*story.running.stages, *tenants(NEW)), services=(*story.running.services, NEW)
        ),
        at=100,
    )
    assert story.at(100) == Wait(blocking=("new",), remaining=None)


def test_who_has_waited_for_long_enough_is_overdue() -> None:
    story = Story(under(of(OLD), GUARD), "old", "guard")
    story.receives(under(of(OLD, NEW), GUARD), at=0)
    assert not story.waits.is_overdue(now=3600)
    story.receives(under(of(OLD, NEW), GUARD, mark="B"), at=3600)
    assert not story.waits.is_overdue(now=3600 + PATIENCE - 1)
    assert story.waits.is_overdue(now=3600 + PATIENCE)


def test_nothing_of_a_service_that_is_not_connected_is_known() -> None:
    assert not asks_no_more(NEW, of=None)
    assert asks_no_more(NEW, of=NEW)


edits = st.lists(
    st.tuples(
        st.floats(min_value=0.1, max_value=30),
        st.lists(st.sampled_from("abcd"), unique=True, max_size=3),
        st.sampled_from([None, NO_TIME, MINUTE, 60 * MINUTE]),
        st.sampled_from(["", "x", "y"]),
    ),
    min_size=1,
    max_size=20,
)


@given(edits)
def test_whatever_tenants_do_a_baseline_lands_in_time(
    tenant: list[tuple[float, list[str], timedelta | None, str]],
) -> None:
    """No service of a tenant's is ever there; the baseline changes in the first candidate."""
    story, now = Story(under(of(OLD), GUARD), "old", "guard"), 0.0
    for pause, names, deadline, mark in tenant:
        services = [on(n, deadline=deadline) for n in names]
        story.receives(under(of(OLD, *services, mark=mark), GUARD, mark="new"), at=now)
        now += pause
        if isinstance(story.at(now), Activate):
            return
        assert now < PATIENCE
    assert isinstance(story.at(PATIENCE), Activate)


@given(edits)
def test_whatever_tenants_do_a_baselines_deadline_is_kept(
    tenant: list[tuple[float, list[str], timedelta | None, str]],
) -> None:
    """The baseline's service is never there: its entry follows `on_error` when the platform said, not before."""
    deadline = 2 * MINUTE
    story, now = Story(of(OLD), "old"), 0.0
    for pause, names, theirs, mark in tenant:
        services = [on(n, deadline=theirs) for n in names]
        story.receives(under(of(OLD, *services, mark=mark), on("guard", deadline=deadline)), at=now)
        now += pause
        is_over = now >= deadline.total_seconds()
        assert isinstance(story.at(now), Activate) is is_over
        if is_over:
            return
