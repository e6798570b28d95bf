"""How much the webhook takes on at once. Over it the answer is an immediate "later", never a queue without end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

# An AdmissionReview holds the object twice (old and new), each up to etcd's limit.
MAX_REVIEW_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one replica. A review in memory is several times its bytes."""

    reviews: int = 512
    held_bytes: int = 6 * MAX_REVIEW_BYTES
    connections: int = 1024
    silence_seconds: float = 120.0
    """A connection without a request ends after that.

    The API server dials more than it needs in a burst and keeps the rest for 90 s: if we end one as it is first used,
    that write is refused.
    """
    read_seconds: float = 5.0
    """For the body of one review."""


class BusyError(Exception):
    """Too much is under way; the API server tries again by itself."""


class Gate:
    """Counts what is under way."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.reviews = 0
        self.held_bytes = 0

    @contextmanager
    def admitted(self, size: int) -> Iterator[None]:
        """Room for a review of `size` bytes while it is judged.

        Raises:
            BusyError: there is none.
        """
        if self.reviews >= self._limits.reviews or self.held_bytes + size > self._limits.held_bytes:
            raise BusyError
        self.reviews += 1
        self.held_bytes += size
        try:
            yield
        finally:
            self.reviews -= 1
            self.held_bytes -= size
