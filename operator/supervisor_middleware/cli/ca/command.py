"""`smw ca status` and `smw ca rotate`: read, ask, wait until it is heard, show, exit code."""

import asyncio
import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import typer
import yaml
from rich.live import Live

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.cli.ca.places import Place, Target, opened
from supervisor_middleware.cli.ca.words import Status, is_overdue, line, shown, waits_of
from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.rendering.tables import console
from supervisor_middleware.cli.status.joining import needs_at
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable
from supervisor_middleware.pki.rotation_requests import Request, Stage, new_request

HEARING: Final = timedelta(seconds=45)
"""How long the leader may take to hear of a request; it looks every 5 s, and another one may have to take over."""
_PAUSE: Final = 1.0
_FREE: Final = frozenset({Stage.STEADY.value, Stage.REVOKED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How an answer is shown."""

    output: Output = Output.TABLE
    is_watched: bool = False


def show(target: Target, how: Shown) -> int:
    """Show where the rotation stands. 0, or 1 if it is overdue or the CA that was supplied cannot be used.

    Raises:
        InvalidInput, Unavailable: nobody says.
    """
    return asyncio.run(_show(target, how))


def rotate(target: Target, *, force: bool) -> int:
    """Ask for a rotation, or (`force`) for the end of the present stage; wait until it is heard. 1: it did nothing.

    Raises:
        InvalidInput, Unavailable: nobody can be asked, or nobody heard.
    """
    return asyncio.run(_rotate(target, force=force))


async def _show(target: Target, how: Shown) -> int:
    async with opened(target) as place:
        status = await place.status()
        if how.is_watched:
            await _watch(place, status, how.output)
        _print(status, how.output)
        if how.output is Output.TABLE:
            await _tell_needs(target)
    return 1 if status["problem"] or is_overdue(status, now=utc_now()) else 0


async def _rotate(target: Target, *, force: bool) -> int:
    async with opened(target) as place:
        before = await place.status()
        if reason := _objection(before, force=force):
            typer.echo(f"smw: {reason}", err=True)
            return 1
        stage = Stage(before["stage"])
        request = new_request(
            f"{utc_now():%Y-%m-%dT%H:%M:%SZ}-{secrets.token_hex(4)}", force=stage if force else None
        )
        if force and stage is not Stage.STEADY:
            typer.echo(f"ending {stage.value} by force")
            for wait in waits_of(before):
                typer.echo(f"  it no longer waits for {wait}")
            if target.state is not None:
                typer.echo(
                    "  whoever has not followed when the old root goes needs a new join token: smw ca status names it"
                )
        await place.ask(request)
        after = await _heard(place, request)
        if (after["stage"], after["since"], after["roots"]) == (before["stage"], before["since"], before["roots"]):
            typer.echo("smw: the operator heard the request and did nothing: see smw ca status", err=True)
            return 1
        _print(after, Output.TABLE)
        return 0


async def _tell_needs(target: Target) -> None:
    """Standalone, a supervisor that a rotation has left behind needs a person."""
    if target.state is not None and (lines := await needs_at(target.state, now=utc_now())):
        typer.echo("\n" + "\n".join(lines))


def _objection(status: Status, *, force: bool) -> str:
    issuing = next(root for root in status["roots"] if root["role"] == "issuing")
    if issuing["origin"] == "supplied" and status["stage"] in _FREE:
        return "the CA was supplied from outside: renew it there, and the operator takes the new one in stages"
    if not force and status["stage"] not in _FREE:
        return (
            f"a rotation is under way: {status['stage']} since {status['since']}; smw ca status says what it waits "
            "for, smw ca rotate --force ends the stage all the same"
        )
    return ""


async def _heard(place: Place, request: Request) -> Status:
    try:
        async with asyncio.timeout(HEARING.total_seconds()):
            while True:
                status = await place.status()
                if status["request"] == request.identifier:
                    return status
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise Unavailable(
            f"nobody heard the request within {HEARING.total_seconds():.0f} s: does an operator lead? It stays "
            "there, and is heard by the next one that does"
        ) from None


class _View(Protocol):
    def update(self, status: Status) -> None: ...


async def _watch(place: Place, status: Status, output: Output) -> None:
    with _view(output) as view:
        before: Status = {}
        while True:
            if status != before:
                view.update(status)
                before = status
            await asyncio.sleep(_PAUSE)
            try:
                status = await place.status()
            except SupervisorMiddlewareError as error:
                typer.echo(f"smw: {error}", err=True)


@contextmanager
def _view(output: Output) -> Iterator[_View]:
    if output is Output.TABLE and sys.stdout.isatty():
        with Live(console=console(), auto_refresh=False) as live:
            yield _Screen(live)
    else:
        yield _Lines(output)


@dataclass(frozen=True, slots=True)
class _Screen:
    live: Live

    def update(self, status: Status) -> None:
        self.live.update(shown(status, now=utc_now()), refresh=True)


@dataclass(frozen=True, slots=True)
class _Lines:
    output: Output

    def update(self, status: Status) -> None:
        match self.output:
            case Output.JSON:
                text = json.dumps(status)
            case Output.YAML:
                text = "---\n" + yaml.safe_dump(status, sort_keys=False).rstrip()
            case Output.TABLE:
                text = line(status)
        print(text, flush=True)


def _print(status: Status, output: Output) -> None:
    match output:
        case Output.JSON:
            typer.echo(json.dumps(status, indent=2))
        case Output.YAML:
            typer.echo(yaml.safe_dump(status, sort_keys=False), nl=False)
        case Output.TABLE:
            console().print(shown(status, now=utc_now()))
