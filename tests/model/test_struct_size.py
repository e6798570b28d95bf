"""The computed size against the real encoder, and how deep is too deep."""

from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.limits import MAX_CONFIG_DEPTH
from supervisor_middleware.model.struct_size import depth, stored_config, struct_size

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6), max_leaves=40
)
configs = st.dictionaries(st.text(), values, max_size=6)


def encoded(config: dict[str, Any]) -> int:
    message = Struct()
    message.update(config)
    return message.ByteSize()


def nested(levels: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for _ in range(levels - 1):
        config = {"a": config}
    return config


@given(configs)
def test_size_is_what_protobuf_encodes(config: dict[str, Any]) -> None:
    assert struct_size(config) == encoded(config)


@pytest.mark.parametrize("length", [0, 100, 117, 118, 119, 120, 127, 128, 16_370, 16_380, 16_384, 65_519, 2_097_152])
def test_size_is_right_where_a_length_takes_another_byte(length: int) -> None:
    config = {"key": "x" * length}
    assert struct_size(config) == encoded(config)


def test_tuples_count_as_lists() -> None:
    assert struct_size({"a": (1, "b")}) == struct_size({"a": [1, "b"]})


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_what_json_does_not_have_has_no_size(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON does not have"):
        struct_size({"key": value})


def test_depth_counts_objects_and_lists_inside_each_other() -> None:
    assert depth("scalar") == 0
    assert depth({}) == 0
    assert depth({"a": 1}) == 1
    assert depth({"a": [1, {"b": (2,)}], "c": 3}) == 4


def test_depth_of_anything_is_found_without_using_the_stack() -> None:
    assert depth(nested(200_000)) == 199_999


def test_a_config_at_the_depth_limit_can_be_sent() -> None:
    config = nested(MAX_CONFIG_DEPTH + 1)
    assert depth(config) == MAX_CONFIG_DEPTH
    message = Struct()
    message.update(config)
    assert Struct.FromString(message.SerializeToString()) == message


def test_a_stored_config_is_an_object_within_the_limit() -> None:
    assert stored_config(nested(MAX_CONFIG_DEPTH + 1)) == nested(MAX_CONFIG_DEPTH + 1)
    with pytest.raises(ValueError, match="at most 30 levels"):
        stored_config(nested(MAX_CONFIG_DEPTH + 2))
    for value in (None, 5, "text", ["a"]):
        with pytest.raises(TypeError):
            stored_config(value)
