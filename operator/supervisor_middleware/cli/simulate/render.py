"""What `smw simulate` shows: the way of a request for people, for machines, and what differs on a pull request.

Sizes and names by default; bodies, header values and metadata only where they are asked for, since output is logged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from supervisor_middleware.cli.offline.assumptions import note
from supervisor_middleware.cli.rendering.annotations import Level, annotation, plain
from supervisor_middleware.cli.rendering.forms import Form, write
from supervisor_middleware.cli.rendering.sizes import counted
from supervisor_middleware.cli.simulate.cases import Case
from supervisor_middleware.cli.simulate.expect import Difference
from supervisor_middleware.cli.simulate.trace import Trace
from supervisor_middleware.cli.simulate.words import HIDDEN, outcome_words, trace_lines, value_of
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.sources.folder import Location

SCHEMA_VERSION: Final = 1


class Bodies(StrEnum):
    """Whether content is shown."""

    HIDDEN = "hidden"
    SHOWN = "shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A case that was run; without a trace where no sandbox could be told."""

    case: Case
    trace: Trace | None = None
    generation: Generation | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def is_as_expected(self) -> bool:
        """Whether everything expected came true."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All cases. `assumed` are bindings whose limits nobody knows here; `is_single`: one request, not a file."""

    checked: Sequence[Checked]
    assumed: tuple[str, ...]
    is_valid: bool
    bodies: Bodies
    is_single: bool

    @property
    def failed(self) -> int:
        """How many cases differ."""
        return sum(not c.is_as_expected for c in self.checked)

    @property
    def is_as_expected(self) -> bool:
        """Whether the exit code is 0."""
        return self.is_valid and not self.failed

    @property
    def summary(self) -> str:
        """One line."""
        number = len(self.checked)
        text = f"{counted(number, 'case')}, {number - self.failed} as expected, {self.failed} not"
        return text if self.is_valid else f"{text}; the policies are not valid"


def render(result: Result, form: Form, *, out: TextIO) -> None:
    """Write `result` to `out`; colours only if it is a terminal."""
    write(
        form,
        out=out,
        people=partial(_text, result),
        machines=partial(_value, result),
        annotations=partial(_annotations, result),
    )


# ------------------------------------------------------------------------------------------------------ for people


def _text(result: Result, console: Console) -> None:
    if result.is_single:
        for checked in result.checked:
            _single(checked, result, console)
    else:
        _cases(result, console)
    if result.assumed:
        console.print(Text(note(result.assumed), "dim"))


def _single(checked: Checked, result: Result, console: Console) -> None:
    if checked.trace is not None:
        for line in trace_lines(checked.trace, is_shown=result.bodies is Bodies.SHOWN):
            console.print(line)


def _cases(result: Result, console: Console) -> None:
    width = max((len(c.case.spec.name) for c in result.checked), default=0)
    for checked in result.checked:
        is_good = checked.is_as_expected
        line = Text().append("ok    " if is_good else "FAIL  ", style="green" if is_good else "bold red")
        line.append(checked.case.spec.name.ljust(width))
        line.append("  ").append("" if checked.trace is None else outcome_words(checked.trace), style="dim")
        line.rstrip()
        console.print(line)
        if not is_good:
            _failure(checked, result, console)
    console.print(Text(result.summary, style="green" if result.is_as_expected else "bold red"))


def _failure(checked: Checked, result: Result, console: Console) -> None:
    is_shown = result.bodies is Bodies.SHOWN
    for difference in checked.differences:
        line = checked.case.line_of(difference.path)
        expected, actual = _sides(difference, is_shown=is_shown)
        console.print(Text(f"      {checked.case.file}:{line}  {difference.path}", style="bold"))
        console.print(Text(f"        expected  {expected}"))
        console.print(Text(f"        actual    {actual}"))
    console.print()
    if checked.trace is not None:
        for text in trace_lines(checked.trace, is_shown=is_shown):
            console.print(Text("      ").append_text(text) if text else text)
        console.print()


def _sides(difference: Difference, *, is_shown: bool) -> tuple[str, str]:
    if not difference.is_content:
        return difference.expected, difference.actual
    if is_shown:
        return repr(difference.expected), repr(difference.actual)
    sizes = tuple(f"{len(side.encode())} bytes" for side in (difference.expected, difference.actual))
    return sizes[0], f"{sizes[1]}, {HIDDEN}"


# ---------------------------------------------------------------------------------------------------- for machines


def _value(result: Result) -> JsonObject:
    is_shown = result.bodies is Bodies.SHOWN
    return {
        "schemaVersion": SCHEMA_VERSION,
        "valid": result.is_valid,
        "asExpected": len(result.checked) - result.failed,
        "different": result.failed,
        "assumedBindings": list(result.assumed),
        "cases": [_case(c, is_shown=is_shown) for c in result.checked],
    }


def _case(checked: Checked, *, is_shown: bool) -> JsonObject:
    return {
        "name": checked.case.spec.name,
        "file": checked.case.file or None,
        "line": checked.case.line if checked.case.file else None,
        "asExpected": checked.is_as_expected,
        "differences": [
            dict(zip(("path", "expected", "actual"), (d.path, *_sides(d, is_shown=is_shown)), strict=True))
            for d in checked.differences
        ],
        **({} if checked.trace is None else value_of(checked.trace, is_shown=is_shown)),
    }


def _annotations(result: Result) -> Iterator[str]:
    for checked in result.checked:
        for difference in checked.differences:
            expected, actual = _sides(difference, is_shown=False)
            yield annotation(
                Level.ERROR,
                f"{difference.path}: expected {expected}, actual {actual}",
                title=checked.case.spec.name,
                where=_where(checked.case, difference),
            )
    yield plain(result.summary)


def _where(case: Case, difference: Difference) -> Location | None:
    return Location(file=case.file, line=case.line_of(difference.path)) if case.file else None
