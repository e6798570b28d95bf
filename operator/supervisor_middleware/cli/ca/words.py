"""`smw ca` for people. PURE."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rich.text import Text

from supervisor_middleware.cli.rendering.tables import table
from supervisor_middleware.model.canonical import short
from supervisor_middleware.pki.rotation import Awaited

Status = Mapping[str, Any]

_WORDS: Final[Mapping[Awaited, str]] = {
    Awaited.PUBLICATION: "the trust bundle to be published in every namespace",
    Awaited.OVERLAP: "the overlap: every replica takes the stage up meanwhile",
    Awaited.SERVICES_REFUSING: "services that refuse certificates of that root: {names}",
    Awaited.SERVICES_SILENT: "services that do not answer: {names}",
    Awaited.SUPERVISORS_UNKNOWN: "the leader to know which supervisors there are",
    Awaited.SUPERVISORS_UNACKNOWLEDGED: "supervisors that have not taken the trust bundle yet: {count}",
    Awaited.SUPERVISORS_ABSENT: "supervisors that are not connected: {count}",
    Awaited.SUPERVISORS_OLD: "supervisors that still have a certificate of the old root: {count}",
}


def is_overdue(status: Status, *, now: datetime) -> bool:
    """Whether the stage lasts longer than it should."""
    deadline = status.get("deadline")
    return deadline is not None and now >= datetime.fromisoformat(deadline)


def shown(status: Status, *, now: datetime) -> Text:
    """All of it."""
    parts = [table(("STAGE", "SINCE", "CAUSE", "NEXT", "AT THE LATEST"), [_stage(status)])]
    columns = ("ROOT", "ROLE", "ORIGIN", "NOT BEFORE", "NOT AFTER")
    parts.append(table(columns, map(_root, status["roots"])))
    if waits := list(waits_of(status)):
        parts.append(Text("waiting for", style="bold") + Text("".join(f"\n  {wait}" for wait in waits)))
    if is_overdue(status, now=now):
        parts.append(Text("overdue: see what it waits for, or end the stage with smw ca rotate --force", style="red"))
    if status["problem"]:
        parts.append(Text(f"the CA that was supplied is not used: {status['problem']}", style="red"))
    return Text("\n\n").join(parts)


def line(status: Status) -> str:
    """The same on one line."""
    waits = "; ".join(waits_of(status))
    told = [f"{status['stage']} ({status['cause']})", *([f"waiting for {waits}"] if waits else [])]
    return "  ".join((str(status["since"]), *told, *([status["problem"]] if status["problem"] else [])))


def waits_of(status: Status) -> Iterator[str]:
    """What the stage waits for, one text each."""
    for wait in status["waitsFor"]:
        names = ", ".join(wait["names"])
        hidden = wait["count"] - len(wait["names"])
        more = f" and {hidden} more" if names and hidden > 0 else ""
        text = _text(wait["reason"]).format(names=f"{names}{more}", count=wait["count"])
        yield text + (f" (until {wait['until']})" if wait["until"] else "")


def _text(reason: str) -> str:
    # A newer operator may wait for what this release has no words for.
    return _WORDS[Awaited(reason)] if reason in set(Awaited) else f"{reason}: {{names}} {{count}}"


def _stage(status: Status) -> tuple[str, ...]:
    given = (status["stage"], status["since"], status["cause"], status["next"], status["deadline"])
    return tuple(str(value or "-") for value in given)


def _root(root: Status) -> tuple[str, ...]:
    return (short(root["digest"]), root["role"], root["origin"], root["notBefore"], root["notAfter"])
