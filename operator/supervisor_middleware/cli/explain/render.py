"""What `smw explain` shows of a host: the chain in its order, what is left out, and what happens on failure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.rendering.forms import Form, write
from supervisor_middleware.cli.rendering.sizes import size_of
from supervisor_middleware.cli.rendering.tables import table
from supervisor_middleware.compiler.endpoints import EndpointDraft
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.violation import Subject

SCHEMA_VERSION: Final = 1
_COLUMNS: Final = ("#>", "STAGE", "MIDDLEWARE", "WITHIN", "BODY>", "ON FAILURE", "INCLUDED BY")
_ON_FAILURE: Final = {OnError.FAIL_CLOSED: "denied", OnError.FAIL_OPEN: "passes, audited"}
_ON_MISSING: Final = {OnError.FAIL_CLOSED: "always denied", OnError.FAIL_OPEN: "always passes"}
_STYLES: Final = {OnError.FAIL_CLOSED: "green", OnError.FAIL_OPEN: "yellow"}


class Source(StrEnum):
    """What a timeout comes from."""

    DEFAULT = "default"
    REGISTRATION = "registration"
    BINDING = "binding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A stage and why it is in the host's chain or not: the first pattern that matches of each kind.

    Assumed: no manifest says what the service offers, so the limits are those it would have at most.
    """

    stage: Stage
    is_assumed: bool
    include: str | None
    exclude: str | None
    source: Source

    @property
    def is_in(self) -> bool:
        """Whether requests to the host meet it; exclusion wins."""
        return self.include is not None and self.exclude is None

    @property
    def why(self) -> str:
        """In words."""
        if self.exclude is not None:
            return f"exclude {self.exclude}"
        return "no include matches" if self.include is None else f"include {self.include}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An endpoint of the host that matters to inspection."""

    policy: Subject
    endpoint: EndpointDraft

    @property
    def what(self) -> str:
        """What it does, in words."""
        if self.endpoint.is_skipped:
            return "tls: skip, never decrypted: nobody looks inside"
        return "enforcement: audit, a broken rule is reported and the request goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Sandboxes that run the same. `worst_case` is how long middleware may keep a request.

    `is_capped`: the chain as a whole has less time than its stages have together.
    """

    titles: tuple[str, ...]
    stages: tuple[Explained, ...]
    endpoints: tuple[Seen, ...]
    worst_case: timedelta
    is_capped: bool

    @property
    def chain(self) -> tuple[Explained, ...]:
        """The stages that a request to the host meets, in running order."""
        return tuple(s for s in self.stages if s.is_in)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All of it."""

    host: str
    places: tuple[Place, ...]

    @property
    def assumed(self) -> tuple[str, ...]:
        """Bindings whose limits are assumed."""
        return tuple(sorted({s.stage.binding for p in self.places for s in p.chain if s.is_assumed}))


def render(explanation: Explanation, output: Output, *, out: TextIO) -> None:
    """Write it to `out`; colours only if it is a terminal."""
    people, machines = partial(_text, explanation), partial(_value, explanation)
    write(Form(output), out=out, people=people, machines=machines)


# ------------------------------------------------------------------------------------------------------ for people


def _text(explanation: Explanation, console: Console) -> None:
    console.print(Text(f"requests to {explanation.host}"))
    for place in explanation.places:
        console.print()
        for title in place.titles:
            console.print(Text(title, style="bold"))
        for line in _lines(place):
            line.rstrip()
            console.print(Text("  ").append_text(line))
    if not explanation.places:
        console.print("there is no sandbox and no policy")
    if explanation.assumed:
        names = ", ".join(explanation.assumed)
        console.print()
        console.print(
            Text(
                f"no manifest is known of {names}: what has a ? is assumed (use --manifests or --live)",
                style="yellow",
            )
        )


