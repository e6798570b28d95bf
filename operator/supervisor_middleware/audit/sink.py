"""Where audit events go: one JSON object a line, to a file or to standard output. I/O.

RFC 0009 "Audit and logging": the JSONL "may be shipped to external systems". Owns the file, its mode, and what
happens when it cannot be written: traffic goes on, the loss is counted, and the log says so once. Never decides what
an event says (`ocsf` does). Called from the event loop: a line is one small write to the page cache.
"""

import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.audit.events import Event
from supervisor_middleware.audit.ocsf import records

_MODE: Final = 0o600
_log = structlog.get_logger(__name__)


class JsonLinesSink:
    """Appends OCSF events to a file, created with mode 0600 (and made so if it is wider), or to standard output.

    Nothing is buffered here: an event is with the kernel when `emit` returns. After a failure the file is opened
    anew, so a full disk that was cleared, or a file that was taken away, needs no restart. Rotate by copying and
    truncating: the file is opened for appending.
    """

    def __init__(self, path: Path | None, *, product_version: str, device: str, now: Callable[[], datetime]) -> None:
        """`path` None is standard output; `device` names who emits; `now` gives aware times."""
        self._path = path
        self._product_version = product_version
        self._device = device
        self._now = now
        self._descriptor: int | None = None
        self._is_failing = False
        self._is_torn = False
        self.lost = 0
        """Events not written so far, for a metric."""

    def emit(self, event: Event) -> None:
        """Append what `ocsf.records` says of `event`. Never raises: whether traffic flows does not hang on a disk."""
        written = records(event, time=self._now(), product_version=self._product_version, device=self._device)
        # One line whatever a name holds: json escapes control characters, and non-ASCII text too.
        text = "".join(json.dumps(r, separators=(",", ":"), allow_nan=False) + "\n" for r in written)
        try:
            self._write(text.encode("ascii"))
        except OSError as error:
            self._lose(error)
        else:
            self._is_failing = False

    def close(self) -> None:
        """Give the file back; a later `emit` opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and self._path is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = sys.stdout.fileno() if self._path is None else _open(self._path)
        # A line the disk cut short must not swallow the one that comes after it.
        rest = b"\n" + line if self._is_torn else line
        while rest:
            done = os.write(self._descriptor, rest)
            rest = rest[done:]
            self._is_torn = bool(rest)

    def _lose(self, error: OSError) -> None:
        self.lost += 1
        if not self._is_failing:
            _log.error("audit events are being lost", target=str(self._path or "stdout"), error=error.strerror)
        self._is_failing = True
        self.close()


def _open(path: Path) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) & ~_MODE:
        try:
            os.fchmod(descriptor, _MODE)
        except OSError:
            os.close(descriptor)
            raise
    return descriptor
