"""Markdown as the reference pages need it: tables whose cells cannot break them, and pages that say where they come from."""

from collections.abc import Iterable, Sequence

_NOTICE = "<!-- Generated from the code by `make generate`; do not edit. -->"


def page(title: str, *parts: str) -> bytes:
    """A whole page: the title, the notice that it is generated, then the parts."""
    return ("\n\n".join((f"# {title}", _NOTICE, *(p.strip("\n") for p in parts))) + "\n").encode()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already, apart from what would end a cell."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def code(text: object) -> str:
    """Inline code; nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def listed(items: Iterable[str]) -> str:
    """A bullet list."""
    return "\n".join(f"- {item}" for item in items)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
