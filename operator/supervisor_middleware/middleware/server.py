"""A `Middleware` behind gRPC: the contract's three methods over raw bytes, in the dialect of the manifest.

RFC 0009 "The middleware contract": three unary methods. Owns admission of callers, deadlines, limits of what goes
out and the translation of failures; `wire.codec` owns the encoding. Nothing that the author's code raised, and
nothing of a request, reaches a client or the log: the log names the exception's type and where it was raised.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import grpc
import grpc.aio

from supervisor_middleware.compiler.binding import is_usable
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware.answers import manifest_problems, result_problems
from supervisor_middleware.middleware.service import Caller, Middleware, called_by
from supervisor_middleware.middleware.tls import (
    CallerRule,
    ServerTls,
    TlsSource,
    any_caller,
    identified,
    server_credentials,
)
from supervisor_middleware.model.evaluation import StageFailed
from supervisor_middleware.model.limits import MAX_GRPC_MESSAGE_BYTES
from supervisor_middleware.model.manifest import Dialect, Manifest
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.telemetry import where
from supervisor_middleware.wire import codec
from supervisor_middleware.wire.undecodable import RequestUndecodable

DEFAULT_GRACE_SECONDS: Final = 5.0

_OPTIONS: Final = (
    # RFC 0009: a maximum body with its envelope passes; gRPC's own default is 4 MiB.
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    # Two services on one port would share the traffic silently.
    ("grpc.so_reuseport", 0),
    # Supervisors ping every 10 s, also when idle (contract 4.1); gRPC's default takes that for abuse.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

# An author's process: the standard library's logging, under the author's set-up.
_log = logging.getLogger(__name__)

_Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]
_Method: TypeAlias = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `port` is the one bound, also where the address asked for port 0."""

    port: int
    _server: grpc.aio.Server = field(repr=False)

    async def stop(self, grace: float = DEFAULT_GRACE_SECONDS) -> None:
        """Refuse new calls, let running ones end for `grace` seconds, then cancel them."""
        await self._server.stop(grace)

    async def wait(self) -> None:
        """Return once the server has stopped."""
        await self._server.wait_for_termination()


async def serve(
    middleware: Middleware,
    *,
    address: str,
    tls: ServerTls | TlsSource | None,
    allowed_callers: CallerRule | None = None,
) -> Server:
    """Serve `middleware` at `address` (`host:port`; port 0 takes a free one).

    Args:
        middleware: what answers.
        address: where to listen.
        tls: a value, or a source that is asked before every handshake (`TlsFiles`); None is plaintext, which a
            registration must explicitly allow.
        allowed_callers: who may call; by default everybody who proves a SPIFFE ID to the client CA, or everybody
            where no client certificate is asked for.

    Raises:
        InvalidInput: the manifest breaks the contract, the TLS material cannot be used, or the address is taken.
        OSError: a TLS file cannot be read.
    """
    _require_servable(middleware.manifest)
    source = _source(tls)
    needs_certificate = source is not None and source().client_ca_pem is not None
    calls = _Calls(middleware, allowed_callers or (identified if needs_certificate else any_caller))
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((calls.handlers(),))
    port = _listen(server, address=address, source=source)
    await server.start()
    return Server(port, server)


