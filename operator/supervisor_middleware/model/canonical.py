"""One spelling for one value. PURE: RFC 8785 canonical JSON and the digests made of it.

The same inputs give the same bytes whatever the key order or number spelling they were typed with. JSON numbers
are doubles (a protobuf `Struct` holds nothing else), so an integer that a double cannot hold exactly is refused.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import rfc8785

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]
ParsedJson: TypeAlias = Mapping[str, Any]
"""JSON on its way in: a `from_json` takes it apart and raises KeyError, TypeError or ValueError on anything odd."""

MAX_EXACT_INTEGER: Final = 2**53 - 1
DIGEST_PATTERN: Final = r"^sha256:[0-9a-f]{64}$"

# The standard encoder is C and twenty times as fast as RFC 8785 in Python; `_is_plain` says where they agree.
_PLAIN: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
# RFC 8785 orders keys by UTF-16 code units, Python by code points: alike but for these.
_BEYOND_UTF16_ORDER: Final = re.compile("[\U00010000-\U0010ffff]")
_ONLY_STR: Final = frozenset({str})


def canonical(value: JsonValue) -> bytes:
    """RFC 8785 bytes of `value`.

    Raises:
        ValueError: a number no double holds exactly, NaN, infinity, or text that is not Unicode.
    """
    try:
        if _is_plain(value):
            text = _PLAIN.encode(value)
            if text.isascii() or not _BEYOND_UTF16_ORDER.search(text):
                return text.encode()
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return canonical(_with_doubles(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise ValueError("holds a value that canonical JSON cannot express") from error


def parse(data: bytes | str) -> Any:
    """JSON that came over a wire or from a disk.

    Raises:
        ValueError: it is no JSON, holds a number that is no double, or nests too deeply to be read.
    """
    try:
        return json.loads(data, parse_int=_exact, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nests too deeply to be read") from None


def digest(data: bytes) -> str:
    """`sha256:` and 64 hex digits, of exactly these bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether `text` has the form of a digest."""
    return re.fullmatch(DIGEST_PATTERN[1:-1], text, re.ASCII) is not None


def short(value: str) -> str:
    """The first 12 hex digits of a digest, for people."""
    return value.removeprefix("sha256:")[:12]


def _is_plain(value: JsonValue) -> bool:
    """Whether the standard encoder spells every number and key of `value` as RFC 8785 does. Iterative and quick."""
    pending: list[Any] = [value]
    for item in pending:
        kind = type(item)
        if kind is str or item is None or kind is bool:
            continue
        if kind is dict:
            if not _ONLY_STR.issuperset(map(type, item)):
                return False
            pending += item.values()
        elif kind is list or kind is tuple:
            pending += item
        elif kind is int:
            if not -MAX_EXACT_INTEGER <= item <= MAX_EXACT_INTEGER:
                return False
        elif kind is not float or not 1e-4 <= abs(item) < 1e15 or item.is_integer():
            # Within these bounds Python's shortest text has neither an exponent nor a final .0, like ECMAScript's.
            return False
    return True


def _with_doubles(value: Any) -> Any:
    """`value` with large integers as the doubles they are: RFC 8785 itself writes 1e20 without an exponent."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _exact(value)
    if isinstance(value, Mapping):
        return {k: _with_doubles(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_doubles(v) for v in value]
    return value


def _exact(written: int | str) -> int | float:
    """The number written: a large one as the double it is, or that RFC 8785 writes so."""
    value = int(written)
    if -MAX_EXACT_INTEGER <= value <= MAX_EXACT_INTEGER:
        return value
    try:
        double = float(value)
    except OverflowError:
        raise ValueError("holds an integer that a double cannot hold") from None
    if double != value and rfc8785.dumps(double) != str(value).encode():
        raise ValueError("holds an integer that a double cannot hold exactly")
    return double


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