def _lines(place: Place) -> Iterator[Text]:
    chain = place.chain
    policies = {s.stage.policy for s in place.stages}
    is_shown = len(policies) > 1
    if not is_shown:
        yield from (Text(f"policy {policy}", style="dim") for policy in policies)
    if chain:
        columns = (*_COLUMNS, "POLICY") if is_shown else _COLUMNS
        rows = [(*_row(n, s), *((s.stage.policy,) if is_shown else ())) for n, s in enumerate(chain, 1)]
        yield from table(columns, rows).split("\n")
        yield Text(f"worst case {format_duration(place.worst_case)}: {_sum(place)}")
    else:
        yield Text("no stage selects this host: requests pass without inspection", style="yellow")
    left_out = [s for s in place.stages if not s.is_in]
    if left_out:
        yield Text("not in the chain:")
        others = [(f"  {s.stage.key}", s.why, s.stage.policy if is_shown else "") for s in left_out]
        yield from table(("", "", ""), others).split("\n")[1:]
    for seen in place.endpoints:
        yield Text(f"{seen.policy} {seen.endpoint.path}", style="yellow")
        yield Text(f"  {seen.what}")


def _row(number: int, explained: Explained) -> tuple[str | Text, ...]:
    stage = explained.stage
    is_missing = stage.unresolved is not None
    words = _ON_MISSING if is_missing else _ON_FAILURE
    mark = "?" if explained.is_assumed else ""
    return (
        str(number),
        stage.key,
        stage.binding,
        Text(f"never: {stage.unresolved}", style="red") if is_missing else f"{_within(explained)}{mark}",
        "-" if is_missing else f"{size_of(stage.max_body_bytes)}{mark}",
        Text(words[stage.on_error], style=_STYLES[stage.on_error]),
        explained.include or "",
    )


def _within(explained: Explained) -> str:
    return f"{format_duration(explained.stage.timeout)} {explained.source.value}"


def _sum(place: Place) -> str:
    running = [s for s in place.chain if s.stage.unresolved is None]
    if not running:
        return "no stage can run, so nothing is waited for"
    if place.is_capped:
        return "what the whole chain may take; its stages' timeouts are more together"
    return "its one stage's timeout" if len(running) == 1 else f"the timeouts of {len(running)} stages together"


# ---------------------------------------------------------------------------------------------------- for machines


def _value(explanation: Explanation) -> JsonObject:
    return {
        "schemaVersion": SCHEMA_VERSION,
        "host": explanation.host,
        "scopes": [_place(p) for p in explanation.places],
        "assumed": list(explanation.assumed),
    }


def _place(place: Place) -> JsonObject:
    return {
        "titles": list(place.titles),
        "inspected": any(s.stage.unresolved is None for s in place.chain),
        "chain": [_stage(s) for s in place.chain],
        "notInChain": [
            {"key": s.stage.key, "policy": s.stage.policy, "include": s.include, "exclude": s.exclude}
            for s in place.stages
            if not s.is_in
        ],
        "endpoints": [
            {
                "policy": str(s.policy),
                "path": s.endpoint.path,
                "tlsSkip": s.endpoint.is_skipped,
                "audit": s.endpoint.is_audited,
            }
            for s in place.endpoints
        ],
        "worstCase": format_duration(place.worst_case),
        "cappedByChain": place.is_capped,
    }


def _stage(explained: Explained) -> JsonObject:
    stage = explained.stage
    is_missing = stage.unresolved is not None
    return {
        "key": stage.key,
        "label": stage.label,
        "policy": stage.policy,
        "binding": stage.binding,
        "service": stage.service,
        "include": explained.include,
        "onError": stage.on_error.value,
        "unresolved": None if stage.unresolved is None else stage.unresolved.value,
        "timeout": None if is_missing else format_duration(stage.timeout),
        "timeoutFrom": None if is_missing else explained.source.value,
        "maxBodyBytes": None if is_missing else stage.max_body_bytes,
        "assumed": explained.is_assumed,
    }
