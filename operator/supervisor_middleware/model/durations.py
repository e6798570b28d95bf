"""The two duration grammars users type. PURE.

RFC 0009 "Registration and delivery": RPC timeouts are an integer with an `ms` or `s` suffix, 10 ms to 30 s.
"""

import re
from datetime import timedelta
from typing import Final

from supervisor_middleware.model.limits import ACTIVATION_DEADLINE_MAX, TIMEOUT_MAX, TIMEOUT_MIN

TIMEOUT_PATTERN: Final = r"^[0-9]+(ms|s)$"
DEADLINE_PATTERN: Final = r"^[0-9]+(ms|s|m|h)$"
TIMEOUT_RULE: Final = "an integer with the suffix ms or s, from 10ms to 30s (for example 500ms)"
DEADLINE_RULE: Final = "an integer with the suffix ms, s, m or h, from 0s to 24h (for example 2m)"

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
}
# More digits than any allowed value has: an int() of a megabyte of digits is never made.
_MAX_LENGTH: Final = 16


def parse_timeout(text: str) -> timedelta:
    """An RPC timeout.

    Raises:
        ValueError: `text` is not `TIMEOUT_RULE`; the message never repeats it.
    """
    return _parse(text, pattern=TIMEOUT_PATTERN, bounds=(TIMEOUT_MIN, TIMEOUT_MAX), rule=TIMEOUT_RULE)


def parse_deadline(text: str) -> timedelta:
    """An activation deadline.

    Raises:
        ValueError: `text` is not `DEADLINE_RULE`.
    """
    return _parse(text, pattern=DEADLINE_PATTERN, bounds=(timedelta(0), ACTIVATION_DEADLINE_MAX), rule=DEADLINE_RULE)


def read_duration(text: str, *, pattern: str = DEADLINE_PATTERN) -> timedelta | None:
    """A duration without bounds; None if `text` is none of that grammar."""
    match = re.fullmatch(pattern[1:-1], text, re.ASCII) if len(text) <= _MAX_LENGTH else None
    if match is None:
        return None
    unit = match.group(1)
    try:
        return int(text.removesuffix(unit)) * _UNITS[unit]
    except OverflowError:
        return None


def format_duration(value: timedelta) -> str:
    """The shortest exact spelling in `s` or `ms`: what status and CLI show."""
    milliseconds = round(value / timedelta(milliseconds=1))
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def _parse(text: str, *, pattern: str, bounds: tuple[timedelta, timedelta], rule: str) -> timedelta:
    value = read_duration(text, pattern=pattern)
    if value is None or not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"must be {rule}")
    return value
