"""Protobuf's framing, for bytes that no message class should or can take: large bodies, and broken answers."""

from collections.abc import Iterator
from typing import Final

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_MAX_VARINT_BYTES: Final = 10
# Well over what a valid answer has; a hostile one of millions must not hold up the event loop.
_MAX_FIELDS: Final = 1024


def length_delimited(number: int, payload: bytes) -> tuple[bytes, bytes]:
    """The field `number` holding `payload`, as pieces to join: fields of a message may come in any order."""
    return (_varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)), payload)


def varints(data: bytes, number: int) -> Iterator[int]:
    """The values of the top-level varint field `number`, up to where the bytes are a message no more.

    Reads what a message class refuses as a whole: text that is not UTF-8, an end in the middle of a field. Of very
    many fields the first ones only.
    """
    position = 0
    for _ in range(_MAX_FIELDS):
        tag = _read_varint(data, position)
        if tag is None:
            return
        kind, position = tag[0] & 7, tag[1]
        if kind in _FIXED_BYTES:
            position += _FIXED_BYTES[kind]
            continue
        value = _read_varint(data, position) if kind in {_VARINT, _LENGTH_DELIMITED} else None
        if value is None:
            return
        position = value[1]
        if kind == _LENGTH_DELIMITED:
            position += value[0]
        elif tag[0] >> 3 == number:
            yield value[0]


def _read_varint(data: bytes, position: int) -> tuple[int, int] | None:
    """The varint at `position` and where the next field begins; None: there is none."""
    value = 0
    for shift, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position + shift + 1
    return None


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
