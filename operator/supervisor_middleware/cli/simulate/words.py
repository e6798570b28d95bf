"""A traced request in words and as a value. PURE."""

import difflib
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from supervisor_middleware.audit.events import Bypassed, Failed, Invoked
from supervisor_middleware.cli.rendering.tables import table
from supervisor_middleware.cli.simulate.expect import seen
from supervisor_middleware.cli.simulate.trace import Trace, Turn, header_values
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.evaluation import Decision, Finding, Header
from supervisor_middleware.supervisor.exchange import Denied

HIDDEN: Final = "not shown without --show-bodies"
_NOT_REACHED: Final = "not reached"
_COLUMNS: Final = ("STAGE", "MIDDLEWARE", "ANSWER", "WITHIN", "DECISION", "WHAT CAME OF IT")
_STYLES: Final = {"allow": "green", "deny": "red", "failed": "red", "bypassed": "yellow"}


def trace_lines(trace: Trace, *, is_shown: bool) -> Iterator[Text]:
    """The way of a request, a line at a time."""
    size = f", {_bytes(len(trace.body))}" if trace.body else ""
    yield Text(f"{trace.method} {trace.url}{size}, from {trace.sandbox}", style="bold")
    yield Text("")
    if trace.turns:
        rows = [row for turn in trace.turns for row in _rows(turn, is_shown=is_shown)]
        for line in table(_COLUMNS, rows).split("\n"):
            line.rstrip()
            yield line
        yield Text("")
    yield Text(outcome_words(trace), style="red" if isinstance(trace.outcome, Denied) else "green")
    if is_shown:
        yield from _content(trace)


def outcome_words(trace: Trace) -> str:
    """What became of it, in one line."""
    outcome, upstream = trace.outcome, trace.upstream
    if isinstance(outcome, Denied):
        by = f" by {outcome.key}" if outcome.key else ""
        why = outcome.reason_code or (outcome.code.value if outcome.code is not None else "")
        return f"denied: 403 {outcome.cause.value}{by}{f' ({why})' if why else ''}"
    if not trace.turns:
        return "allowed: no stage selects this host"
    body = "" if upstream is None or not (upstream.body or trace.body) else f" with {_bytes(len(upstream.body))}"
    bypassed = seen(trace).bypassed
    past = f", past {', '.join(bypassed)}" if bypassed else ""
    return f"allowed: it goes on{body}{past}"


def value_of(trace: Trace, *, is_shown: bool) -> JsonObject:
    """The same as a value."""
    found = seen(trace)
    upstream = trace.upstream
    return {
        "sandbox": trace.sandbox,
        "decision": found.decision.value,
        "reason": found.reason,
        "by": found.by,
        "reasonCode": found.reason_code,
        "code": found.code,
        "bypassed": list(found.bypassed),
        "stages": [_turn(t, is_shown=is_shown) for t in trace.turns],
        "upstream": None
        if upstream is None
        else {
            "bodyBytes": len(upstream.body),
            "headers": dict(header_values(upstream.headers)) if is_shown else sorted(header_values(upstream.headers)),
            **({"body": upstream.body.decode("utf-8", "replace")} if is_shown else {}),
        },
    }


def _turn(turn: Turn, *, is_shown: bool) -> JsonObject:
    stage, event = turn.stage, turn.event
    result = turn.result if turn.is_valid else None
    return {
        "key": stage.key,
        "policy": stage.policy,
        "binding": stage.binding,
        "service": stage.service,
        "onError": stage.on_error.value,
        "timeout": format_duration(stage.timeout),
        "answer": None if turn.source is None else turn.source.value,
        "decision": _decision(turn),
        "code": event.code.value if isinstance(event, Failed | Bypassed) else "",
        "reasonCode": "" if result is None else result.reason_code,
        "latency": None if event is None else format_duration(event.latency),
        "bodyBytes": None if turn.shown is None else len(turn.shown.body),
        "newBodyBytes": None if result is None or result.body is None else len(result.body),
        "headersAdded": _named(turn.added, is_shown=is_shown),
        "headersRemoved": _named(turn.removed, is_shown=is_shown),
        "findings": [
            {"type": f.type, "count": f.count, "severity": f.severity} for f in (result.findings if result else ())
        ],
        "metadata": {}
        if result is None
        else {k: v if is_shown else HIDDEN for k, v in sorted(result.metadata.items())},
    }


def _rows(turn: Turn, *, is_shown: bool) -> Iterator[tuple[str | Text, ...]]:
    first, *rest = list(_notes(turn, is_shown=is_shown)) or [""]
    decision = _decision(turn)
    yield (
        turn.stage.key,
        turn.stage.binding,
        "-" if turn.source is None else turn.source.value,
        format_duration(turn.stage.timeout),
        Text(decision, style=_STYLES.get(decision, "dim")),
        first,
    )
    for note in rest:
        yield ("", "", "", "", "", note)


def _decision(turn: Turn) -> str:
    match turn.event:
        case Invoked(decision=decision):
            return decision.value
        case Failed():
            return "failed"
        case Bypassed():
            return "bypassed"
        case None:
            return _NOT_REACHED


def _notes(turn: Turn, *, is_shown: bool) -> Iterator[str]:
    if isinstance(turn.event, Failed | Bypassed):
        why = f" ({turn.stage.unresolved.value})" if turn.stage.unresolved is not None else ""
        yield f"{turn.event.code.value}{why}, so {turn.stage.on_error.value} decides"
    result = turn.result
    if not turn.is_valid or result is None or turn.shown is None:
        return
    if result.decision is Decision.DENY:
        yield result.reason_code or "without a reason code"
    elif result.body is None and not turn.added and not turn.removed:
        yield "unchanged"
    if result.decision is Decision.ALLOW and result.body is not None:
        yield f"body {len(turn.shown.body)} -> {_bytes(len(result.body))}"
    yield from (f"- {name}" for name in _named(turn.removed, is_shown=is_shown))
    yield from (f"+ {name}" for name in _named(turn.added, is_shown=is_shown))
    yield from map(_finding, result.findings)
    for key, value in sorted(result.metadata.items()):
        yield f"metadata {key}={value}" if is_shown else f"metadata {key}"


def _named(headers: tuple[Header, ...], *, is_shown: bool) -> list[str]:
    return [f"{h.name}: {h.value}" if is_shown else h.name for h in headers]


def _finding(finding: Finding) -> str:
    severity = f" ({finding.severity})" if finding.severity else ""
    return f"finding {finding.type} x{finding.count}{severity}"


def _content(trace: Trace) -> Iterator[Text]:
    """What each stage changed in the body, and the headers that go on."""
    for turn in trace.turns:
        result = turn.result
        if turn.is_valid and turn.shown is not None and result is not None and result.body is not None:
            before, after = (b.decode("utf-8", "replace").splitlines() for b in (turn.shown.body, result.body))
            yield Text("")
            for line in difflib.unified_diff(
                before, after, f"before {turn.stage.key}", f"after {turn.stage.key}", lineterm=""
            ):
                yield Text(line, style={"+": "green", "-": "red"}.get(line[:1], ""))
    if trace.upstream is not None:
        yield Text("")
        yield from (Text(f"{h.name}: {h.value}") for h in trace.upstream.headers)


def _bytes(number: int) -> str:
    return f"{number} byte" if number == 1 else f"{number} bytes"
