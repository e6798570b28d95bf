"""A steady load of requests through a supervisor's proxy, with a service and an upstream that remember each of them.

    with traffic() as peers:                        # a service at `peers.service.endpoint`, an upstream at its port
        with peers.load(proxy_port) as load:        # requests run until the end of the block
            ...
    load.tally(audit=..., published=...)

Real sockets and real HTTP; only the service's decisions are made up. See `accounting` for what must hold.
"""

import asyncio
import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from supervisor_middleware.middleware import (
    Decision,
    Evaluation,
    ExistingHeader,
    JsonObject,
    Middleware,
    Result,
    TlsFiles,
    WriteHeader,
    current_caller,
    http_binding,
    http_manifest,
    serve,
)
from supervisor_middleware.model.limits import KIB
from tests.drills.accounting import STAGES, UNANSWERED, Arrived, Sent, Shown, Tally, Witnesses, account

HOST: Final = "api.example.com"
FORBIDDEN: Final = b"this must not leave"
HEADER: Final = "x-openshell-middleware-mark-"
_PAUSE: Final = 0.03
_CLIENTS: Final = 2
_EVERY: Final = 5
"""One request in so many is forbidden."""


class Recorder(Middleware):
    """The service of both stages: it keeps what it is shown, and writes each stage's mark into a header."""

    manifest = http_manifest(
        *(http_binding(f"drill/{stage}", max_body_bytes=64 * KIB) for stage in STAGES),
        name="recorder",
        version="1.0.0",
    )

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self.validated = 0
        self.callers: dict[str, set[str | None]] = {"validates": set(), "evaluates": set()}
        self.endpoint = ""

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        self.validated += 1
        self.callers["validates"].add(current_caller().spiffe_id)
        return None if "mark" in config else "holds no mark"

    async def evaluate(self, evaluation: Evaluation) -> Result:
        self.callers["evaluates"].add(current_caller().spiffe_id)
        stage, mark = evaluation.binding.removeprefix("drill/"), str(evaluation.config["mark"])
        number = int(evaluation.target.path.rpartition("/")[2])
        request_id = evaluation.context.request_id
        self.shown.append(Shown(number=number, request_id=request_id, stage=stage, mark=mark))
        # Long enough that generations change between a request's stages.
        await asyncio.sleep(number % 7 / 400)
        if stage == STAGES[-1] and evaluation.body == FORBIDDEN:
            return Result(decision=Decision.DENY, reason_code="forbidden")
        header = WriteHeader(name=HEADER + stage, value=mark, on_existing=ExistingHeader.APPEND)
        return Result(decision=Decision.ALLOW, mutations=(header,))


class _Upstream(ThreadingHTTPServer):
    """Answers with the marks it was shown, once per value."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.arrived: list[Arrived] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """A proxy that was killed in the middle of a request."""


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        marks = tuple(value for stage in STAGES for value in self.headers.get_all(HEADER + stage, ()))
        assert isinstance(self.server, _Upstream)
        self.server.arrived.append(Arrived(number=int(self.path.rpartition("/")[2]), marks=marks))
        body = json.dumps(marks).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""


@dataclass(slots=True)
class Load:
    """The requests of one client's side, each client's `pause` seconds apart.

    `process` is for whoever restarts the supervisor: count it up.
    """

    port: int
    service: Recorder
    upstream: _Upstream
    numbers: Iterator[int]
    pause: float = _PAUSE
    sent: list[Sent] = field(default_factory=list)
    process: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)

    def newest(self) -> str:
        """The mark of the last answer that had one."""
        return next((s.marks[0] for s in reversed(self.sent) if s.marks), "")

    def count(self) -> int:
        """Answers so far."""
        return sum(s.status != UNANSWERED for s in self.sent)

    def run(self) -> None:
        """One client, until `stop`."""
        connection: http.client.HTTPConnection | None = None
        while not self._is_over.wait(self.pause):
            connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            if not self._send(connection, next(self.numbers)):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def stop(self) -> None:
        """No more."""
        self._is_over.set()

    def tally(self, *, audit: Path, published: frozenset[str]) -> Tally:
        """Hold everything seen against the rules; `audit` is the supervisor's file."""
        audited = [json.loads(line) for line in audit.read_text().splitlines()]
        mine = {s.number for s in self.sent}
        return account(
            Witnesses(
                sent=self.sent,
                shown=[s for s in self.service.shown if s.number in mine],
                arrived=[a for a in self.upstream.arrived if a.number in mine],
                audited=audited,
                published=published,
            )
        )

    def _send(self, connection: http.client.HTTPConnection, number: int) -> bool:
        is_forbidden, process, began = number % _EVERY == 0, self.process, time.monotonic()
        status, found = UNANSWERED, b""
        try:
            body = FORBIDDEN if is_forbidden else b"hello"
            connection.request("POST", f"http://{HOST}/r/{number}", body=body, headers={"host": HOST})
            response = connection.getresponse()
            found, status = response.read(), response.status
        except (OSError, http.client.HTTPException):
            time.sleep(_PAUSE)
        marks, error = _read(status, found)
        self.sent.append(
            Sent(
                number=number,
                is_forbidden=is_forbidden,
                began=began,
                ended=time.monotonic(),
                status=status,
                error=error,
                marks=marks,
                process=process,
            )
        )
        return status != UNANSWERED


def _read(status: int, body: bytes) -> tuple[tuple[str, ...], str]:
    if status == 200:
        return tuple(json.loads(body)), ""
    try:
        found: Mapping[str, Any] = json.loads(body)
        return (), str(found["error"])
    except (ValueError, KeyError):
        return (), body.decode(errors="replace")[:80]


@dataclass(slots=True)
class Peers:
    """Both ends of what a supervisor stands between."""

    service: Recorder
    upstream: _Upstream
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def upstream_port(self) -> int:
        """Where requests end."""
        return self.upstream.server_address[1]

    @contextmanager
    def load(self, port: int, *, pause: float = _PAUSE) -> Iterator[Load]:
        """Requests through the proxy at `port`, until the end of the block."""
        load = Load(port=port, service=self.service, upstream=self.upstream, numbers=self.numbers, pause=pause)
        threads = [threading.Thread(target=load.run, name=f"client {i}", daemon=True) for i in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield load
        finally:
            load.stop()
            for thread in threads:
                thread.join()


@contextmanager
def traffic(*, tls: TlsFiles | None = None) -> Iterator[Peers]:
    """A service (plaintext unless `tls`) and an upstream, until the end of the block."""
    with ExitStack() as stack:
        service, upstream = Recorder(), _Upstream()
        stack.enter_context(_served(service, tls))
        thread = threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(upstream.server_close)
        stack.callback(upstream.shutdown)
        yield Peers(service, upstream)


@contextmanager
def _served(service: Recorder, tls: TlsFiles | None) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="recorder", daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(service, address="127.0.0.1:0", tls=tls), loop).result(30)
    service.endpoint = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.port}"
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
