"""Where the objects of a document stand: a List holds many. PURE."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.sources.documents import Document, lines_of
from supervisor_middleware.sources.problems import Problem

_MAX_NESTED_LISTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a file an object stands: the line and path of its document, and the path within that."""

    line: int
    within: str = ""


def flattened(document: Document) -> Iterator[tuple[Place, JsonValue]]:
    """The objects of a document: a List holds many."""
    stack: list[tuple[str, JsonValue, int]] = [("", document.value, 0)]
    while stack:
        within, value, depth = stack.pop()
        items = value.get("items") if isinstance(value, dict) else None
        is_list = isinstance(value, dict) and str(value.get("kind", "")).endswith("List") and isinstance(items, list)
        if not is_list or not isinstance(items, list) or depth == _MAX_NESTED_LISTS:
            yield Place(line=document.line, within=within), value
            continue
        inner = f"{within}." if within else ""
        stack.extend((f"{inner}items[{i}]", item, depth + 1) for i, item in reversed(list(enumerate(items))))


def located(problems: Iterable[Problem], content: bytes) -> Iterator[Problem]:
    """Problems that know the line of their document only, each at the line of its field or of what is above it."""
    known: dict[int, Mapping[str, int]] = {}
    for problem in problems:
        if problem.line not in known:
            known[problem.line] = lines_of(content, Document(line=problem.line, value=None, size=0))
        yield replace(problem, line=line_of(known[problem.line], problem.path, otherwise=problem.line))


def line_of(lines: Mapping[str, int], path: str, *, otherwise: int) -> int:
    """The line of a field, or of the closest thing above it that has one."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, otherwise)
