"""The size a config has on the wire, without protobuf. PURE: `google.protobuf.Struct`, RFC 0009's 64 KiB limit.

Kept free of protobuf because the compiler, which must judge the limit, knows no wire; a property test holds it
against the real encoder.
"""

from typing import Any, Final

from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.limits import MAX_CONFIG_DEPTH

_NUMBER: Final = 9
_NULL_OR_BOOL: Final = 2
_COLLECTIONS: Final = (dict, list, tuple)


def struct_size(config: JsonObject) -> int:
    """Bytes of `config` encoded as a `Struct`.

    Raises:
        ValueError: it holds something that is not JSON.
    """
    total = 0
    for key, value in config.items():
        total += _delimited(_text_size(key) + _delimited(_value_size(value)))
    return total


def depth(value: JsonValue) -> int:
    """How deeply objects and arrays nest; 0 for a scalar. Level by level, so no input can exhaust the stack."""
    deepest, level = 0, [value] if isinstance(value, _COLLECTIONS) and value else []
    while level:
        deepest += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if inner and isinstance(inner, _COLLECTIONS)
        ]
    return deepest


def stored_config(value: Any) -> JsonObject:
    """A config out of JSON that was stored or sent: whatever is done with it later, it will not surprise.

    Raises:
        TypeError, ValueError: it is no object, or nests deeper than any accepted config.
    """
    if not isinstance(value, dict):
        raise TypeError("a config is an object")
    if depth(value) > MAX_CONFIG_DEPTH:
        raise ValueError(f"a config nests at most {MAX_CONFIG_DEPTH} levels")
    return value


def _value_size(value: JsonValue) -> int:
    if isinstance(value, str):
        return _text_size(value)
    if value is None or isinstance(value, bool):
        return _NULL_OR_BOOL
    if isinstance(value, int | float):
        return _NUMBER
    if isinstance(value, dict):
        return _delimited(struct_size(value))
    if isinstance(value, list | tuple):
        return _delimited(sum(_delimited(_value_size(v)) for v in value))
    raise ValueError("holds a value that JSON does not have")


def _text_size(text: str) -> int:
    return _delimited(len(text) if text.isascii() else len(text.encode()))


def _delimited(length: int) -> int:
    """A one-byte tag, the length as a varint, and the bytes."""
    return length + 2 if length < 128 else 1 + -(-length.bit_length() // 7) + length
