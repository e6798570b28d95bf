"""`smw status --watch`: who runs what, live. A table on a terminal; elsewhere a line a change, or a JSON document."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TextIO

import yaml
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.status.asking import GaveWay, Inspector
from supervisor_middleware.cli.status.supervisors import (
    GONE,
    plain_supervisor,
    plain_totals,
    state_of,
    summary_of,
    title_of,
    why,
)
from supervisor_middleware.cli.status.tables import summary, supervisors
from supervisor_middleware.errors import Unavailable, Untrusted
from supervisor_middleware.model.canonical import short
from supervisor_middleware.wire.gen import inspection_pb2 as pb

RETRY: Final = timedelta(seconds=2)
_TICK: Final = 1.0
_FRAME_LINES: Final = 5
"""Of the terminal's height: columns' names, an empty line, the summary, what is amiss, the cursor."""


class View(Protocol):
    """Who is shown answers."""

    def show(self, answer: pb.SupervisorList) -> None:
        """The newest answer."""

    def interrupted(self, reason: str) -> None:
        """There is none for the moment; another attempt follows."""


Opening = Callable[[], AbstractAsyncContextManager[Inspector]]


async def follow(opening: Opening, wanted: pb.Filter, view: View, *, retry: timedelta = RETRY) -> None:
    """Show every answer, for ever. An operator that stops answering is looked for again: another may lead.

    Raises:
        GaveWay: a newer watch has the place of this one.
        Unavailable: nobody could be asked, from the beginning.
        Untrusted: the token proves nothing, or its bearer may not; a new one too.
    """
    is_served = is_known = False
    while True:
        try:
            async with opening() as inspector:
                async for answer in inspector.changes(wanted):
                    is_served = is_known = True
                    view.show(answer)
        except Unavailable as error:
            if not is_served or isinstance(error, GaveWay):
                raise
            view.interrupted(str(error))
        except Untrusted as error:
            if not is_known:
                raise
            is_known = False
            view.interrupted(str(error))
        await asyncio.sleep(retry.total_seconds())


@asynccontextmanager
async def viewing(output: Output, *, out: TextIO, err: TextIO) -> AsyncIterator[View]:
    """The view for `output`, on `out`."""
    if output is not Output.TABLE:
        yield Documents(output, out=out, err=err)
    elif not out.isatty():
        yield Lines(out=out, err=err)
    else:
        terminal = Console(file=out, highlight=False, markup=False, emoji=False)
        table = Table(terminal)
        ticking = asyncio.create_task(_tick(table))
        try:
            with table.live:
                yield table
        finally:
            ticking.cancel()
            if table.is_told:
                # The alternate screen goes, and what it showed last with it.
                terminal.print(table.frame())


class Table:
    """A table that is drawn anew, in place. Those first that do not run what they should; the rest as room is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._answer: pb.SupervisorList | None = None
        self._received = 0.0
        self._problem = ""
        # A screen of its own: whatever is drawn in place breaks when the terminal's size changes.
        self.live = Live(console=console, screen=True, auto_refresh=False, get_renderable=self.frame)

    @property
    def is_told(self) -> bool:
        """Whether there was an answer."""
        return self._answer is not None

    def show(self, answer: pb.SupervisorList) -> None:
        """The newest answer."""
        self._answer, self._received, self._problem = answer, time.monotonic(), ""
        self.live.refresh()

    def interrupted(self, reason: str) -> None:
        """What is shown is old by now."""
        self._problem = reason
        self.live.refresh()

    def frame(self) -> Group:
        """What stands on the terminal now."""
        answer = self._answer
        if answer is None:
            return Group(_cut(Text("waiting for the operator's answer ...")))
        shown = answer.supervisors[: max(1, self._console.size.height - _FRAME_LINES)]
        # Ages go on between answers, by our own clock from when the answer came.
        now = answer.taken_at.ToDatetime(UTC) + timedelta(seconds=time.monotonic() - self._received)
        hidden = answer.remaining + len(answer.supervisors) - len(shown)
        last = summary(answer) + Text(f" (and {hidden} more)" if hidden else "")
        amiss = [Text(f"not up to date: {self._problem}", style="red")] if self._problem else []
        return Group(*map(_cut, (*supervisors(shown, now=now).split("\n"), Text(), last, *amiss)))


