"""`smw status` for people: registrations, policies, supervisors, then what is wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from supervisor_middleware.cli.rendering.tables import Row, coloured, table
from supervisor_middleware.cli.status.objects import POLICIES, REGISTRATION, Observed
from supervisor_middleware.cli.status.supervisors import age_of, state_of, summary_of, title_of, why
from supervisor_middleware.model.canonical import short
from supervisor_middleware.wire.gen import inspection_pb2 as pb

_STYLES: Final = {
    pb.SUPERVISOR_STATE_ACTIVE: "green",
    pb.SUPERVISOR_STATE_REJECTED: "red",
    pb.SUPERVISOR_STATE_NOT_CONNECTED: "red",
}
_REGISTRATION_COLUMNS: Final = ("REGISTRATION", "READY", "REASON", "BINDINGS>", "POLICIES>")
_POLICY_COLUMNS: Final = ("POLICY", "READY", "PROGRAMMED", "REASON", "REVISION>", "STAGES>", "ACTIVE>")
_SUPERVISOR_COLUMNS: Final = ("SANDBOX", "STATE", "DESIRED", "ACTIVE", "AGE>", "REASON")


def show(out: Console, observed: Sequence[Observed], answer: pb.SupervisorList | None) -> None:
    """All there is; without `answer` nothing is known of supervisors."""
    registrations = [o for o in observed if o.kind == REGISTRATION]
    policies = [o for o in observed if o.kind in POLICIES]
    parts: list[Text] = []
    if registrations:
        parts.append(table(_REGISTRATION_COLUMNS, map(_registration, registrations)))
    if policies:
        parts.append(table(_POLICY_COLUMNS, map(_policy, policies)))
    if not registrations and not policies:
        parts.append(Text("no registrations and no policies"))
    if answer is not None:
        parts.append(supervisors(answer.supervisors, now=_now(answer)))
        if answer.supervisors:
            parts.append(summary(answer))
    out.print(Text("\n\n").join(parts))
    for o in observed:
        if o.status.get("violations"):
            out.print(Text(f"\n{o.title}", style="bold"))
        for violation in o.status.get("violations", ()):
            out.print(Text("  ") + Text(_said(violation)))


def supervisors(shown: Sequence[pb.Supervisor], *, now: datetime) -> Text:
    """A table of supervisors; `now` is what ages are counted to."""
    if not shown:
        return Text("no sandboxes")
    namesakes = Counter(title_of(s) for s in shown)
    return table(
        _SUPERVISOR_COLUMNS,
        (_supervisor(s, now=now, is_alone=namesakes[title_of(s)] == 1) for s in shown),
    )


def summary(answer: pb.SupervisorList) -> Text:
    """How many run what they should."""
    style = "green" if answer.totals.on_desired == answer.totals.sandboxes else "yellow"
    return Text("supervisors: ") + Text(summary_of(answer.totals), style=style)


def coloured_state(supervisor: pb.Supervisor) -> Text:
    """Its state, in the colour of what it means."""
    return Text(state_of(supervisor), style=_STYLES.get(supervisor.state, "yellow"))


def _supervisor(supervisor: pb.Supervisor, *, now: datetime, is_alone: bool) -> Row:
    title = title_of(supervisor)
    return (
        title if is_alone else f"{title} ({supervisor.pod})",
        coloured_state(supervisor),
        short(supervisor.desired.digest) or "-",
        short(supervisor.active_digest) or "-",
        age_of(supervisor.since, now=now) if supervisor.HasField("since") else "-",
        why(supervisor) or "-",
    )


def _registration(o: Observed) -> Row:
    ready = o.condition("Ready")
    counts = (str(o.status.get("bindingCount", 0)), str(o.status.get("policies", 0)))
    return (o.name, _state(ready), str(ready.get("reason", "-")), *counts)


def _policy(o: Observed) -> Row:
    ready, programmed, accepted = o.condition("Ready"), o.condition("Programmed"), o.status.get("accepted") or {}
    # What is wrong comes first: a policy that is not Ready is Programmed with its last-known-good.
    telling = programmed if ready.get("status") == "True" else ready
    return (
        f"{o.namespace}/{o.name}" if o.namespace else o.name,
        _state(ready),
        _state(programmed),
        str(telling.get("reason", "-")),
        str(accepted.get("revision", "-")),
        str(o.status.get("stages", 0)),
        str((o.status.get("supervisors") or {}).get("summary", "-")),
    )


def _state(condition: Mapping[str, Any]) -> Text:
    return coloured(str(condition.get("status", "Unknown")))


def _said(violation: Mapping[str, Any]) -> str:
    return ": ".join(part for part in (violation["path"], violation["message"]) if part)


def _now(answer: pb.SupervisorList) -> datetime:
    # The operator's clock set the times.
    return answer.taken_at.ToDatetime(UTC)
