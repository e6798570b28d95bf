"""One server process of a control plane: start, watch, stop. Knows nothing about Kubernetes."""

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from e2e.controlplane import guard

_LOG_LINES = 25


class Server:
    """A program that runs in a directory and logs to `<directory>/<name>.log` there.

    It gets a session of its own, so a Ctrl-C in the terminal reaches the owner alone, which stops the servers in order.
    """

    def __init__(self, command: Sequence[str], *, directory: Path) -> None:
        self.name = Path(command[0]).name
        self._command = tuple(command)
        self._directory = directory
        self._log = directory / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, was not stopped and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; nothing happens if it runs. Says nothing about whether it is ready."""
        if self.is_running:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, *, grace: timedelta) -> None:
        """Ask it to end, kill it if it still runs after the grace, and return once it is gone."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace.total_seconds())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def report(self) -> str:
        """Return how it fares and the end of its log, for an error message."""
        if self._process is None:
            state = "was not started"
        elif (code := self._process.poll()) is None:
            state = "is still running"
        else:
            state = f"ended with exit code {code}"
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if self._log.exists() else []
        return "\n".join([f"{self.name} {state}; the end of its log:", *(f"    {line}" for line in lines)])


class Guard:
    """The process that clears a directory and its servers if this process ends without having done so."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def clear(self) -> None:
        """Have it do its work now, and wait until it has."""
        self._process.communicate()


def reserve_port() -> socket.socket:
    """Bind a free port of 127.0.0.1 without listening: only a server that shares ports on purpose can still get it."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
