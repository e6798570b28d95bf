"""An API server that misbehaves on demand: a TLS proxy before the real one, in a thread of its own.

Each fault is one a real cluster shows: `black_hole` is a firewall that forgets connections, `throttle` is priority and
fairness, `expire_watches` a compaction. `calm` ends all of them for new connections; what was swallowed stays so.
"""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import aiohttp
from aiohttp import web

from e2e.controlplane.certificates import Authority, Credential

_HOP_BY_HOP: Final = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})
_CHUNK: Final = 64 * 1024
_SECONDS: Final = 10.0
_T = TypeVar("_T")


class Gone(Enum):
    """How the API server says that a version is too old to watch from; it does both."""

    STATUS = "HTTP 410"
    EVENT = "an ERROR event in a stream of status 200"


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came in."""

    method: str
    path: str
    is_watch: bool


class FlakyProxy:
    """Use as a context manager. Every method may be called from any other thread."""

    def __init__(self, upstream: str, *, authority: Authority) -> None:
        """Before the API server at `upstream`, under a certificate of its `authority`."""
        self._upstream, self._authority = upstream, authority
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flaky proxy", daemon=True)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._is_swallowing = self._is_dark = False
        self._retry_after: int | None = None
        self._gone: Gone | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self._swallowed: list[asyncio.Event] = []
        self._watches: set[web.StreamResponse] = set()
        self.seen: list[Seen] = []
        self.port = 0

    @property
    def url(self) -> str:
        """What a kubeconfig names."""
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.certify(self._authority.server("127.0.0.1"))
        self._wait(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---------------------------------------------------------------------------------------------------- misbehaving

    def black_hole(self) -> None:
        """Swallow every byte of open connections and of new ones. Nothing is closed: nobody is told."""
        self._do(lambda: self._darken(is_dark=True))

    def swallow_open_connections(self) -> None:
        """As `black_hole`, and new connections work at once."""
        self._do(lambda: self._darken(is_dark=False))

    def throttle(self, *, retry_after: int) -> None:
        """Answer everything with 429."""
        self._do(lambda: setattr(self, "_retry_after", retry_after))

    def expire_watches(self, how: Gone) -> None:
        """End every watch, and tell whoever resumes one that its version is too old."""

        async def expire() -> None:
            self._gone = how
            self._drop_watches()

        self._wait(expire())

    def calm(self) -> None:
        """Behave."""

        def calm() -> None:
            self._is_dark, self._retry_after, self._gone = False, None, None

        self._do(calm)

    def certify(self, credential: Credential) -> None:
        """Prove ourselves by another certificate to connections made from now on, and end the others."""
        with TemporaryDirectory() as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(credential.certificate)
            key.write_bytes(credential.key)
            self._tls.load_cert_chain(certificate, key)
        self._do(self._cut)

    def count(self, matches: Callable[[Seen], bool]) -> int:
        """How many requests came in, of those that match."""
        return sum(matches(seen) for seen in tuple(self.seen))

    # ------------------------------------------------------------------------------------------------------- the relay

    async def _start(self) -> None:
        trust = ssl.create_default_context(cadata=self._authority.certificate.decode())
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=0, force_close=True), auto_decompress=False
        )
        application = web.Application(client_max_size=16 * 1024**2)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self._inner = int(self._runner.addresses[0][1])
        # A relay of bytes before it: only there can a connection be open and yet lead nowhere.
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        self._cut()
        await asyncio.gather(*self._relays, return_exceptions=True)
        await self._runner.cleanup()
        await self._session.close()
        await asyncio.sleep(0.1)  # for TLS to close

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        swallows = asyncio.Event()
        self._swallowed.append(swallows)
        if self._is_dark:
            swallows.set()
        try:
            inward = await asyncio.open_connection("127.0.0.1", self._inner)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, inward[1], swallows))
                both.create_task(_pump(inward[0], writer, swallows))
        except* (OSError, _EndedError):
            pass
        finally:
            self._relays.discard(task)
            self._swallowed.remove(swallows)
            inward[1].close()
            writer.close()

    def _darken(self, *, is_dark: bool) -> None:
        self._is_dark = is_dark
        for swallows in self._swallowed:
            swallows.set()

    def _cut(self) -> None:
        for relay in tuple(self._relays):
            relay.cancel()

    def _drop_watches(self) -> None:
        for response in tuple(self._watches):
            response.force_close()
            if response._req is not None and response._req.transport is not None:
                response._req.transport.close()

    # -------------------------------------------------------------------------------------------------------- the proxy

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") in {"true", "1"}
        self.seen.append(Seen(request.method, request.path, is_watch))
        if self._retry_after is not None:
            return _status(429, "TooManyRequests", headers={"Retry-After": str(self._retry_after)})
        if self._gone is not None and is_watch:
            return _status(410, "Expired") if self._gone is Gone.STATUS else _error_event()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        asked = self._session.request(
            request.method,
            self._upstream + request.path_qs,
            headers=headers,
            data=await request.read() if request.can_read_body else None,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            async with asked as answer:
                return await self._answer(request, answer, is_watch=is_watch)
        except aiohttp.ClientError:
            return web.Response(status=502)

    async def _answer(
        self, request: web.Request, answer: aiohttp.ClientResponse, *, is_watch: bool
    ) -> web.StreamResponse:
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        if is_watch:
            self._watches.add(response)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        finally:
            self._watches.discard(response)
        return response

    # ---------------------------------------------------------------------------------------------------------- threads

    def _do(self, act: Callable[[], None]) -> None:
        async def do() -> None:
            act()

        self._wait(do())

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS)


class _EndedError(Exception):
    """One side has closed: so must the other."""


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallows: asyncio.Event) -> None:
    while True:
        data = await reader.read(_CHUNK)
        if not swallows.is_set():
            if not data:
                raise _EndedError
            writer.write(data)
            await writer.drain()
        elif not data:
            # Neither does the end of one side get through.
            await asyncio.Event().wait()


def _status(code: int, reason: str, *, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(_body(code, reason), status=code, headers=headers)


def _error_event() -> web.Response:
    event = {"type": "ERROR", "object": _body(410, "Expired")}
    return web.Response(text=json.dumps(event) + "\n", content_type="application/json")


def _body(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "canary: too old resource version",
        "reason": reason,
        "code": code,
    }
