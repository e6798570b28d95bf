"""The two duration grammars at their edges."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.durations import format_duration, parse_deadline, parse_timeout


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("10ms", 10), ("500ms", 500), ("1s", 1000), ("30s", 30_000), ("30000ms", 30_000), ("0010ms", 10)],
)
def test_timeouts_from_10ms_to_30s_parse(text: str, milliseconds: int) -> None:
    assert parse_timeout(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    "text",
    ["9ms", "30001ms", "31s", "0s", "1.5s", "500", "1m", "", "-5ms", "+5s", " 1s", "1s ", "1s\n", "1 s", "1S", "ms", "\uff11s",
     "99999999999999s", "0" * 20 + "1s", "1e1s", "0x1s"],
)  # fmt: skip
def test_what_is_no_timeout_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be an integer with the suffix ms or s, from 10ms to 30s") as refusal:
        parse_timeout(text)
    assert len(text) < 5 or text not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0s", timedelta(0)),
        ("5ms", timedelta(milliseconds=5)),
        ("90s", timedelta(seconds=90)),
        ("2m", timedelta(minutes=2)),
        ("24h", timedelta(hours=24)),
        ("1440m", timedelta(hours=24)),
    ],
)
def test_deadlines_from_0s_to_24h_parse(text: str, expected: timedelta) -> None:
    assert parse_deadline(text) == expected


@pytest.mark.parametrize("text", ["25h", "1441m", "86401s", "1d", "1.5h", "", "-1s", "9999999999999h"])
def test_what_is_no_deadline_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="from 0s to 24h"):
        parse_deadline(text)


@given(st.integers(10, 30_000))
def test_a_formatted_timeout_parses_back(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert parse_timeout(format_duration(value)) == value


@given(st.integers(0, 24 * 3600 * 1000))
def test_a_formatted_deadline_parses_back(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert parse_deadline(format_duration(value)) == value


def test_the_spelling_is_the_shortest() -> None:
    assert format_duration(timedelta(seconds=2)) == "2s"
    assert format_duration(timedelta(milliseconds=2500)) == "2500ms"
    assert format_duration(timedelta(0)) == "0s"


@given(st.text(max_size=30))
def test_parsing_never_raises_anything_but_value_error(text: str) -> None:
    for parse in (parse_timeout, parse_deadline):
        try:
            parse(text)
        except ValueError:
            continue
