"""Who runs what, as an answer: states, order, totals, bounds, and that nothing but names and digests gets in."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from supervisor_middleware.distribution.attendance import Attendance, Leaf, Standing, Visits
from supervisor_middleware.distribution.ledger import Record, State, Wish
from supervisor_middleware.distribution.overview import (
    DEFAULT_ROWS,
    MAX_BYTES,
    MAX_ROWS,
    Filter,
    Row,
    Stand,
    after,
    filter_of,
    in_states,
    message_of,
    page_of,
    rows_of,
    stand_of,
    token_of,
    totals_of,
    troubled_first,
)
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.generation import Rank
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.wire.gen import distribution_pb2 as distribution
from supervisor_middleware.wire.gen import inspection_pb2 as pb

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER: Final = NOW + timedelta(minutes=5)
A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
LEAF: Final = Leaf(serial=1, begins_at=NOW, expires_at=NOW + timedelta(hours=24), issuer="a1" * 20)
BUNDLE: Final = f"sha256:{'d' * 64}"


def a_wish(digest: str = A, *, sequence: int = 3) -> Wish:
    return Wish(digest=digest, rank=Rank(epoch=7, sequence=sequence))


def a_record(state: State = State.ACTIVE, *, offered: str = "", **fields: Any) -> Record:
    wish = a_wish(offered) if offered else None
    return Record(key="k", state=state, offered=wish, connected_since=NOW, since=LATER, **fields)


def a_standing(record: Record | None = None, *, desired: str = A) -> Standing:
    visits = None if record is None else Visits(leaf=LEAF)
    return Standing(desired=a_wish(desired) if desired else None, record=record, visits=visits)


def a_sandbox(name: str = "agent", *, namespace: str = "team-a", uid: str = "") -> Sandbox:
    return Sandbox(namespace=namespace, name=name, uid=uid or f"uid-{name}", pod=f"{name}-0")


def rows(standings: Mapping[str, Standing]) -> tuple[Row, ...]:
    """Sandboxes by name, each with its standing."""
    sandboxes = [a_sandbox(name) for name in standings]
    by_key = {a_sandbox(name).key: standing for name, standing in standings.items()}
    return rows_of(sandboxes, by_key.__getitem__, wanted=Filter())


def told(standing: Standing) -> pb.Supervisor:
    (row,) = rows({"agent": standing})
    return message_of(row, trust_bundle=BUNDLE)


# ------------------------------------------------------------------------------------------------------------- states


@pytest.mark.parametrize(
    ("standing", "stand"),
    [
        (a_standing(), Stand.NOT_CONNECTED),
        (a_standing(a_record(active=A), desired=""), Stand.PENDING),
        (a_standing(a_record(State.IDLE, active=B)), Stand.PENDING),
        (a_standing(a_record(State.OFFERED, offered=B, active=C)), Stand.PENDING),
        (a_standing(a_record(State.OFFERED, offered=A, active=B)), Stand.OFFERED),
        (a_standing(a_record(State.PREPARED, offered=A, active=B)), Stand.PREPARED),
        (a_standing(a_record(State.WAITING, offered=A, active=B)), Stand.WAITING),
        (a_standing(a_record(State.REJECTED, offered=A, active=B, rejected=(A,))), Stand.REJECTED),
        (a_standing(a_record(State.IDLE, active=B, rejected=(A,))), Stand.REJECTED),
        (a_standing(a_record(State.ACTIVE, offered=A, active=A)), Stand.ACTIVE),
        (a_standing(a_record(State.IDLE, active=A)), Stand.ACTIVE),
    ],
)
def test_a_state_is_where_it_stands_with_what_it_should_run(standing: Standing, stand: Stand) -> None:
    assert stand_of(standing) is stand


def test_every_state_has_a_word_on_the_wire() -> None:
    names = {name.removeprefix("SUPERVISOR_STATE_") for name in pb.SupervisorState.keys()}  # noqa: SIM118 - no mapping
    assert names == {stand.value for stand in Stand} | {"UNSPECIFIED"}


# --------------------------------------------------------------------------------------------------------- one message


def test_all_that_is_known_of_a_supervisor_is_told() -> None:
    record = a_record(
        State.WAITING,
        offered=A,
        active=B,
        version="1.2.3",
        trust_bundle=BUNDLE,
        services=("terms", "redactor", "reviewer"),
        incapable=("redactor",),
        refusing=("reviewer",),
    )
    message = told(replace(a_standing(record), visits=Visits(leaf=LEAF, reconnects=4)))
    assert (message.namespace, message.sandbox, message.pod, message.pod_uid) == (
        "team-a",
        "agent",
        "agent-0",
        "uid-agent",
    )
    assert message.state == pb.SUPERVISOR_STATE_WAITING
    assert (message.desired.digest, message.desired.epoch, message.desired.sequence) == (A, 7, 3)
    assert (message.active_digest, message.prepared_digest) == (B, "")
    assert [(s.name, distribution.ServiceState.Name(s.state)) for s in message.services] == [
        ("terms", "SERVICE_STATE_UNREACHABLE"),
        ("redactor", "SERVICE_STATE_INCAPABLE"),
        ("reviewer", "SERVICE_STATE_REFUSING"),
    ]
    assert message.since.ToDatetime(UTC) == LATER
    assert message.connected_since.ToDatetime(UTC) == NOW
    assert (message.reconnects, message.version) == (4, "1.2.3")
    assert message.trust_bundle == pb.TRUST_BUNDLE_STATE_CURRENT
    assert message.certificate_expires_at.ToDatetime(UTC) == LEAF.expires_at
    assert message.certificate_issuer == LEAF.issuer


def test_what_was_accepted_and_is_not_served_is_told() -> None:
    assert told(a_standing(a_record(State.PREPARED, offered=A, active=B))).prepared_digest == A


def test_reasons_are_told_of_what_is_rejected_now_and_of_nothing_before() -> None:
    record = a_record(State.REJECTED, offered=A, rejected=(A,), reasons=("malformed", "unsupported"))
    assert list(told(a_standing(record)).rejection_reasons) == [
        distribution.REJECTION_REASON_MALFORMED,
        distribution.REJECTION_REASON_UNSUPPORTED,
    ]
    assert not told(a_standing(record, desired=B)).rejection_reasons


def test_what_was_wrong_with_a_supervisors_state_is_told() -> None:
    assert told(a_standing(a_record(defect="corrupt"))).state_defect == distribution.STATE_DEFECT_CORRUPT
    assert told(a_standing(a_record())).state_defect == distribution.STATE_DEFECT_UNSPECIFIED


def test_an_old_trust_bundle_is_told() -> None:
    outdated = told(a_standing(a_record(trust_bundle=f"sha256:{'e' * 64}")))
    assert outdated.trust_bundle == pb.TRUST_BUNDLE_STATE_OUTDATED


def test_of_one_that_left_is_told_when_and_what_it_showed() -> None:
    left = Standing(desired=a_wish(), record=None, visits=Visits(leaf=LEAF, reconnects=2, left_at=LATER))
    message = told(left)
    assert (message.since.ToDatetime(UTC), message.reconnects) == (LATER, 2)
    assert message.certificate_issuer == LEAF.issuer
    assert not message.HasField("connected_since")
    assert message.trust_bundle == pb.TRUST_BUNDLE_STATE_UNSPECIFIED


def test_of_one_that_never_came_nothing_is_made_up() -> None:
    message = told(a_standing())
    for absent in ("since", "connected_since", "certificate_expires_at"):
        assert absent not in {field.name for field, _ in message.ListFields()}


# --------------------------------------------------------------------------------------------------- rows and totals


def test_rows_are_of_the_namespace_and_sandbox_asked_for_and_sorted() -> None:
    sandboxes = [
        a_sandbox("b"),
        a_sandbox("a", uid="2"),
        a_sandbox("a", uid="1"),
        a_sandbox("a", namespace="team-b", uid="3"),
    ]

    def found(wanted: Filter) -> list[tuple[str, str, str]]:
        return [row.place for row in rows_of(sandboxes, lambda _: a_standing(), wanted=wanted)]

    everything = [("team-a", "a", "1"), ("team-a", "a", "2"), ("team-a", "b", "uid-b"), ("team-b", "a", "3")]
    assert found(Filter()) == everything
    assert found(Filter(namespace="team-a")) == everything[:3]
    assert found(Filter(namespace="team-a", sandbox="a")) == everything[:2]
    assert found(Filter(namespace="team-c")) == []


def test_totals_count_every_state() -> None:
    active = a_standing(a_record(active=A))
    totals = totals_of(rows({"a": active, "b": active, "c": a_standing(), "d": a_standing(a_record(active=B))}))
    assert (totals.sandboxes, totals.connected, totals.on_desired) == (4, 3, 2)
    assert {pb.SupervisorState.Name(s.state): s.count for s in totals.states} == {
        "SUPERVISOR_STATE_NOT_CONNECTED": 1,
        "SUPERVISOR_STATE_PENDING": 1,
        "SUPERVISOR_STATE_ACTIVE": 2,
    }


def test_a_filter_by_state_chooses_rows() -> None:
    some = rows({"a": a_standing(a_record(active=A)), "b": a_standing()})
    wanted = Filter(stands=frozenset({Stand.NOT_CONNECTED}))
    assert [row.sandbox.name for row in in_states(some, wanted)] == ["b"]
    assert [row.sandbox.name for row in in_states(some, Filter())] == ["a", "b"]


def test_those_in_trouble_come_first_in_a_watch() -> None:
    some = rows({"a": a_standing(a_record(active=A)), "b": a_standing(), "c": a_standing(a_record(active=A))})
    assert [row.sandbox.name for row in troubled_first(some)] == ["b", "a", "c"]


# ------------------------------------------------------------------------------------------------------------- bounds


def test_pages_together_hold_everything_once() -> None:
    some = rows({f"s{i:02}": a_standing() for i in range(10)})
    seen, token = list[str](), ""
    while True:
        rest = after(some, token)
        page = list(page_of(rest, limit=3, trust_bundle=BUNDLE))
        if not page:
            break
        seen += [s.sandbox for s in page]
        token = token_of(rest[len(page) - 1].place)
    assert seen == [f"s{i:02}" for i in range(10)]


@pytest.mark.parametrize("token", ["x", "a/b", "a/b/c/d"])
def test_a_token_of_somebody_else_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput, match="page_token"):
        after((), token)


def test_a_page_is_limited_in_rows() -> None:
    some = rows({f"s{i:04}": a_standing() for i in range(MAX_ROWS + 1)})
    assert len(list(page_of(some, limit=0, trust_bundle=BUNDLE))) == DEFAULT_ROWS
    assert len(list(page_of(some, limit=2**32 - 1, trust_bundle=BUNDLE))) == MAX_ROWS


def test_a_page_is_limited_in_bytes_whatever_supervisors_report() -> None:
    services = tuple(f"{i:03}".rjust(128, "x") for i in range(64))
    worst = a_standing(a_record(active=B, services=services, version="v" * 128))
    some = rows({f"s{i:04}": worst for i in range(1000)})
    page = list(page_of(some, limit=1000, trust_bundle=BUNDLE))
    assert 100 < len(page) < 1000
    size = pb.SupervisorList(supervisors=page).ByteSize()
    assert size < MAX_BYTES * 1.1 < MAX_STREAM_MESSAGE_BYTES


# ------------------------------------------------------------------------------------------------------------ filters


def test_a_filter_is_read_from_a_request() -> None:
    asked = pb.Filter(namespace="team-a", sandbox="a", states=[pb.SUPERVISOR_STATE_REJECTED])
    assert filter_of(asked) == Filter(namespace="team-a", sandbox="a", stands=frozenset({Stand.REJECTED}))
    assert filter_of(pb.Filter()) == Filter()


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (pb.Filter(namespace="Team"), "filter.namespace"),
        (pb.Filter(namespace="a/b"), "filter.namespace"),
        (pb.Filter(namespace="a", sandbox="b/../c"), "filter.sandbox"),
        (pb.Filter(sandbox="b"), "filter.namespace"),
        (pb.Filter(states=[pb.SUPERVISOR_STATE_UNSPECIFIED]), "filter.states"),
        (pb.Filter(states=[99]), "filter.states"),  # type: ignore[list-item]
    ],
)
def test_a_filter_that_is_none_is_refused(asked: pb.Filter, names: str) -> None:
    with pytest.raises(InvalidInput, match=names):
        filter_of(asked)


# --------------------------------------------------------------------------------------------------------- attendance


def test_attendance_counts_streams_after_the_first() -> None:
    attendance = Attendance()
    assert attendance.of("a") is None
    attendance.came("a", LEAF)
    assert attendance.of("a") == Visits(leaf=LEAF)
    attendance.left("a", at=NOW)
    assert attendance.of("a") == Visits(leaf=LEAF, left_at=NOW)
    renewed = replace(LEAF, expires_at=LATER)
    attendance.came("a", renewed)
    assert attendance.of("a") == Visits(leaf=renewed, reconnects=1)


def test_attendance_forgets_with_the_sandbox() -> None:
    attendance = Attendance()
    attendance.came("a", LEAF)
    attendance.forget("a")
    attendance.left("a", at=NOW)
    assert attendance.of("a") is None
