"""What `smw coverage` shows: endpoints and the stages that look at them, for people, machines and a pull request."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from supervisor_middleware.cli.capabilities.words import SCOPE
from supervisor_middleware.cli.offline.assumptions import note
from supervisor_middleware.cli.rendering.annotations import Level, annotation, plain
from supervisor_middleware.cli.rendering.forms import Form, write
from supervisor_middleware.cli.rendering.sizes import counted
from supervisor_middleware.cli.rendering.tables import table
from supervisor_middleware.compiler.inspection import Extent, Reach
from supervisor_middleware.compiler.skipped import UNDECIDED
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.hosts import HostPattern
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.folder import Location

SCHEMA_VERSION: Final = 1
_NOT_SELECTED: Final = "-"
_STYLES: Final = {Extent.ALL: "green", Extent.PART: "yellow", Extent.UNDECIDED: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A destination and who looks at it: `by` is by stage key. `reach` None: nobody ever, or no host of ours."""

    policy: Subject
    path: str
    host: HostPattern | None
    is_skipped: bool
    by: Mapping[str, Extent] = field(default_factory=dict)
    reach: Reach | None = None

    @property
    def is_uncovered(self) -> bool:
        """Whether requests to it can pass that middleware could look at, and does not."""
        return not self.is_skipped and (self.reach is None or not self.reach.is_whole)

    @property
    def verdict(self) -> str:
        """Whether it is inspected, in words."""
        if self.is_skipped:
            return "never: tls: skip"
        if self.reach is None:
            return "unknown: no host that could be matched"
        if self.reach.is_whole:
            return "yes"
        if self.reach.missed == UNDECIDED:
            return "undecided: use fewer wildcards"
        if self.reach.extent is Extent.PART:
            return f"in part: not {self.reach.missed}"
        return "NO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A config that no request can meet."""

    stage: Stage
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sandboxes that run the same, by their titles."""

    titles: tuple[str, ...]
    stages: tuple[Stage, ...]
    endpoints: tuple[Endpoint, ...]
    dead: tuple[Dead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """All of it. `assumed` are bindings of which nobody knows the service or its limits."""

    groups: tuple[Group, ...]
    assumed: tuple[str, ...] = ()

    @property
    def uncovered(self) -> tuple[Endpoint, ...]:
        """Endpoints that are not inspected as a whole, each once however many sandboxes have it."""
        found = {(e.policy, e.path): e for g in self.groups for e in g.endpoints if e.is_uncovered}
        return tuple(found.values())

    @property
    def summary(self) -> str:
        """One line."""
        endpoints = {(e.policy, e.path): e.is_skipped for g in self.groups for e in g.endpoints}
        dead = {(d.stage.policy, d.stage.key) for g in self.groups for d in g.dead}
        return (
            f"{counted(sum(len(g.titles) for g in self.groups), 'scope')}, {counted(len(endpoints), 'endpoint')}: "
            f"{len(self.uncovered)} not covered, {sum(endpoints.values())} with tls: skip; "
            f"{counted(len(dead), 'dead config')}"
        )


def render(coverage: Coverage, form: Form, *, locate: Callable[[Subject, str], Location | None], out: TextIO) -> None:
    """Write `coverage` to `out`; colours only if it is a terminal."""
    write(
        form,
        out=out,
        people=partial(_text, coverage),
        machines=partial(_value, coverage),
        annotations=partial(_annotations, coverage, locate),
    )


# ------------------------------------------------------------------------------------------------------ for people


def _text(coverage: Coverage, console: Console) -> None:
    for group in coverage.groups:
        for title in group.titles:
            console.print(Text(title, style="bold"))
        for line in _matrix(group):
            line.rstrip()
            console.print(Text("  ").append_text(line))
        for dead in group.dead:
            console.print(Text("  dead  ", style="yellow").append(f"{dead.stage.key}: {dead.why}", style="default"))
        console.print()
    if not coverage.groups:
        console.print("there is no sandbox and no policy")
    if coverage.assumed:
        console.print(Text(note(coverage.assumed), style="dim"))
    never = ", ".join(t.name for t in SCOPE if not t.is_inspected)
    console.print(Text(f"never inspected, whatever is selected: {never}", style="dim"))
    console.print(Text(coverage.summary, style="yellow" if coverage.uncovered else "green"))


def _matrix(group: Group) -> Iterator[Text]:
    if not group.endpoints:
        keys = ", ".join(s.key for s in group.stages) or "none"
        yield Text(f"no endpoint is declared in networkPolicies; stages: {keys}")
        return
    columns = ("ENDPOINT", *(s.key for s in group.stages), "INSPECTED")
    yield from table(columns, [_row(e, group.stages) for e in group.endpoints]).split("\n")


def _row(endpoint: Endpoint, stages: tuple[Stage, ...]) -> tuple[str | Text, ...]:
    style = "dim" if endpoint.is_skipped else "yellow" if endpoint.is_uncovered else "green"
    cells = (endpoint.by.get(s.key, Extent.NONE) for s in stages)
    return (_host(endpoint), *map(_cell, cells), Text(endpoint.verdict, style=style))


def _cell(extent: Extent) -> Text:
    return Text(_NOT_SELECTED if extent is Extent.NONE else extent.value, style=_STYLES.get(extent, "dim"))


def _host(endpoint: Endpoint) -> str:
    return "?" if endpoint.host is None else str(endpoint.host)


# ---------------------------------------------------------------------------------------------------- for machines


def _value(coverage: Coverage) -> JsonObject:
    return {
        "schemaVersion": SCHEMA_VERSION,
        "uncovered": len(coverage.uncovered),
        "assumed": list(coverage.assumed),
        "scopes": [
            {
                "titles": list(g.titles),
                "stages": [s.key for s in g.stages],
                "endpoints": [_endpoint(e) for e in g.endpoints],
                "dead": [{"stage": d.stage.key, "policy": d.stage.policy, "why": d.why} for d in g.dead],
            }
            for g in coverage.groups
        ],
        "neverInspected": [{"name": t.name, "reason": t.reason} for t in SCOPE if not t.is_inspected],
    }


def _endpoint(endpoint: Endpoint) -> JsonObject:
    return {
        "policy": str(endpoint.policy),
        "path": endpoint.path,
        "host": None if endpoint.host is None else str(endpoint.host),
        "tlsSkip": endpoint.is_skipped,
        "covered": not endpoint.is_skipped and not endpoint.is_uncovered,
        "missed": None if endpoint.reach is None else endpoint.reach.missed,
        "by": {key: extent.value for key, extent in endpoint.by.items()},
    }


def _annotations(coverage: Coverage, locate: Callable[[Subject, str], Location | None]) -> Iterator[str]:
    for endpoint in coverage.uncovered:
        where = locate(endpoint.policy, f"{endpoint.path}.host") or locate(endpoint.policy, endpoint.path)
        yield annotation(
            Level.WARNING,
            f"{endpoint.policy}: {_host(endpoint)} {_uncovered(endpoint)}",
            title="Uncovered",
            where=where,
        )
    yield plain(coverage.summary)


def _uncovered(endpoint: Endpoint) -> str:
    if endpoint.reach is not None and endpoint.reach.extent is Extent.NONE:
        return "is inspected by no stage"
    return f"is not inspected as a whole{_missing(endpoint)}"


def _missing(endpoint: Endpoint) -> str:
    missed = None if endpoint.reach is None else endpoint.reach.missed
    return f", for example {missed}" if missed else f" ({endpoint.verdict})"
