"""What `smw validate` shows. The same findings for people, for machines and on a pull request."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from supervisor_middleware.cli.rendering.annotations import Level, annotation, plain
from supervisor_middleware.cli.rendering.forms import Form, write
from supervisor_middleware.cli.rendering.sizes import counted
from supervisor_middleware.model.violation import Advice, Report, Subject, Violation
from supervisor_middleware.sources.assembly import FILE
from supervisor_middleware.sources.folder import Location

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that validation has to say, and where to find it: `locate` gives file and line of a field."""

    report: Report
    objects: int
    skipped: int
    locate: Callable[[Subject, str], Location | None]

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{counted(self.objects, 'object')}, {counted(len(self.report.violations), 'violation')}, "
            f"{counted(len(self.report.warnings), 'warning')}, {counted(self.skipped, 'foreign object')} skipped"
        )


def render(result: Result, form: Form, *, out: TextIO) -> None:
    """Write `result` to `out`; colours only if it is a terminal."""
    write(
        form,
        out=out,
        people=partial(_table, result),
        machines=partial(_value, result),
        annotations=partial(_annotations, result),
    )


# ------------------------------------------------------------------------------------------------------ for people


def _table(result: Result, console: Console) -> None:
    # One print: each costs half a millisecond, and there may be ten thousand findings.
    console.print(Text("\n").join(_lines(result)))


def _lines(result: Result) -> Iterator[Text]:
    for subject, findings in _by_subject(result.report).items():
        yield _heading(subject, result)
        rows = sorted(((_line(f, result), f) for f in findings), key=lambda row: (len(row[0]), row[0]))
        width = max(len(line) for line, _ in rows)
        for line, finding in rows:
            yield _row(f"{line.rjust(width)}  " if width else "", finding)
        yield Text()
    yield Text(result.summary, style="green" if result.report.is_valid else "bold red")


def _heading(subject: Subject, result: Result) -> Text:
    heading = Text().append(str(subject), style="bold")
    where = result.locate(subject, "")
    if where is not None:
        heading.append(f"  {where.file}:{where.line}", style="dim")
    return heading


def _row(line: str, finding: Violation | Advice) -> Text:
    is_violation = isinstance(finding, Violation)
    row = Text().append(f"  {line}", style="dim")
    row.append("violation  " if is_violation else "warning    ", style="red" if is_violation else "yellow")
    return row.append(_text(finding))


def _line(finding: Violation | Advice, result: Result) -> str:
    if finding.subject.kind == FILE and _line_in(finding) is None:
        return ""
    where = _where(finding, result)
    return "" if where is None else f"line {where.line}"


# ---------------------------------------------------------------------------------------------------- for machines


def _value(result: Result) -> dict[str, Any]:
    return {
        "schemaVersion": SCHEMA_VERSION,
        "valid": result.report.is_valid,
        "objects": result.objects,
        "skipped": result.skipped,
        "violations": [
            {
                **_common(v, result),
                "reason": v.reason.value,
                "hint": v.hint,
                "detail": v.detail,
                "retryable": v.is_retryable,
            }
            for v in result.report.violations
        ],
        "warnings": [_common(w, result) for w in result.report.warnings],
    }


def _common(finding: Violation | Advice, result: Result) -> dict[str, Any]:
    where, subject = _where(finding, result), finding.subject
    return {
        "kind": subject.kind,
        "namespace": subject.namespace,
        "name": subject.name,
        "path": _path(finding),
        "message": finding.message,
        "file": None if where is None else where.file,
        "line": None if where is None else where.line,
    }


def _annotations(result: Result) -> Iterator[str]:
    findings: Iterable[Violation | Advice] = (*result.report.violations, *result.report.warnings)
    for finding in findings:
        where = _where(finding, result)
        yield annotation(
            Level.ERROR if isinstance(finding, Violation) else Level.WARNING,
            _text(finding) if finding.subject.kind == FILE else f"{finding.subject}: {_text(finding)}",
            title=finding.reason.value if isinstance(finding, Violation) else "Warning",
            where=where,
        )
    yield plain(result.summary)


# ----------------------------------------------------------------------------------------------------------- both


def _by_subject(report: Report) -> dict[Subject, list[Violation | Advice]]:
    """Findings by the object they are about, violations first."""
    found: dict[Subject, list[Violation | Advice]] = {}
    findings: Iterable[Violation | Advice] = (*report.violations, *report.warnings)
    for finding in findings:
        found.setdefault(finding.subject, []).append(finding)
    return dict(sorted(found.items(), key=lambda entry: (entry[0].kind, entry[0].namespace or "", entry[0].name)))


def _where(finding: Violation | Advice, result: Result) -> Location | None:
    """A finding about a file carries its line as the first part of its path: `line 12, spec.order`."""
    if finding.subject.kind != FILE:
        return result.locate(finding.subject, finding.path)
    return Location(file=finding.subject.name, line=_line_in(finding) or 1)


def _line_in(finding: Violation | Advice) -> int | None:
    """The line that a finding about a file carries; none if it is about the whole, which may be a folder."""
    number = finding.path.removeprefix("line ").partition(",")[0]
    return int(number) if number.isdecimal() else None


def _path(finding: Violation | Advice) -> str:
    return finding.path.partition(", ")[2] if finding.subject.kind == FILE else finding.path


def _text(finding: Violation | Advice) -> str:
    """The finding as every caller words it, without the line that is shown beside it."""
    whole = str(finding)
    if finding.subject.kind != FILE or not finding.path:
        return whole
    rest = whole.removeprefix(finding.path).removeprefix(": ")
    path = _path(finding)
    return f"{path}: {rest}" if path else rest
