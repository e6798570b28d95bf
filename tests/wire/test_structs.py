import json
from types import MappingProxyType
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import given

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import MAX_EXACT_INTEGER, JsonObject, canonical
from supervisor_middleware.model.limits import MAX_CONFIG_DEPTH
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.wire.codec import decode_validate_config, encode_validate_config
from supervisor_middleware.wire.structs import ConfigUnencodable, config_struct, json_object
from tests.wire.values import BOTH, json_objects, unhurried


def through_the_wire(config: JsonObject) -> JsonObject:
    return json_object(struct_pb2.Struct.FromString(config_struct(config).encoded))


def nested(levels: int) -> dict[str, Any]:
    config: dict[str, Any] = {"k": 1}
    for _ in range(levels - 1):
        config = {"k": config}
    return config


@unhurried
@given(json_objects)
def test_json_survives_a_struct(config: dict[str, Any]) -> None:
    assert through_the_wire(config) == config
    assert canonical(through_the_wire(config)) == canonical(config)


@unhurried
@given(json_objects)
def test_the_struct_is_protobufs_own(config: dict[str, Any]) -> None:
    assert struct_pb2.Struct.FromString(config_struct(config).encoded) == json_format.ParseDict(
        config, struct_pb2.Struct()
    )


def test_whole_numbers_come_back_as_integers() -> None:
    came_back = through_the_wire({"a": 3, "b": 3.0, "c": 0.5, "d": 1e300, "e": True})
    assert {key: type(value) for key, value in came_back.items()} == {
        "a": int,
        "b": int,
        "c": float,
        "d": float,
        "e": bool,
    }


def test_integers_that_canonical_json_writes_are_held() -> None:
    config = {"a": 10**20, "b": 2**60, "c": json.loads(canonical(1e22 / 3))}
    assert canonical(through_the_wire(config)) == canonical(config)


def test_empty_containers_tuples_and_read_only_mappings_are_kept() -> None:
    assert through_the_wire({"o": {}, "l": (), "m": MappingProxyType({"k": ("v",)}), "n": None}) == {
        "o": {},
        "l": [],
        "m": {"k": ["v"]},
        "n": None,
    }


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"a": {"b": [1, MAX_EXACT_INTEGER + 2]}}, "config.a.b[1]"),
        ({"a": -MAX_EXACT_INTEGER - 2}, "config.a"),
        ({"a": 10**400}, "config.a"),
        ({"a": float("nan")}, "config.a"),
        ({"a": float("-inf")}, "config.a"),
        ({"a": "\ud800"}, "config.a"),
        ({"a": {"\ud800": 1}}, "config.a"),
        ({"a": {1: 1}}, "config.a"),
        ({"a": b"secret"}, "config.a"),
        ({"a": {1, 2}}, "config.a"),
        (nested(MAX_CONFIG_DEPTH + 1), "config"),
    ],
)
def test_what_a_struct_cannot_hold_is_refused_by_path_never_by_value(config: Any, path: str) -> None:
    with pytest.raises(ConfigUnencodable) as raised:
        config_struct(config)
    assert raised.value.path == path
    assert isinstance(raised.value, InvalidInput)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("dialect", BOTH)
def test_the_deepest_config_is_within_every_readers_limit(dialect: Dialect) -> None:
    lists: Any = 1
    for _ in range(MAX_CONFIG_DEPTH - 1):
        lists = [lists]
    config = {"lists": lists, "objects": nested(MAX_CONFIG_DEPTH - 1)}
    encoded = encode_validate_config(dialect, binding="b", config=config)
    assert decode_validate_config(dialect, encoded) == ("b", config)


def test_a_prepared_config_shows_nothing_of_itself() -> None:
    assert "hunter2" not in repr(config_struct({"password": "hunter2"}))


@pytest.mark.parametrize(
    "value",
    [struct_pb2.Value(), struct_pb2.Value(number_value=float("nan")), struct_pb2.Value(number_value=float("inf"))],
)
def test_a_peers_struct_that_is_no_json_is_refused(value: struct_pb2.Value) -> None:
    with pytest.raises(ValueError, match=r"a value has no kind|a number is not finite"):
        json_object(struct_pb2.Struct(fields={"k": value}))
