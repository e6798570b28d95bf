"""What a YAML scalar means to kubectl. PURE.

kubectl reads YAML through sigs.k8s.io/yaml, that is go.yaml.in/yaml/v2, then writes it as JSON and reads that again.
PyYAML alone differs on `1:30`, dates, `1e3`, `0o755`, `y` and more, so this follows `resolve.go` of yaml/v2 line by
line; `tests/golden/yaml` holds what the real kubectl says.
"""

import base64
import binascii
import math
import re
import struct
from collections.abc import Mapping
from typing import Final, TypeAlias

Scalar: TypeAlias = "str | bool | int | float | None"

TAG_PREFIX: Final = "tag:yaml.org,2002:"

_WORDS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NOT_FINITE: Final = frozenset(
    sign + word
    for sign, words in {
        "": (".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF"),
        "+": (".inf", ".Inf", ".INF"),
        "-": (".inf", ".Inf", ".INF"),
    }.items()
    for word in words
)
# Go's strconv.ParseInt with base 0, after yaml/v2 has taken out every underscore.
_INTEGER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))"
)
_BASES: Final[Mapping[str, int]] = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_DOT_FLOAT: Final = re.compile(r"\.[0-9]+([eE][-+]?[0-9]+)?")
# yaml/v2's own afterthought: after `0b` it takes what ParseInt with base 2 takes, a second sign included.
_SIGNED_BINARY: Final = re.compile(r"0b(?P<sign>[+-])(?P<digits>[01]+)")
_MAX_DIGITS: Final = 80  # more than 64 bits have in any base but for leading zeros; int() of a megabyte is never made
_INT64: Final = 2**63
_UINT64: Final = 2**64
_WHOLE_BELOW: Final = 1e21  # from here on encoding/json writes an exponent, and the reader sees a float


class NotResolvable(ValueError):  # noqa: N818 - named for the scalar
    """The scalar has no meaning in JSON, or not the one its tag asks for; the text says why, without the value."""


class Unsigned(int):
    """An integer beyond int64: JSON readers see a double, and yaml/v2 does not take it as a key."""


def resolve_plain(text: str) -> Scalar:
    """What an untagged plain scalar is.

    Raises:
        NotResolvable: NaN or infinity, which JSON does not have.
    """
    value = _resolve(text)
    return _as_json(value) if isinstance(value, float | Unsigned) else value


def resolve_tagged(tag: str, text: str) -> Scalar:
    """What a scalar with one of YAML's own tags is, quoted or not; `tag` is without `TAG_PREFIX`.

    Raises:
        NotResolvable: the text is not what the tag says, or the tag is none of YAML's for scalars.
    """
    if tag == "str":
        return text
    if tag == "binary":
        return _decoded(text)
    wanted = _TAGS.get(tag)
    if wanted is None:
        raise NotResolvable("has a tag that kubectl does not know")
    value = _resolve(text)
    if tag == "float" and type(value) is int:
        value = float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and tag != "bool"):
        raise NotResolvable(f"is not a !!{tag}, which its tag asks for")
    return _as_json(value) if isinstance(value, float | Unsigned) else value


def resolve_key(text: str) -> str:
    """The JSON key that a plain scalar makes as a key of a mapping.

    Raises:
        NotResolvable: null, or an integer beyond int64.
    """
    value = _resolve(text)
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Unsigned):
        raise NotResolvable("cannot be a key")
    if isinstance(value, bool):
        return "true" if value else "false"
    return _float_key(value) if isinstance(value, float) else str(value)


def whole(value: float) -> int | float:
    """A double as it comes back from JSON: `1e3` is written `1000` and read as an integer."""
    if value.is_integer() and abs(value) < _WHOLE_BELOW:
        return integer(int(value))
    return value


def integer(value: int) -> int | float:
    """An integer as a JSON reader of Kubernetes keeps it: int64, or a double."""
    return int(value) if -_INT64 <= value < _INT64 else float(value)


def _resolve(text: str) -> Scalar:
    """`resolve.go`: the first character decides what is tried at all."""
    first = text[:1]
    if text in _WORDS:
        return _WORDS[text]
    if text in _NOT_FINITE:
        return float(text.replace(".", ""))
    if first == ".":
        return _finite(text) if _DOT_FLOAT.fullmatch(text) else text
    if first and first in "+-0123456789":
        return _number(text)
    return text


def _number(text: str) -> str | int | float:
    plain = text.replace("_", "")
    whole_number = _int(plain)
    if whole_number is not None:
        return whole_number
    if _FLOAT.fullmatch(plain):
        value = _finite(plain)
        return text if isinstance(value, str) else value
    signed = _SIGNED_BINARY.fullmatch(plain)
    if signed is not None:
        whole_number = _int(f"{signed['sign']}0b{signed['digits']}")
        return text if whole_number is None else whole_number
    return text


def _int(plain: str) -> int | None:
    match = _INTEGER.fullmatch(plain)
    if match is None:
        return None
    base, digits = next((base, match[name]) for name, base in _BASES.items() if match[name] is not None)
    digits = digits.lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS:
        return None
    value = int(digits, base) * (-1 if match["sign"] == "-" else 1)
    if -_INT64 <= value < _INT64:
        return value
    return Unsigned(value) if not match["sign"] and value < _UINT64 else None


def _finite(text: str) -> str | float:
    """A number beyond a double stays text, as in yaml/v2."""
    value = float(text)
    return value if math.isfinite(value) else text


def _as_json(value: float) -> int | float:
    if isinstance(value, Unsigned):
        return float(value)
    if not math.isfinite(value):
        raise NotResolvable("is NaN or infinite, which JSON cannot hold")
    return whole(value)


def _float_key(value: float) -> str:
    """Go's `FormatFloat(value, 'g', -1, 32)`: the shortest text of the nearest float32."""
    try:
        nearest = struct.pack("<f", value)
    except OverflowError:
        value, nearest = math.copysign(math.inf, value), b""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    precision = next(p for p in range(9) if p == 8 or struct.pack("<f", float(f"{value:.{p}e}")) == nearest)
    digits = f"{value:.{precision}e}"
    exponent = int(digits.partition("e")[2])
    return f"{float(digits):.{max(0, precision - exponent)}f}" if -4 <= exponent < 6 else digits


def _decoded(text: str) -> str:
    try:
        data = base64.b64decode("".join(text.split("\n")).replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        raise NotResolvable("is no base64, which its tag !!binary asks for") from None
    return data.decode("utf-8", "replace")


_TAGS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "null": type(None),
}
