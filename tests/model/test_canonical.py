"""One spelling for one value: digests that do not depend on how something was typed."""

import math
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor_middleware.model import canonical as subject
from supervisor_middleware.model.canonical import canonical, digest, is_digest, short

doubles = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | doubles | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_key_order_does_not_change_the_bytes(value: Any) -> None:
    assert canonical(value) == canonical(reordered(value))


any_text = st.text(st.characters(codec=None))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(any_text | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


def by_the_library(value: Any) -> bytes | None:
    try:
        return rfc8785.dumps(subject._with_doubles(value))
    except (ValueError, UnicodeEncodeError):
        return None


def by_us(value: Any) -> bytes | None:
    try:
        return canonical(value)
    except ValueError:
        return None


@given(anything)
@example({"\U0001f600": 1, "\uff61": 2})
@example({"\uff61": 1, "\ue000": 2, "\x7f": 3, '\x00\x1f\b"\\/': "\u2028\t\n\r\f"})
@example([1e-4, 9.999e-5, 1e15, 1e15 + 0.5, 999999999999999.9, -0.1, 1e16, 5e-324, 100.0, -0.0])
@example([2**53 - 1, 1 - 2**53, 2**53, True, False, 0])
@example({1: 2})
@example("\ud83d\ude00")
def test_the_quick_way_and_the_library_write_the_same_bytes(value: Any) -> None:
    assert by_us(value) == by_the_library(value)


@given(values)
def test_what_was_written_reads_back_and_is_written_alike(value: Any) -> None:
    written = canonical(value)
    assert subject.parse(written) == value
    assert canonical(subject.parse(written)) == written


@given(doubles)
def test_every_double_survives(value: float) -> None:
    read = float(subject.parse(canonical(value)))
    assert struct.pack(">d", read + 0.0) == struct.pack(">d", value + 0.0)


@pytest.mark.parametrize(
    ("number", "text"), [(10, b"10"), (10.0, b"10"), (1e20, b"100000000000000000000"), (-0.0, b"0")]
)
def test_a_number_has_one_spelling(number: float, text: bytes) -> None:
    assert canonical(number) == text


@pytest.mark.parametrize("number", [2**53, 2**60, 10**20, -(10**20), 590295810358705700000])
def test_a_large_integer_that_is_a_double_is_accepted_wherever_it_stands(number: int) -> None:
    written = canonical({"a": [number, (1,), True, None]})
    assert subject.parse(written) == {"a": [float(number), [1], True, None]}
    assert b"true" in written


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**20 + 1, 2**64 - 1, 10**400])
def test_an_integer_that_no_double_holds_is_refused_wherever_it_stands(number: int) -> None:
    with pytest.raises(ValueError, match="double cannot hold"):
        canonical({"a": [number]})


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "\ud800", {"\udfff": 1}, {1: 2}, b"x", {"a": object()}]
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="canonical JSON cannot express"):
        canonical(value)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"NaN", b"[-Infinity]", b"[" * 100_000, b"9" * 5000, b"9" * 400, b"9007199254740993"]
)
def test_reading_refuses_what_is_not_json(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        subject.parse(text)


def test_a_digest_names_exactly_these_bytes() -> None:
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest(b" ") != digest(b"")
    assert short(digest(b"")) == "e3b0c44298fc"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (digest(b""), True),
        ("sha256:" + "a" * 63, False),
        ("sha256:" + "A" * 64, False),
        ("sha256:" + "a" * 64 + "\n", False),
        ("sha1:" + "a" * 64, False),
        ("", False),
    ],
)
def test_a_digest_is_known_by_its_form(text: str, expected: bool) -> None:  # noqa: FBT001 - a table
    assert is_digest(text) is expected