class _Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The call ends with this status; the text is ours."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class _Calls:
    """The three methods."""

    def __init__(self, middleware: Middleware, allowed: CallerRule) -> None:
        self._middleware = middleware
        self._allowed = allowed
        self._dialect = middleware.manifest.dialect
        self._limits = {binding.id: binding.max_body_bytes for binding in middleware.manifest.bindings}

    def handlers(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """For the server: raw bytes in, raw bytes out."""
        methods = {
            "Describe": self._describe,
            "ValidateConfig": self._validate_config,
            "EvaluateHttpRequest": self._evaluate,
        }
        return grpc.method_handlers_generic_handler(
            codec.SERVICE,
            {name: grpc.unary_unary_rpc_method_handler(self._answering(m)) for name, m in methods.items()},
        )

    def _answering(self, method: _Method) -> Callable[[bytes, _Context], Awaitable[bytes]]:
        async def answer(data: bytes, context: _Context) -> bytes:
            outcome = await self._outcome(method, data, context)
            if isinstance(outcome, _Refused):
                await context.abort(outcome.code, outcome.text)
            return outcome

        return answer

    async def _outcome(self, method: _Method, data: bytes, context: _Context) -> bytes | _Refused:
        try:
            return await self._call(method, data, context)
        except _Refused as refused:
            return refused
        except RequestUndecodable as error:
            return _Refused(grpc.StatusCode.INVALID_ARGUMENT, error.problem)
        except Exception as error:  # noqa: BLE001 - whatever an author's code raises
            _log.error("%s failed: %s", method.__name__.strip("_"), _where(error))
            return _Refused(grpc.StatusCode.INTERNAL, "the service failed")

    async def _call(self, method: _Method, data: bytes, context: _Context) -> bytes:
        caller = _caller_of(context)
        if not self._allowed(caller):
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, "the caller is not allowed here")
        deadline = asyncio.timeout(context.time_remaining())
        try:
            async with deadline:
                with called_by(caller):
                    return await method(data)
        except TimeoutError:
            if deadline.expired():
                raise _Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline has passed") from None
            raise

    async def _describe(self, _: bytes) -> bytes:
        return codec.encode_manifest(self._middleware.manifest)

    async def _validate_config(self, data: bytes) -> bytes:
        binding, config = codec.decode_validate_config(self._dialect, data)
        self._limit_of(binding)
        reason = await self._middleware.validate_config(binding, config)
        return codec.encode_verdict(self._dialect, Accepted() if reason is None else Rejected(reason))

    async def _evaluate(self, data: bytes) -> bytes:
        evaluation = codec.decode_evaluation(self._dialect, data)
        limit = self._limit_of(evaluation.binding)
        if len(evaluation.body) > limit:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "the body is over the binding's limit")
        result = await self._middleware.evaluate(evaluation)
        if problems := list(result_problems(result, max_body_bytes=limit)):
            _log.error("a result breaks the contract and is not sent: %s", ", ".join(problems))
            raise _Refused(grpc.StatusCode.INTERNAL, "the service gave no valid result")
        return codec.encode_result(self._dialect, result)

    def _limit_of(self, binding: str) -> int:
        # The released dialect sends the registration's name, which only the platform knows.
        if self._dialect is Dialect.RELEASED:
            return max(self._limits.values())
        if binding not in self._limits:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "the binding is not in the manifest")
        return self._limits[binding]


def _require_servable(manifest: Manifest) -> None:
    problems = list(manifest_problems(manifest))
    if not problems and not all(map(is_usable, manifest.bindings)):
        problems.append("only HTTP_REQUEST bindings are served here")
    if problems:
        raise InvalidInput("the manifest cannot be served: " + "; ".join(problems))


def _where(error: Exception) -> str:
    """Without the message, which may quote a body or a config; a code of the contract is ours to name."""
    if isinstance(error, StageFailed):
        return f"StageFailed({error.code})"
    return where(error)


def _caller_of(context: _Context) -> Caller:
    found = context.auth_context().get("peer_spiffe_id") or ()
    names = [name.decode("utf-8", "replace") for name in found]
    return Caller(spiffe_id=names[0] if len(names) == 1 else None)


def _source(tls: ServerTls | TlsSource | None) -> TlsSource | None:
    return (lambda: tls) if isinstance(tls, ServerTls) else tls


def _listen(server: grpc.aio.Server, *, address: str, source: TlsSource | None) -> int:
    try:
        if source is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(source))
    except RuntimeError as error:
        raise InvalidInput(f"cannot listen on {address}: it is taken, or not an address of this machine") from error
