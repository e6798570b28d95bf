"""Protobuf's framing of one field, for the two places where building a message would copy what is already bytes."""

from typing import Final

_LENGTH_DELIMITED: Final = 2


def length_delimited(number: int, payload: bytes) -> tuple[bytes, bytes]:
    """The field `number` holding `payload`, as pieces to join: fields of a message may come in any order."""
    return (_varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)), payload)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
