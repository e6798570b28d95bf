"""JSON that is kept for long and looked into seldom. PURE.

A parsed object takes ten times its text, and twenty times its compressed text. What thousands of objects are kept as,
and a pass does not look into, is kept as text.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.struct_size import depth

_MAX_DEPTH: Final = 64
"""Deeper text might not be read again by whoever stands deeper in the stack than we do."""
_ENCODER: Final = json.JSONEncoder(check_circular=False, separators=(",", ":"))
_QUICK: Final = 1


class CompactObject(Mapping[str, JsonValue]):
    """An object that is parsed anew by each look into it: whoever looks twice takes `expanded` first."""

    __slots__ = ("_text",)

    def __init__(self, value: JsonObject) -> None:
        """Of an object that `compact` found fit."""
        self._text = zlib.compress(_ENCODER.encode(value).encode("ascii"), _QUICK)

    def __getitem__(self, key: str) -> JsonValue:
        value: JsonValue = self.expand()[key]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.expand())

    def __len__(self) -> int:
        return len(self.expand())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CompactObject):
            return self._text == other._text
        return self.expand() == other

    __hash__ = None  # type: ignore[assignment] # like any mapping of JSON

    def __repr__(self) -> str:
        # Never a value: specs hold configs.
        return f"<{len(self._text)} bytes>"

    def expand(self) -> dict[str, Any]:
        """As it was, a new one each time."""
        found: dict[str, Any] = json.loads(zlib.decompress(self._text))
        return found


def compact(value: JsonObject) -> JsonObject:
    """`value` in little memory, or as it is if it nests too deeply for that."""
    return value if depth(value) > _MAX_DEPTH else CompactObject(value)


def expanded(value: JsonObject) -> JsonObject:
    """`value`, parsed if it is compact."""
    return value.expand() if isinstance(value, CompactObject) else value
