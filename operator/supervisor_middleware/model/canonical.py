"""One spelling for one value. PURE: RFC 8785 canonical JSON and the digests made of it.

The same inputs give the same bytes whatever the key order or number spelling they were typed with. JSON numbers
are doubles (a protobuf `Struct` holds nothing else), so an integer that a double cannot hold exactly is refused.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import rfc8785

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]
ParsedJson: TypeAlias = Mapping[str, Any]
"""JSON on its way in: a `from_json` takes it apart and raises KeyError, TypeError or ValueError on anything odd."""

MAX_EXACT_INTEGER = 2**53 - 1


def canonical(value: JsonValue) -> bytes:
    """RFC 8785 bytes of `value`.

    Raises:
        ValueError: a number no double holds exactly, NaN, infinity, or text that is not Unicode.
    """
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise ValueError("holds a value that canonical JSON cannot express") from error


def digest(data: bytes) -> str:
    """`sha256:` and 64 hex digits, of exactly these bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def short(value: str) -> str:
    """The first 12 hex digits of a digest, for people."""
    return value.removeprefix("sha256:")[:12]
