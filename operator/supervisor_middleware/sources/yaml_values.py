"""One YAML document to the JSON value kubectl makes of it. PURE, and bounded whatever the bytes are.

Built from parser events with a stack of its own, so that nesting, aliases and size are limited while reading and no
input exhausts the interpreter. An alias costs what it expands to (billion laughs), though values are shared. Where
kubectl is silent and people lose (a key that is there twice, a tag that is dropped), it is a problem here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import yaml

from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.model.limits import MIB
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.sources.problems import MAX_PROBLEMS, Problem, Refused, syntax_problem
from supervisor_middleware.sources.scalars import TAG_PREFIX, NotResolvable
from supervisor_middleware.sources.yaml_nodes import Cell, Frame
from supervisor_middleware.sources.yaml_scalars import key_of, value_of

MAX_DEPTH: Final = 100
MAX_EXPANDED_BYTES: Final = 16 * MIB

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "<<"
_MAX_KEY_SHOWN: Final = 64
_OBJECT_KEYS: Final = frozenset({"apiVersion", "kind", "metadata"})
_MAPPING_TAGS: Final = frozenset({"!", TAG_PREFIX + "map"})
_SEQUENCE_TAGS: Final = frozenset({"!", TAG_PREFIX + "seq"})


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
        builder.take_all(_LOADER(text))
    except yaml.YAMLError as error:
        raise Refused(syntax_problem(error, first_line=first_line)) from None
    return builder.built


class _Events(Protocol):
    """A parser, as far as it is used here."""

    def get_event(self) -> yaml.Event | None: ...


class _Builder:
    """Takes events in order. The rules of yaml/v2: `decode.go`.

    The hot path of reading ten thousand files: no object, mark or path is made for a node that does not need it.
    """

    def __init__(self, first_line: int, lines: dict[str, int] | None) -> None:
        self.built = Built()
        self._lines = lines
        self._first_line = first_line
        self._stack: list[Frame] = []
        self._anchors: dict[str, Cell] = {}
        self._decoded = 0
        self._aliased = 0
        self._expanded = 0
        self._documents = 0
        self._event: yaml.Event | None = None

    def take_all(self, events: _Events) -> None:
        """Everything until the end of the stream."""
        takers: dict[type[yaml.Event], Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: self._open_mapping,
            yaml.SequenceStartEvent: self._open_sequence,
            yaml.MappingEndEvent: self._close,
            yaml.SequenceEndEvent: self._close,
            yaml.DocumentStartEvent: self._document,
        }
        while (event := events.get_event()) is not None:
            self._event = event
            take = takers.get(type(event))
            if take is not None:
                take(event)

    @property
    def _line(self) -> int:
        mark = None if self._event is None else self._event.start_mark
        return self._first_line + (mark.line if mark is not None else 0)

    def _document(self, _event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self._refused(
                "is no YAML: kubectl reads nothing after the end of the first document",
                "begin the next one with a line ---",
            )

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        text: str = event.value
        size = len(text) + 4
        self._decoded += 1
        self._expanded += size
        if self._aliased or self._expanded > MAX_EXPANDED_BYTES:
            self._require_moderation()
        if self._stack and self._stack[-1].awaits_key:
            if event.anchor is not None:
                self._anchors[event.anchor] = Cell(value=text, size=size, is_ready=True)
            self._key(self._stack[-1], event)
            return
        if self._lines is not None:
            self._mark(self._lines)
        value: JsonValue = None
        try:
            value = value_of(event)
        except NotResolvable as error:
            self._problem(str(error), "quote it")
        if event.anchor is not None:
            self._anchors[event.anchor] = Cell(value=value, size=size, is_ready=True)
        self._add(value, nodes=1, size=size)

    def _key(self, frame: Frame, event: yaml.ScalarEvent) -> None:
        text: str = event.value
        if text == _MERGE and (event.implicit[0] or event.tag == TAG_PREFIX + "merge"):
            frame.is_merge, frame.awaits_key = True, False
            return
        try:
            key = key_of(event)
        except NotResolvable as error:
            raise self._refused(f"the key {error}", "quote it") from None
        self._set_key(frame, key)

    def _set_key(self, frame: Frame, key: str) -> None:
        frame.key, frame.awaits_key = key, False
        if frame.seen is not None:
            is_twice = key in frame.seen
            frame.seen.add(key)
        else:
            is_twice = frame.mapping is not None and key in frame.mapping
        if is_twice:
            shown = "".join(c if c.isprintable() else "?" for c in key[:_MAX_KEY_SHOWN])
            # The usual way to come to two of these is a forgotten separator.
            is_new_object = len(self._stack) == 1 and key in _OBJECT_KEYS
            hint = f"rename or remove one{'; begin another object with a line ---' if is_new_object else ''}"
            self._problem(f"the key {shown} is there twice; kubectl would drop one of them", hint)

    def _open_mapping(self, event: yaml.MappingStartEvent) -> None:
        if event.tag is not None and event.tag not in _MAPPING_TAGS:
            self._drop_tag()
        self._open(event, {}, merges=False)

    def _open_sequence(self, event: yaml.SequenceStartEvent) -> None:
        if event.tag is not None and event.tag not in _SEQUENCE_TAGS:
            self._drop_tag()
        self._open(event, None, merges=bool(self._stack) and self._stack[-1].is_merge)

    def _open(
        self,
        event: yaml.MappingStartEvent | yaml.SequenceStartEvent,
        mapping: dict[str, JsonValue] | None,
        *,
        merges: bool,
    ) -> None:
        if self._stack and self._stack[-1].awaits_key:
            raise self._refused("a key must be a string, not an object or a list", "quote it if it is text")
        if len(self._stack) >= MAX_DEPTH:
            raise self._refused(f"nests deeper than {MAX_DEPTH} levels", "", reason=Reason.TOO_LARGE)
        if self._lines is not None:
            self._mark(self._lines)
        self._decoded += 1
        self._expanded += 2
        if self._aliased or self._expanded > MAX_EXPANDED_BYTES:
            self._require_moderation()
        cell = None
        if event.anchor is not None:
            cell = self._anchors[event.anchor] = Cell()
        self._stack.append(Frame(cell, mapping, merges=merges))

    def _close(self, _event: yaml.MappingEndEvent | yaml.SequenceEndEvent) -> None:
        frame = self._stack.pop()
        value: JsonValue = frame.items if frame.mapping is None else frame.mapping
        cell = frame.cell
        if cell is not None:
            cell.value, cell.nodes, cell.size, cell.is_ready = value, frame.nodes, frame.size, True
        self._add(value, nodes=frame.nodes, size=frame.size)

    def _alias(self, event: yaml.AliasEvent) -> None:
        cell = self._anchors.get(event.anchor or "")
        if cell is None:
            raise self._refused("an alias has no anchor before it", "define it with & first, in the same document")
        if not cell.is_ready:
            raise self._refused("an anchor's value contains itself", "")
        self._aliased += cell.nodes
        self._decoded += 1 + cell.nodes
        self._expanded += cell.size
        self._require_moderation()
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.awaits_key:
            self._alias_as_key(frame, cell)
            return
        if self._lines is not None:
            self._mark(self._lines)
        self._add(cell.value, nodes=cell.nodes, size=cell.size)

    def _alias_as_key(self, frame: Frame, cell: Cell) -> None:
        if not isinstance(cell.value, str):
            raise self._refused("an alias as a key must mean a string", "write the key out")
        self._set_key(frame, cell.value)

    def _add(self, value: JsonValue, *, nodes: int, size: int) -> None:
        if not self._stack:
            self.built.value = value
            self.built.expanded = size
            return
        frame = self._stack[-1]
        frame.nodes += nodes
        frame.size += size
        if frame.mapping is None:
            if frame.merges and not isinstance(value, dict):
                raise self._refused("<< merges only mappings", "")
            frame.items.append(value)
        elif frame.key is not None:
            frame.mapping[frame.key] = value
            frame.key, frame.awaits_key = None, True
        else:
            self._merge(frame, frame.mapping, value)

    def _merge(self, frame: Frame, into: dict[str, JsonValue], value: JsonValue) -> None:
        """yaml/v2 merges where the `<<` stands: it overrides what stands before, and is overridden after."""
        if frame.seen is None:
            frame.seen = set(into)
        for item in reversed(value) if isinstance(value, list) else [value]:
            if not isinstance(item, dict):
                raise self._refused("<< merges only mappings", "")
            into.update(item)
        frame.is_merge, frame.awaits_key = False, True

    def _require_moderation(self) -> None:
        excessive = self._aliased > 100 and self._decoded > 1000  # yaml/v2's own numbers
        if (excessive and self._aliased / self._decoded > _allowed_ratio(self._decoded)) or (
            self._expanded > MAX_EXPANDED_BYTES
        ):
            raise self._refused("aliases expand to too much", "write it out", reason=Reason.TOO_LARGE)

    def _drop_tag(self) -> None:
        self._problem("has a tag, which kubectl would drop", "remove the tag")

    def _mark(self, lines: dict[str, int]) -> None:
        lines.setdefault(self._path(), self._line)

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


def _allowed_ratio(decoded: int) -> float:
    """yaml/v2 `allowedAliasRatio`: 99 % of small documents may come from aliases, 10 % of large ones."""
    low, high = 400_000, 4_000_000
    share = min(max((decoded - low) / (high - low), 0.0), 1.0)
    return 0.99 - 0.89 * share
