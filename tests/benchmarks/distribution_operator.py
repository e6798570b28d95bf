"""The operator as it is, and a note of when it took which `active`, and of how many offers it had serialized by then.

A supervisor's own clock says when it spoke, not when it was heard. Notes are appended to the file that
`SMW_BENCHMARK_NOTES` names, one system call each; the machine's clock is the same for all its processes.
"""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from supervisor_middleware.cli.main import main
from supervisor_middleware.distribution.ledger import Answer, Event, Ledger, Wish
from supervisor_middleware.distribution.offers import Offers

VARIABLE: Final = "SMW_BENCHMARK_NOTES"
_NOTE: Final = struct.Struct("=dq71s")


class Notes:
    """Reads what was noted since it last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.encodings = 0
        """Offers serialized so far."""

    def active(self) -> Iterator[tuple[float, str]]:
        """When which digest was said to be active."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = len(data) - len(data) % _NOTE.size
        self._read += whole
        for at, encodings, digest in _NOTE.iter_unpack(data[:whole]):
            self.encodings = max(self.encodings, encodings)
            if not encodings:
                yield at, digest.decode()


def _observe(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    reported, encode = Ledger.reported, Offers.encode

    def noted(self: Ledger, key: str, answer: Answer, **rest: Any) -> Wish | None:
        if answer.event is Event.ACTIVE:
            os.write(file, _NOTE.pack(time.monotonic(), 0, answer.digest.encode()))
        return reported(self, key, answer, **rest)

    def counted(self: Offers, wish: Wish) -> bytes:
        before = self.encodings
        encoded = encode(self, wish)
        if self.encodings != before:
            os.write(file, _NOTE.pack(time.monotonic(), self.encodings, wish.digest.encode()))
        return encoded

    Ledger.reported = noted  # type: ignore[method-assign]
    Offers.encode = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    _observe(os.environ[VARIABLE])
    main()