class Lines:
    """One line a change."""

    def __init__(self, *, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._changes = Changes(_told)
        self._summary = ""

    def show(self, answer: pb.SupervisorList) -> None:
        """What is new in it."""
        when = answer.taken_at.ToDatetime(UTC)
        for supervisor, before in self._changes.of(answer):
            self._say(when, _line(supervisor, before=before))
        if (text := summary_of(answer.totals)) != self._summary:
            self._summary = text
            self._say(when, text)

    def interrupted(self, reason: str) -> None:
        """Said apart."""
        print(f"smw: {reason}", file=self._err, flush=True)

    def _say(self, when: datetime, text: str) -> None:
        print(f"{when:%Y-%m-%dT%H:%M:%SZ}  {text}", file=self._out, flush=True)


class Documents:
    """JSON lines, or YAML documents: each supervisor that changed, then the totals."""

    def __init__(self, output: Output, *, out: TextIO, err: TextIO) -> None:
        self._output, self._out, self._err = output, out, err
        self._changes = Changes(lambda supervisor: supervisor.SerializeToString(deterministic=True))

    def show(self, answer: pb.SupervisorList) -> None:
        """What is new in it."""
        for supervisor, _ in self._changes.of(answer):
            document = plain_supervisor(supervisor)
            if supervisor.state == pb.SUPERVISOR_STATE_UNSPECIFIED:
                document["status"]["state"] = GONE
            self._say(document)
        self._say(plain_totals(answer))

    def interrupted(self, reason: str) -> None:
        """Said apart."""
        print(f"smw: {reason}", file=self._err, flush=True)

    def _say(self, document: Mapping[str, Any]) -> None:
        if self._output is Output.JSON:
            print(json.dumps(document), file=self._out, flush=True)
        else:
            print("---", yaml.safe_dump(document, sort_keys=False), sep="\n", end="", file=self._out, flush=True)


class Changes:
    """What differs from answer to answer."""

    def __init__(self, told: Callable[[pb.Supervisor], object]) -> None:
        """`told` is what a change is a change of."""
        self._told = told
        self._known: dict[tuple[str, str, str], pb.Supervisor] = {}

    def of(self, answer: pb.SupervisorList) -> Iterator[tuple[pb.Supervisor, pb.Supervisor | None]]:
        """Those that are new or changed, and how they were. One that is gone has no state."""
        present = {(s.namespace, s.sandbox, s.pod_uid): s for s in answer.supervisors}
        for key, supervisor in present.items():
            before = self._known.get(key)
            if before is None or self._told(before) != self._told(supervisor):
                yield supervisor, before
        if answer.remaining:
            # Whoever is not in it may be among the rest.
            self._known.update(present)
            return
        for key in self._known.keys() - present.keys():
            before = self._known[key]
            yield pb.Supervisor(namespace=key[0], sandbox=key[1], pod=before.pod, pod_uid=key[2]), before
        self._known = present


def _told(supervisor: pb.Supervisor) -> object:
    return supervisor.state, supervisor.desired.digest, supervisor.active_digest, why(supervisor)


def _line(supervisor: pb.Supervisor, *, before: pb.Supervisor | None) -> str:
    is_gone = supervisor.state == pb.SUPERVISOR_STATE_UNSPECIFIED
    state = GONE if is_gone else state_of(supervisor)
    moved = state if before is None or state_of(before) == state else f"{state_of(before)} -> {state}"
    digests = (("desired", supervisor.desired.digest), ("active", supervisor.active_digest))
    told = (f"{name} {short(digest) or '-'}" for name, digest in digests)
    parts = (title_of(supervisor), moved, *(() if is_gone else told), why(supervisor))
    return "  ".join(part for part in parts if part)


def _cut(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


async def _tick(table: Table) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_TICK)
            table.live.refresh()
