"""Tables for people, as kubectl has them: one line a row however narrow the terminal, colours only on one."""

from collections.abc import Iterable, Sequence
from typing import Final, TextIO, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

Row: TypeAlias = Sequence[str | Text]

_GAP: Final = "  "


def console(out: TextIO | None = None) -> Console:
    """On `out`, or standard output: never wrapped, coloured only on a terminal and without NO_COLOR."""
    return Console(file=out, highlight=False, soft_wrap=True, markup=False, emoji=False)


def table(columns: Sequence[str], rows: Iterable[Row]) -> Text:
    """`rows` under `columns`; a column whose name ends in `>` is aligned to the right."""
    names = [Text(name.removesuffix(">"), style="bold") for name in columns]
    cells = [names, *([Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)]
    widths = [max(cell_len(row[i].plain) for row in cells) for i in range(len(columns))]
    rights = [name.endswith(">") for name in columns]
    return Text("\n").join(_line(row, widths=widths, rights=rights) for row in cells)


def coloured(status: str) -> Text:
    """A condition's status in its colour."""
    return Text(status, style={"True": "green", "False": "red"}.get(status, "yellow"))


def _line(row: Sequence[Text], *, widths: Sequence[int], rights: Sequence[bool]) -> Text:
    line = Text()
    for cell, width, is_right in zip(row, widths, rights, strict=True):
        padding = " " * (width - cell_len(cell.plain))
        line.append(_GAP if line else "").append(padding if is_right else "")
        line.append_text(cell).append("" if is_right else padding)
    line.rstrip()
    return line
