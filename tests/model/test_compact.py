"""What is kept as text is what it was; only cheaper."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.compact import CompactObject, compact, expanded

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
OBJECTS = st.dictionaries(
    st.text(), st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)


@given(OBJECTS)
def test_what_is_kept_is_what_it_was(value: dict[str, Any]) -> None:
    kept = compact(value)
    assert isinstance(kept, CompactObject)
    assert expanded(kept) == value
    assert list(kept) == list(value)
    assert (len(kept), dict(kept)) == (len(value), value)


def test_it_equals_what_says_the_same() -> None:
    kept = compact({"a": [1, {"b": None}]})
    assert kept == compact({"a": [1, {"b": None}]})
    assert kept == {"a": [1, {"b": None}]}
    assert kept != compact({"a": []})
    assert kept != {"a": []}
    assert kept["a"] == [1, {"b": None}]
    assert kept.get("absent") is None


def test_text_that_is_not_unicode_survives() -> None:
    assert expanded(compact({"\ud800": "\udfff"})) == {"\ud800": "\udfff"}


def test_nobody_sees_a_value_of_it_in_a_log() -> None:
    assert "canary" not in repr(compact({"config": "canary"}))


def test_a_look_changes_nothing() -> None:
    kept = compact({"a": []})
    looked = expanded(kept)
    assert isinstance(looked, dict)
    looked["a"].append(1)
    assert expanded(kept) == {"a": []}


@pytest.mark.parametrize("nested", [{}, []])
def test_what_could_not_be_read_deeper_in_the_stack_stays_as_it_is(nested: Any) -> None:
    value: dict[str, Any] = {"config": nested}
    for _ in range(sys.getrecursionlimit()):
        value = {"config": value if isinstance(nested, dict) else [value]}
    assert compact(value | {"end": 1}) is not None
    assert not isinstance(compact(value), CompactObject)
    assert expanded(value) is value
