"""One line on a terminal, only while something takes longer than a second."""

import time
from typing import Final, TextIO

_QUIET_SECONDS: Final = 1.0
_REDRAW_SECONDS: Final = 0.1
_BAR_WIDTH: Final = 30


class Progress:
    """How far a command is, on `err` if that is a terminal."""

    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._began = self._drawn = time.monotonic()
        self._is_terminal = err.isatty()
        self._is_shown = False

    def read(self, done: int, total: int) -> None:
        """Hear of files read, of how many."""
        self._show("reading", done, total, "files")

    def drafted(self, done: int, total: int) -> None:
        """Hear of policies taken apart, of how many."""
        self._show("reading", done, total, "policies")

    def checked(self, done: int, total: int) -> None:
        """Hear of policies judged, of how many."""
        self._show("checking", done, total, "policies")

    def clear(self) -> None:
        """Leave no trace."""
        if self._is_shown:
            self._err.write("\r\x1b[K")
            self._err.flush()

    def _show(self, verb: str, done: int, total: int, noun: str) -> None:
        if not self._is_terminal:
            return
        now = time.monotonic()
        if now - self._began < _QUIET_SECONDS or now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn, self._is_shown = now, True
        share = done / max(total, 1)
        bar = ("=" * int(share * _BAR_WIDTH)).ljust(_BAR_WIDTH)
        self._err.write(f"\r\x1b[K[{bar}] {int(share * 100):3} %  {verb} {done} of {total} {noun}")
        self._err.flush()
