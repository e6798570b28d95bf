"""One YAML document to the JSON value kubectl makes of it. PURE, and bounded whatever the bytes are.

Built from parser events with a stack of its own, so that nesting, aliases and size are limited while reading and no
input exhausts the interpreter. An alias costs what it expands to (billion laughs), though values are shared. Where
kubectl is silent and people lose (a key that is there twice, a tag that is dropped), it is a problem here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import yaml

from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.model.limits import MIB
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.sources.problems import MAX_PROBLEMS, Problem, Refused, syntax_problem
from supervisor_middleware.sources.scalars import (
    TAG_PREFIX,
    NotResolvable,
    resolve_key,
    resolve_plain,
    resolve_tagged,
)

MAX_DEPTH: Final = 100
MAX_EXPANDED_BYTES: Final = 16 * MIB

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "<<"
_MAX_KEY_SHOWN: Final = 64


@dataclass(slots=True)
class Built:
    """A value, and what is wrong with it though it could be read. `expanded` is its size with aliases written out."""

    value: JsonValue = None
    expanded: int = 0
    problems: list[Problem] = field(default_factory=list)


def build(text: str, *, first_line: int, lines: dict[str, int] | None = None) -> Built:
    """The document in `text`, which begins at `first_line` of its file; `lines` receives where each field stands.

    Raises:
        Refused: it is no YAML, holds more than one document, or is over a limit.
    """
    builder = _Builder(first_line, lines)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.YAMLError as error:
        raise Refused(syntax_problem(error, first_line=first_line)) from None
    return builder.built


@dataclass(slots=True)
class _Cell:
    """A node that an alias may mean; not ready while it is still being read."""

    value: JsonValue = None
    nodes: int = 1
    size: int = 0
    is_ready: bool = False


@dataclass(slots=True)
class _Frame:
    """A collection being read."""

    cell: _Cell
    mapping: dict[str, JsonValue] | None
    items: list[JsonValue]
    seen: set[str]
    key: str | None = None
    is_merge: bool = False
    merges: bool = False
    """Whether this is the sequence behind a `<<`."""

    @property
    def awaits_key(self) -> bool:
        """Whether the next node is the key of a mapping."""
        return self.mapping is not None and self.key is None and not self.is_merge


class _Builder:
    """Takes events in order. The rules of yaml/v2: `decode.go`."""

    def __init__(self, first_line: int, lines: dict[str, int] | None) -> None:
        self.built = Built()
        self._lines = lines
        self._first_line = first_line
        self._stack: list[_Frame] = []
        self._anchors: dict[str, _Cell] = {}
        self._decoded = 0
        self._aliased = 0
        self._documents = 0
        self._line = first_line

    def take(self, event: yaml.Event) -> None:
        """Advance by one event."""
        self._line = self._first_line + (event.start_mark.line if event.start_mark is not None else 0)
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor or "")
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close()
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._refused(
                    "is no YAML: kubectl reads nothing after the end of the first document",
                    "begin the next one with a line ---",
                )

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        frame = self._stack[-1] if self._stack else None
        cell = self._cell(event.anchor)
        cell.size = len(event.value) + 4
        self._spend(1, cell.size)
        cell.is_ready = True
        if frame is not None and frame.awaits_key:
            self._key(frame, event)
            cell.value = event.value
            return
        self._mark()
        try:
            cell.value = _resolve(event)
        except NotResolvable as error:
            self._problem(str(error), "quote it")
        self._add(cell)

    def _key(self, frame: _Frame, event: yaml.ScalarEvent) -> None:
        if event.value == _MERGE and (event.implicit[0] or event.tag == TAG_PREFIX + "merge"):
            frame.is_merge = True
            return
        try:
            is_plain = event.tag is None and event.implicit[0]
            key = resolve_key(event.value) if is_plain else _tagged_key(event)
        except NotResolvable as error:
            raise self._refused(f"the key {error}", "quote it") from None
        self._set_key(frame, key)

    def _set_key(self, frame: _Frame, key: str) -> None:
        if key in frame.seen:
            shown = "".join(c if c.isprintable() else "?" for c in key[:_MAX_KEY_SHOWN])
            frame.key = key
            self._problem(f"the key {shown} is there twice; kubectl would drop one of them", "rename or remove one")
        frame.seen.add(key)
        frame.key = key

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        parent = self._stack[-1] if self._stack else None
        if parent is not None and parent.awaits_key:
            raise self._refused("a key must be a string, not an object or a list", "quote it if it is text")
        if len(self._stack) >= MAX_DEPTH:
            raise self._refused(f"nests deeper than {MAX_DEPTH} levels", "", reason=Reason.TOO_LARGE)
        if event.tag not in {None, "!", TAG_PREFIX + ("map" if is_mapping else "seq")}:
            self._problem("has a tag, which kubectl would drop", "remove the tag")
        self._mark()
        self._spend(1, 2)
        merges = parent is not None and parent.is_merge and not is_mapping
        frame = _Frame(
            cell=self._cell(event.anchor), mapping={} if is_mapping else None, items=[], seen=set(), merges=merges
        )
        frame.cell.size = 2
        self._stack.append(frame)

    def _close(self) -> None:
        frame = self._stack.pop()
        frame.cell.value = frame.items if frame.mapping is None else frame.mapping
        frame.cell.is_ready = True
        self._add(frame.cell)

    def _alias(self, anchor: str) -> None:
        cell = self._anchors.get(anchor)
        if cell is None:
            raise self._refused("an alias has no anchor before it", "define it with & first, in the same document")
        if not cell.is_ready:
            raise self._refused("an anchor's value contains itself", "")
        self._aliased += cell.nodes
        self._spend(1 + cell.nodes, cell.size)
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.awaits_key:
            self._alias_as_key(frame, cell)
            return
        self._mark()
        self._add(cell)

    def _alias_as_key(self, frame: _Frame, cell: _Cell) -> None:
        if not isinstance(cell.value, str):
            raise self._refused("an alias as a key must mean a string", "write the key out")
        self._set_key(frame, cell.value)

    def _add(self, cell: _Cell) -> None:
        if not self._stack:
            self.built.value = cell.value
            self.built.expanded = cell.size
            return
        frame = self._stack[-1]
        frame.cell.nodes += cell.nodes
        frame.cell.size += cell.size
        if frame.mapping is None:
            if frame.merges and not isinstance(cell.value, dict):
                raise self._refused("<< merges only mappings", "")
            frame.items.append(cell.value)
        elif frame.is_merge:
            self._merge(frame.mapping, cell.value)
            frame.is_merge = False
        elif frame.key is not None:
            frame.mapping[frame.key] = cell.value
            frame.key = None

    def _merge(self, into: dict[str, JsonValue], value: JsonValue) -> None:
        """yaml/v2 merges where the `<<` stands: it overrides what stands before, and is overridden after."""
        for item in reversed(value) if isinstance(value, list) else [value]:
            if not isinstance(item, dict):
                raise self._refused("<< merges only mappings", "")
            into.update(item)

    def _cell(self, anchor: str | None) -> _Cell:
        cell = _Cell()
        if anchor is not None:
            self._anchors[anchor] = cell
        return cell

    def _spend(self, nodes: int, size: int) -> None:
        self._decoded += nodes
        self.built.expanded += size
        excessive = self._aliased > 100 and self._decoded > 1000  # yaml/v2's own numbers
        if (excessive and self._aliased / self._decoded > _allowed_ratio(self._decoded)) or (
            self.built.expanded > MAX_EXPANDED_BYTES
        ):
            raise self._refused("aliases expand to too much", "write it out", reason=Reason.TOO_LARGE)

    def _mark(self) -> None:
        if self._lines is not None:
            self._lines.setdefault(self._path(), self._line)

    def _path(self) -> str:
        return path_of(self._segments())

    def _segments(self) -> Iterator[str | int]:
        for frame in self._stack:
            if frame.mapping is None:
                yield len(frame.items)
            elif frame.key is not None:
                yield frame.key

    def _problem(self, message: str, hint: str) -> None:
        if len(self.built.problems) < MAX_PROBLEMS:
            self.built.problems.append(Problem(line=self._line, message=message, hint=hint, path=self._path()))

    def _refused(self, message: str, hint: str, *, reason: Reason = Reason.MALFORMED) -> Refused:
        return Refused(Problem(line=self._line, reason=reason, message=message, hint=hint, path=self._path()))


def _resolve(event: yaml.ScalarEvent) -> JsonValue:
    if event.tag == "!" or (event.tag is None and not event.implicit[0]):
        return event.value
    if event.tag is None:
        return resolve_plain(event.value)
    return resolve_tagged(event.tag.removeprefix(TAG_PREFIX) if event.tag.startswith(TAG_PREFIX) else "", event.value)


def _tagged_key(event: yaml.ScalarEvent) -> str:
    if event.tag in {None, "!", TAG_PREFIX + "str"}:
        return event.value
    raise NotResolvable("has a tag")


def _allowed_ratio(decoded: int) -> float:
    """yaml/v2 `allowedAliasRatio`: 99 % of small documents may come from aliases, 10 % of large ones."""
    low, high = 400_000, 4_000_000
    share = min(max((decoded - low) / (high - low), 0.0), 1.0)
    return 0.99 - 0.89 * share
