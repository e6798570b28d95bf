"""Bytes that do not show themselves. PURE: wraps private keys on their way through logs, reprs and exceptions."""

import hmac
from typing import Final, NoReturn, final

REDACTED: Final = "<redacted>"


@final
class SecretBytes:
    """Content that only `reveal` hands out: repr, str, format, pickle and asdict never do.

    Immutable. Compared in constant time; not hashable, so that it cannot become a key of something that is shown.
    """

    __slots__ = ("_content",)
    __hash__ = None  # type: ignore[assignment]
    _content: bytes

    def __init__(self, content: bytes) -> None:
        object.__setattr__(self, "_content", bytes(content))

    def reveal(self) -> bytes:
        """The content. Every call is a place to review: it must end in a key loader, a socket or a 0600 file."""
        return self._content

    def __repr__(self) -> str:
        return f"SecretBytes({REDACTED})"

    def __str__(self) -> str:
        return REDACTED

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretBytes):
            return NotImplemented
        return hmac.compare_digest(self._content, other._content)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("SecretBytes is immutable")

    def __deepcopy__(self, memo: dict[int, object]) -> "SecretBytes":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("SecretBytes is never pickled: pass it on in memory, or write it to a file of mode 0600")
