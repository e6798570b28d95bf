"""Configs as `google.protobuf.Struct`: JSON in, JSON out, refusing what a Struct cannot hold.

A Struct's numbers are doubles: what canonical JSON refuses is refused here, and whole numbers come back as `int`,
since JSON does not tell 3 from 3.0. Called by the codec, and by whoever prepares a stage once so that
its config is not encoded again for each request.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf import struct_pb2

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import MAX_EXACT_INTEGER, JsonObject, JsonValue, canonical
from supervisor_middleware.model.limits import MAX_CONFIG_DEPTH
from supervisor_middleware.model.struct_size import depth


class ConfigUnencodable(InvalidInput):
    """A config that no Struct holds. Names the path and the rule, never the value."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"{path}: {rule}")
        self.path = path
        self.rule = rule


@dataclass(frozen=True, slots=True)
class ConfigStruct:
    """A config, encoded once: the bytes of its Struct. May hold secrets, hence not in the repr."""

    encoded: bytes = field(repr=False)


def config_struct(config: JsonObject) -> ConfigStruct:
    """Encode `config`; equal configs give equal bytes.

    Raises:
        ConfigUnencodable: it holds what a Struct cannot.
    """
    if depth(config) > MAX_CONFIG_DEPTH:
        raise ConfigUnencodable("config", f"nests deeper than {MAX_CONFIG_DEPTH} levels")
    struct = struct_pb2.Struct()
    _fill(struct, config, path="config")
    return ConfigStruct(struct.SerializeToString(deterministic=True))


def json_object(struct: struct_pb2.Struct) -> JsonObject:
    """What a peer's Struct holds.

    Raises:
        ValueError: a value without a kind, or a number JSON does not have.
    """
    return {key: _json_value(value) for key, value in struct.fields.items()}


def _fill(struct: struct_pb2.Struct, values: JsonObject, *, path: str) -> None:
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigUnencodable(path, "a key is not text")
        _require_unicode(key, path=path)
        _set(struct.fields[key], value, path=f"{path}.{key}")


def _set(target: struct_pb2.Value, value: JsonValue, *, path: str) -> None:
    match value:
        case None:
            target.null_value = struct_pb2.NULL_VALUE
        case bool():
            target.bool_value = value
        case int() | float():
            target.number_value = _number(value, path=path)
        case str():
            _require_unicode(value, path=path)
            target.string_value = value
        case Mapping():
            target.struct_value.SetInParent()
            _fill(target.struct_value, value, path=path)
        case list() | tuple():
            target.list_value.SetInParent()
            for index, item in enumerate(value):
                _set(target.list_value.values.add(), item, path=f"{path}[{index}]")
        case _:
            raise ConfigUnencodable(path, "must be an object, an array, text, a number, true, false or null")


def _number(value: float, *, path: str) -> float:
    try:
        canonical(value)
    except ValueError:
        raise ConfigUnencodable(path, "a number must be finite and one that a double holds exactly") from None
    return float(value)


def _require_unicode(text: str, *, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigUnencodable(path, "text must be valid Unicode") from None


def _json_value(value: struct_pb2.Value) -> JsonValue:
    match value.WhichOneof("kind"):
        case "null_value":
            return None
        case "bool_value":
            return value.bool_value
        case "number_value":
            return _json_number(value.number_value)
        case "string_value":
            return value.string_value
        case "struct_value":
            return json_object(value.struct_value)
        case "list_value":
            return [_json_value(item) for item in value.list_value.values]
        case _:
            raise ValueError("a value has no kind")


def _json_number(value: float) -> int | float:
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return int(value) if value.is_integer() and abs(value) <= MAX_EXACT_INTEGER else value
