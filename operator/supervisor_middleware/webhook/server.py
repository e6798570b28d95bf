"""Takes reviews off the wire: TLS, who may ask, limits. Judges nothing.

Whoever reaches the port may send anything. With a client CA only the API server is heard; without, a forged review
gets the validation of what its sender put in, and dials nobody but registered services.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ssl import SSLContext
from typing import Any, Final

import structlog
from aiohttp import web

from supervisor_middleware.control.reviews import Review, parse_review
from supervisor_middleware.control.reviews import response as review_response
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.sandbox import SELF_TEST_NAME
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.webhook.judging import Webhook
from supervisor_middleware.webhook.limits import MAX_REVIEW_BYTES, BusyError, Gate, Limits

PATH: Final = "/validate"

_KEEPALIVE: Final = 120.0
"""More than the 90 s of the API server's client: a connection that we end first fails the review sent on it."""
_HANDSHAKE: Final = 5.0
_SHUTDOWN: Final = 9.0
_BACKLOG: Final = 128
_RETRY_AFTER: Final = {"Retry-After": "1"}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Who may ask, where client certificates are demanded: `names` (CN or DNS); empty: whoever the CA vouches for."""

    names: frozenset[str] = frozenset()


class Server:
    """The aiohttp application around a webhook."""

    def __init__(
        self,
        webhook: Webhook,
        *,
        metrics: ControlMetrics,
        now: Callable[[], datetime],
        clients: Clients,
        limits: Limits,
    ) -> None:
        self._webhook, self._metrics, self._now = webhook, metrics, now
        self._clients, self._limits, self._gate = clients, limits, Gate(limits)
        self.silent: set[object] = set()
        """New connections on which no request came yet."""

    def application(self) -> web.Application:
        """The aiohttp application."""
        application = web.Application(client_max_size=MAX_REVIEW_BYTES)
        application.router.add_post(PATH, self._handle)
        return application

    async def _handle(self, request: web.Request) -> web.Response:
        began = time.monotonic()
        self.silent.discard(request.protocol)
        if not self._is_known(request):
            return _refusal(403, "the client certificate is not the API server's")
        size = MAX_REVIEW_BYTES if request.content_length is None else request.content_length
        if size > MAX_REVIEW_BYTES:
            return _refusal(413, "the review is too large")
        try:
            with self._gate.admitted(size):
                return await self._review(request, began=began)
        except BusyError:
            self._metrics.admission_busy.inc()
            return _refusal(429, "too many reviews are under way", headers=_RETRY_AFTER)

    async def _review(self, request: web.Request, *, began: float) -> web.Response:
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                data = await request.read()
        except TimeoutError:
            return _refusal(408, "the review took too long to arrive")
        try:
            review = parse_review(json.loads(data), now=self._now())
        except (InvalidInput, ValueError, RecursionError):
            return _refusal(400, "the body is not an AdmissionReview of ours")
        del data
        decision = await self._webhook.answer(review)
        # Retryable: nobody can tell now, because a service or the operator itself is not able to.
        outcome = "allowed" if decision.is_allowed else "retryable" if decision.is_retryable else "denied"
        self._metrics.admission_review.labels(review.stored.subject.kind, outcome).observe(time.monotonic() - began)
        reasons = sorted({v.reason.value for v in decision.violations.violations})
        log = _log.debug if _is_self_test(review) else _log.info
        log("reviewed", object=str(review.stored.subject), outcome=outcome, reasons=reasons)
        return web.json_response(review_response(review.uid, decision))

    def _is_known(self, request: web.Request) -> bool:
        """The handshake has verified the chain, if one was demanded."""
        if not self._clients.names:
            return True
        certificate = request.get_extra_info("peercert")
        return bool(self._clients.names & _names(certificate or {}))


async def serve(
    webhook: Webhook,
    *,
    host: str,
    port: int,
    tls: SSLContext,
    metrics: ControlMetrics,
    now: Callable[[], datetime],
    clients: Clients | None = None,
    limits: Limits | None = None,
) -> web.AppRunner:
    """Start serving; the runner's `cleanup` stops it. `tls` may be reloaded in place (`load_cert_chain`)."""
    limits = Limits() if limits is None else limits
    server = Server(webhook, metrics=metrics, now=now, clients=clients or Clients(), limits=limits)
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        auto_decompress=False,  # the API server does not compress; others might, much
        keepalive_timeout=_KEEPALIVE,
        shutdown_timeout=_SHUTDOWN,
    )
    await runner.setup()
    await _Site(runner, host=host, port=port, tls=tls, silent=server.silent, limits=limits).start()
    return runner


class _Site(web.BaseSite):
    """A TCP site that bounds connections, handshakes and silence, which aiohttp's own does not."""

    def __init__(
        self,
        runner: web.AppRunner,
        *,
        host: str,
        port: int,
        tls: SSLContext,
        silent: set[object],
        limits: Limits,
    ) -> None:
        super().__init__(runner, ssl_context=tls)
        self._host, self._port, self._silent, self._limits = host, port, silent, limits

    @property
    def name(self) -> str:
        """For aiohttp's lists."""
        return f"https://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._accept,
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=_HANDSHAKE,
        )

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None or len(server.connections) >= self._limits.connections:
            return _Refusing()
        handler = server()
        self._silent.add(handler)
        asyncio.get_running_loop().call_later(self._limits.silence_seconds, self._end_if_silent, handler)
        return handler

    def _end_if_silent(self, handler: web.RequestHandler) -> None:
        if handler in self._silent:
            self._silent.discard(handler)
            handler.force_close()


class _Refusing(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it at once."""
        transport.close()


def _refusal(status: int, text: str, *, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": text}, status=status, headers=headers)


def _is_self_test(review: Review) -> bool:
    return review.stored.subject.name == SELF_TEST_NAME


def _names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """As Python's ssl tells them: the common name and the DNS names."""
    subject = (attribute for part in certificate.get("subject", ()) for attribute in part)
    common = (value for kind, value in subject if kind == "commonName")
    alternative = (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    return frozenset((*common, *alternative))
