"""What `smw plan` shows: what comes (+), goes (-) and changes (~), for people, machines and a pull request."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from supervisor_middleware.cli.offline.assumptions import note
from supervisor_middleware.cli.plan.words import Mark, Row, rows_of, value_of
from supervisor_middleware.cli.rendering.annotations import Level, annotation, plain
from supervisor_middleware.cli.rendering.forms import Form, write
from supervisor_middleware.cli.rendering.sizes import counted
from supervisor_middleware.compiler.differences import Difference
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.identifiers import some_of
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.folder import Location

SCHEMA_VERSION: Final = 1
_STYLES: Final = {Mark.ADDED: "green", Mark.REMOVED: "red", Mark.CHANGED: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """An object that comes, goes or is not what it was; `fields` are those that differ, never their values."""

    mark: Mark
    subject: Subject
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What changes for some sandboxes, by their titles. A mark of its own: the sandboxes come or go."""

    mark: Mark
    titles: tuple[str, ...]
    difference: Difference | None

    @property
    def is_loss(self) -> bool:
        """Whether they are protected less; one that goes has nothing left to protect."""
        return self.mark is Mark.CHANGED and self.difference is not None and self.difference.is_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of it. `assumed` are bindings of which nobody knows the service or its limits."""

    is_valid: bool
    was_valid: bool
    objects: tuple[ObjectChange, ...]
    effects: tuple[Effect, ...]
    conflicted: tuple[Subject, ...]
    assumed: tuple[str, ...] = ()

    @property
    def is_loss(self) -> bool:
        """Whether any sandbox is protected less."""
        return any(e.is_loss for e in self.effects)

    @property
    def summary(self) -> str:
        """One line."""
        if not self.objects and not self.effects:
            return "nothing changes"
        marks = [c.mark for c in self.objects]
        objects = ", ".join(f"{marks.count(mark)} {word}" for mark, word in _WORDS.items() if mark in marks)
        scopes = sum(len(e.titles) for e in self.effects)
        lesser = sum(len(e.titles) for e in self.effects if e.is_loss)
        found = [f"objects: {objects}" if objects else "no object changes", f"{counted(scopes, 'scope')} affected"]
        if lesser:
            found.append(f"{lesser} protected less")
        if self.conflicted:
            found.append(f"{counted(len(self.conflicted), 'policy', 'policies')} newly in conflict")
        if not self.is_valid:
            found.append("not valid")
        if not self.was_valid:
            found.append("compared with what was not valid")
        return "; ".join(found)


_WORDS: Final = {Mark.ADDED: "added", Mark.CHANGED: "changed", Mark.REMOVED: "removed"}
Locate = Callable[[Subject, str], Location | None]


def render(plan: Plan, form: Form, *, locate: Locate, out: TextIO) -> None:
    """Write `plan` to `out`; colours only if it is a terminal."""
    write(
        form,
        out=out,
        people=partial(_text, plan),
        machines=partial(_value, plan),
        annotations=partial(_annotations, plan, locate),
    )


# ------------------------------------------------------------------------------------------------------ for people


def _text(plan: Plan, console: Console) -> None:
    for change in plan.objects:
        line = Text(f"{change.mark} ", style=_STYLES[change.mark]).append(str(change.subject), style="default")
        console.print(line.append(f"  {', '.join(change.fields)}" if change.fields else "", style="dim"))
    for subject in plan.conflicted:
        console.print(Text(f"! {subject} is newly in conflict", style="red"))
    if plan.objects or plan.conflicted:
        console.print()
    for effect in plan.effects:
        for title in effect.titles:
            console.print(_title(effect.mark, title))
        # Of a sandbox that goes nobody asks what it loses with it.
        told = None if effect.mark is Mark.REMOVED else effect.difference
        rows = [] if told is None else list(rows_of(told))
        for line in _aligned(rows):
            console.print(line)
        console.print()
    if any(e.difference is not None and (e.difference.lost or e.difference.gained) for e in plan.effects):
        console.print(Text("a host is an example: others may change with it", style="dim"))
    if plan.assumed:
        console.print(Text(note(plan.assumed), style="dim"))
    console.print(Text(plan.summary, style="red" if plan.is_loss or not plan.is_valid else "bold"))


def _title(mark: Mark, title: str) -> Text:
    line = Text("" if mark is Mark.CHANGED else f"{mark} ", style=_STYLES[mark])
    return line.append(title, style="bold")


def _aligned(rows: list[Row]) -> Iterator[Text]:
    kinds = max((len(r.kind) for r in rows), default=0)
    names = max((len(r.name) for r in rows), default=0)
    for row in rows:
        style = "bold red" if row.is_loss else "" if row.mark is None else _STYLES[row.mark]
        line = Text("  ").append(f"{row.mark or ' '} {row.kind.ljust(kinds)}", style=style)
        line.append(f"  {row.name.ljust(names)}  ").append(row.text, style="red" if row.is_loss else "")
        line.rstrip()
        yield line


# ---------------------------------------------------------------------------------------------------- for machines


def _value(plan: Plan) -> JsonObject:
    return {
        "schemaVersion": SCHEMA_VERSION,
        "valid": plan.is_valid,
        "wasValid": plan.was_valid,
        "loss": plan.is_loss,
        "assumed": list(plan.assumed),
        "objects": [
            {
                "change": _WORDS[c.mark],
                "kind": c.subject.kind,
                "namespace": c.subject.namespace,
                "name": c.subject.name,
                "fields": list(c.fields),
            }
            for c in plan.objects
        ],
        "conflicted": [{"kind": s.kind, "namespace": s.namespace, "name": s.name} for s in plan.conflicted],
        "effects": [
            {
                "scopes": list(e.titles),
                "change": _WORDS[e.mark],
                "loss": e.is_loss,
                **({} if e.difference is None else value_of(e.difference)),
            }
            for e in plan.effects
        ],
    }


def _annotations(plan: Plan, locate: Locate) -> Iterator[str]:
    """What protects less, what conflicts, and the summary; the rest is for the log."""
    for effect in plan.effects:
        scopes = some_of(effect.titles, limit=3)
        for row in rows_of(effect.difference) if effect.is_loss and effect.difference is not None else ():
            if row.is_loss:
                text = " ".join(f"{row.kind} {row.name} {row.text}".split())
                yield annotation(Level.WARNING, f"{scopes}: {text}", title="Protected less")
    for subject in plan.conflicted:
        yield annotation(
            Level.ERROR,
            f"{subject} is newly in conflict",
            title="Conflicted",
            where=locate(subject, ""),
        )
    yield annotation(Level.NOTICE, plan.summary, title="smw plan")
    yield plain(plan.summary)
