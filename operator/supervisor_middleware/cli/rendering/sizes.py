"""Sizes and numbers as people read them. PURE."""

from supervisor_middleware.model.limits import KIB, MIB


def counted(number: int, noun: str, nouns: str = "") -> str:
    """`1 case`, `2 cases`; `nouns` where an s is not enough."""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or noun + 's'}"


def size_of(count: int) -> str:
    """`64 KiB` where that is exact, else `1,234 bytes`: a limit is never rounded."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} byte" if count == 1 else f"{count:,} bytes"
