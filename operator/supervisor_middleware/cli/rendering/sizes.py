"""Sizes as people read them. PURE."""

from supervisor_middleware.model.limits import KIB, MIB


def size_of(count: int) -> str:
    """`64 KiB` where that is exact, else `1,234 bytes`: a limit is never rounded."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} byte" if count == 1 else f"{count:,} bytes"
