"""Real processes and real requests for the demonstrations: nothing here stands in for a part of the product."""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from supervisor_middleware.errors import Unavailable

_STOP_SECONDS: Final = 8.0
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an agent got back: status and, from the echo upstream, the body as it arrived there."""

    status: int
    body: str

    @property
    def error(self) -> str:
        """The `error` of a refusal, else nothing."""
        with contextlib.suppress(ValueError, AttributeError):
            return str(json.loads(self.body).get("error", ""))
        return ""

    def shown(self, *, sent: str) -> str:
        """In a few words, for a timeline: what became of the body that was `sent`, or why it was refused."""
        if self.status == HTTPStatus.OK:
            return f"200, {'untouched' if self.body == sent else self.body}"
        return f"{self.status}, {self.error}"


@dataclass(slots=True)
class Process:
    """One of our commands (or another `module`), in a process of its own, its output in a log file."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    module: str = "supervisor_middleware.cli"
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(  # noqa: S603 - our own interpreter and our own commands
                [sys.executable, "-m", self.module, *self.arguments],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Take it away without a word (SIGKILL)."""
        if self.running is not None:
            self.running.send_signal(signal.SIGKILL)
            self.running.wait()

    def stop(self) -> None:
        """Ask it to end, then make it."""
        if self.running is None or self.running.poll() is not None:
            return
        self.running.terminate()
        try:
            self.running.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def check(self) -> None:
        """Raise `Unavailable`, with the end of its log, if it has ended by itself."""
        if self.running is not None and self.running.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
            raise Unavailable(f"{self.name} ended with {self.running.returncode}:\n" + "\n".join(lines))


def wait_until(
    what: str, is_so: Callable[[], bool], *, processes: tuple[Process, ...], seconds: float = 30.0
) -> None:
    """Poll until `is_so`.

    Raises:
        Unavailable: it did not come about in time, or one of `processes` ended.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        for process in processes:
            process.check()
        if time.monotonic() > deadline:
            raise Unavailable(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def echo_upstream() -> Iterator[int]:
    """An upstream that answers every request with the body it got; yields its port."""

    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            self.send_response(200)
            self.send_header("content-type", "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Quiet: requests may hold anything."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def post(proxy_port: int, host: str, body: str) -> Answer:
    """What an agent does: a POST to `http://host/notes` by way of the sandbox's proxy."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy_port, timeout=20)
    try:
        headers = {"host": host, "content-type": "text/plain"}
        connection.request("POST", f"http://{host}/notes", body=body.encode(), headers=headers)
        response = connection.getresponse()
        return Answer(status=response.status, body=response.read().decode(errors="replace"))
    finally:
        connection.close()


def free_port() -> int:
    """A port that is free now, below those the kernel gives to outgoing connections, and given out only once."""
    while True:
        port = random.randrange(10_240, 32_000)  # noqa: S311 - spreads, hides nothing
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port


_GIVEN: Final[set[int]] = set()
