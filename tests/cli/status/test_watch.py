"""`smw status --watch`: a line or a document a change, a table that is drawn anew, and an operator that comes back."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import yaml
from rich.console import Console

from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.status.asking import GaveWay
from supervisor_middleware.cli.status.watch import Documents, Lines, Table, View, follow, viewing
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.wire.gen import inspection_pb2 as pb
from tests.cli.status.answers import ABSENT, NOW, TWO, WAITING, a_supervisor, an_answer

LATER = NOW + timedelta(seconds=7)
AGENT = a_supervisor()


# -------------------------------------------------------------------------------------------------------------- views


def lines(*answers: pb.SupervisorList) -> list[str]:
    out = io.StringIO()
    view = Lines(out=out, err=io.StringIO())
    for answer in answers:
        view.show(answer)
    return out.getvalue().splitlines()


def test_the_first_answer_is_a_line_a_supervisor_and_a_summary() -> None:
    assert lines(an_answer(AGENT, ABSENT)) == [
        "2026-03-01T12:00:00Z  team-a/agent  Active  desired 111111111111  active 111111111111",
        "2026-03-01T12:00:00Z  team-a/absent  NotConnected  desired 111111111111  active -",
        "2026-03-01T12:00:00Z  1/2 on desired, 1 NotConnected",
    ]


def test_then_only_what_changed_is_told() -> None:
    moved = a_supervisor("agent", "OFFERED", desired=pb.Generation(digest=TWO))
    told = lines(an_answer(AGENT, ABSENT), an_answer(moved, ABSENT, at=LATER), an_answer(moved, ABSENT, at=LATER))
    assert told[3:] == [
        "2026-03-01T12:00:07Z  team-a/agent  Active -> Offered  desired 222222222222  active 111111111111",
        "2026-03-01T12:00:07Z  0/2 on desired, 1 NotConnected, 1 Offered",
    ]


def test_what_people_should_know_besides_is_told_too() -> None:
    (line, _) = lines(an_answer(WAITING))
    assert line.endswith("active 222222222222  terms unreachable, redactor incapable")


def test_a_sandbox_that_is_gone_is_told() -> None:
    assert lines(an_answer(AGENT, ABSENT), an_answer(AGENT, at=LATER))[3:] == [
        "2026-03-01T12:00:07Z  team-a/absent  NotConnected -> Gone",
        "2026-03-01T12:00:07Z  1/1 on desired",
    ]


def test_who_is_not_among_the_first_of_very_many_is_not_gone() -> None:
    told = lines(
        an_answer(AGENT, ABSENT), an_answer(ABSENT, remaining=1, at=LATER), an_answer(AGENT, ABSENT, at=LATER)
    )
    assert not [line for line in told if "Gone" in line]
    assert len([line for line in told if "team-a/agent" in line]) == 1


def test_an_interruption_is_said_apart() -> None:
    for view in (Lines, lambda **to: Documents(Output.JSON, **to)):
        out, err = io.StringIO(), io.StringIO()
        made: View = view(out=out, err=err)
        made.interrupted("operator: gone")
        assert (out.getvalue(), err.getvalue()) == ("", "smw: operator: gone\n")


def test_machines_get_a_document_a_change_and_the_totals() -> None:
    shown: dict[Output, list[Any]] = {}
    for output in (Output.JSON, Output.YAML):
        out = io.StringIO()
        view = Documents(output, out=out, err=io.StringIO())
        for answer in (an_answer(AGENT, ABSENT), an_answer(AGENT)):
            view.show(answer)
        text = out.getvalue()
        read = map(json.loads, text.splitlines()) if output is Output.JSON else yaml.safe_load_all(text)
        shown[output] = list(read)
    assert shown[Output.JSON] == shown[Output.YAML]
    assert [(d["kind"], d["name"]) for d in shown[Output.JSON]] == [
        ("Supervisor", "agent"),
        ("Supervisor", "absent"),
        ("Supervisors", None),
        ("Supervisor", "absent"),
        ("Supervisors", None),
    ]
    assert shown[Output.JSON][3]["status"]["state"] == "Gone"
    assert shown[Output.JSON][4]["status"]["onDesired"] == 1


def frame(table: Table, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(table.frame())
    return [line.rstrip() for line in captured.get().splitlines()]


def a_table(*, width: int = 100, height: int = 12) -> tuple[Table, Console]:
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    return Table(console), console


def test_a_terminal_gets_a_table_and_how_many_there_is_no_room_for() -> None:
    table, console = a_table(height=7)
    assert frame(table, console) == ["waiting for the operator's answer ..."]
    table.show(an_answer(ABSENT, *(a_supervisor(f"s{i}") for i in range(5)), remaining=10))
    assert frame(table, console) == [
        "SANDBOX        STATE         DESIRED       ACTIVE        AGE  REASON",
        "team-a/absent  NotConnected  111111111111  -               -  -",
        "team-a/s0      Active        111111111111  111111111111  90s  -",
        "",
        "supervisors: 5/16 on desired, 1 NotConnected (and 14 more)",
    ]


def test_what_is_old_by_now_says_so_until_the_next_answer() -> None:
    table, console = a_table()
    table.show(an_answer(AGENT))
    table.interrupted("operator 127.0.0.1:8443: UNAVAILABLE: gone")
    assert frame(table, console)[-1] == "not up to date: operator 127.0.0.1:8443: UNAVAILABLE: gone"
    table.show(an_answer(AGENT))
    assert frame(table, console)[-1] == "supervisors: 1/1 on desired"


def test_a_narrow_terminal_breaks_no_row() -> None:
    table, console = a_table(width=30)
    table.show(an_answer(WAITING))
    table.interrupted("x" * 100)
    shown = frame(table, console)
    assert len(shown) == 5
    assert shown[1].startswith("team-a/waits  Waiting")
    assert all(len(line) <= 30 for line in shown)


async def test_the_view_is_what_the_output_can_show() -> None:
    out = io.StringIO()
    for output, kind in ((Output.TABLE, Lines), (Output.JSON, Documents), (Output.YAML, Documents)):
        async with viewing(output, out=out, err=out) as view:
            assert isinstance(view, kind)


# ---------------------------------------------------------------------------------------------------------- following


class FakeView:
    def __init__(self) -> None:
        self.seen = list[str]()

    def show(self, answer: pb.SupervisorList) -> None:
        self.seen.append(answer.supervisors[0].sandbox)

    def interrupted(self, reason: str) -> None:
        self.seen.append(reason)


class Script:
    """Connections in turn: what each tells, and how it ends; an error first is that of opening it."""

    def __init__(self, *connections: Sequence[str | Exception]) -> None:
        self.connections = list(connections)

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[Any]:
        events = list(self.connections.pop(0))
        if isinstance(events[0], Exception):
            raise events[0]
        self.events = events
        yield self

    async def changes(self, _: pb.Filter) -> AsyncGenerator[pb.SupervisorList]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield an_answer(a_supervisor(event))


async def followed(*connections: Sequence[str | Exception]) -> tuple[list[str], Exception]:
    """What was seen until it gave up."""
    view, script = FakeView(), Script(*connections)
    with pytest.raises((Unavailable, Untrusted, InvalidInput)) as caught:
        async with asyncio.timeout(5):
            await follow(script.opening, pb.Filter(), view, retry=timedelta())
    return view.seen, caught.value


GONE, EXPIRED, NEVER = Unavailable("gone"), Untrusted("expired"), InvalidInput("no good")


async def test_nobody_there_from_the_beginning_ends_it() -> None:
    assert await followed([GONE]) == ([], GONE)
    assert await followed([EXPIRED]) == ([], EXPIRED)


async def test_an_operator_that_goes_is_waited_for() -> None:
    seen, error = await followed(["a", GONE], [GONE], [GONE], ["b", GONE], [NEVER])
    assert (seen, error) == (["a", "gone", "gone", "gone", "b", "gone"], NEVER)


async def test_an_expired_token_is_renewed_once() -> None:
    seen, error = await followed(["a", EXPIRED], ["b", EXPIRED], [EXPIRED])
    assert (seen, error) == (["a", "expired", "b", "expired"], EXPIRED)


async def test_a_watch_that_gave_way_to_a_newer_one_does_not_take_the_place_of_another() -> None:
    gave_way = GaveWay("a newer one")
    assert await followed(["a", gave_way]) == (["a"], gave_way)
