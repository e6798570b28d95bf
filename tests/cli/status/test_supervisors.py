"""Who runs what, in words: for people, for machines, and as a table."""

import io
from datetime import timedelta

import pytest

from supervisor_middleware.cli.rendering.tables import console
from supervisor_middleware.cli.status.supervisors import (
    age_of,
    is_good,
    joined,
    plain_supervisor,
    plain_totals,
    state_of,
    summary_of,
    why,
)
from supervisor_middleware.cli.status.tables import show
from supervisor_middleware.wire.gen import inspection_pb2 as pb
from tests.cli.status.answers import ABSENT, NOW, ONE, REJECTED, TWO, WAITING, a_supervisor, an_answer

TABLE = """\
no registrations and no policies

SANDBOX                 STATE         DESIRED       ACTIVE        AGE  REASON
team-a/agent            Active        111111111111  111111111111  90s  -
team-a/waits            Waiting       111111111111  222222222222  90s  terms unreachable, redactor incapable
team-a/rejects          Rejected      111111111111  222222222222  90s  DigestMismatch, Unsupported, old trust bundle
team-a/absent           NotConnected  111111111111  -               -  -
team-a/twins (twins-0)  Offered       111111111111  111111111111   2h  -
team-a/twins (twins-1)  Prepared      111111111111  111111111111   3d  -
team-a/new              Pending       -             -             90s  -

supervisors: 1/7 on desired, 1 NotConnected, 1 Pending, 1 Offered, 1 Prepared, 1 Waiting, 1 Rejected
"""


def test_people_get_a_table_and_a_summary() -> None:
    out = io.StringIO()
    answer = an_answer(
        a_supervisor(),
        WAITING,
        REJECTED,
        ABSENT,
        a_supervisor("twins", "OFFERED", age=timedelta(hours=2), pod="twins-0", pod_uid="1"),
        a_supervisor("twins", "PREPARED", age=timedelta(days=3), pod="twins-1", pod_uid="2"),
        a_supervisor("new", "PENDING", desired=None, active_digest=""),
    )
    show(console(out), (), answer)
    assert out.getvalue() == TABLE


def test_without_sandboxes_there_is_nothing_to_count() -> None:
    out = io.StringIO()
    show(console(out), (), an_answer())
    assert out.getvalue() == "no registrations and no policies\n\nno sandboxes\n"


@pytest.mark.parametrize(
    ("seconds", "age"),
    [
        (-5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172799, "47h"),
        (172800, "2d"),
    ],
)
def test_ages_are_as_kubectl_has_them(seconds: int, age: str) -> None:
    assert age_of(a_supervisor(age=timedelta(seconds=seconds)).since, now=NOW) == age


def test_every_state_and_reason_has_a_word() -> None:
    assert [state_of(pb.Supervisor(state=number)) for number in pb.SupervisorState.values()] == [
        "Unspecified",
        "NotConnected",
        "Pending",
        "Offered",
        "Prepared",
        "Waiting",
        "Rejected",
        "Active",
    ]
    assert why(REJECTED) == "DigestMismatch, Unsupported, old trust bundle"


def test_machines_get_the_same_fields_whatever_is_known() -> None:
    full, bare = plain_supervisor(WAITING), plain_supervisor(pb.Supervisor(namespace="team-a", sandbox="x"))
    assert full["status"].keys() == bare["status"].keys()
    assert full["status"] == {
        "state": "Waiting",
        "since": "2026-03-01T11:58:30Z",
        "pod": None,
        "desired": {"digest": ONE, "epoch": 7, "sequence": 3},
        "prepared": None,
        "active": TWO,
        "reasons": [],
        "services": [
            {"name": "terms", "state": "Unreachable"},
            {"name": "redactor", "state": "Incapable"},
        ],
        "connectedSince": None,
        "reconnects": 0,
        "version": None,
        "trustBundle": None,
        "certificate": {"expiresAt": None, "issuer": None},
        "stateDefect": None,
    }


def test_pages_are_joined_and_counts_are_the_last_ones() -> None:
    whole = joined([an_answer(a_supervisor("a"), remaining=1), an_answer(a_supervisor("b"), ABSENT)])
    assert [s.sandbox for s in whole.supervisors] == ["a", "b", "absent"]
    assert summary_of(whole.totals) == "1/2 on desired, 1 NotConnected"
    assert plain_totals(whole)["status"]["remaining"] == 0
    assert not is_good(whole)
    assert is_good(an_answer(a_supervisor()))
    assert is_good(an_answer())
