"""gRPC client channels, built one way. Owns options and TLS of every connection we open; makes no call.

Called by the registry client and by the supervisor's connection pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import grpc
import grpc.aio

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.hosts import DEFAULT_PORTS
from supervisor_middleware.model.limits import MAX_GRPC_MESSAGE_BYTES
from supervisor_middleware.model.registration import ClientAuthentication, Connection

_Options = Sequence[tuple[str, str | int]]

OPTIONS: Final[_Options] = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    # A stage runs at most once per request, so nothing below us may send a call twice.
    ("grpc.enable_retries", 0),
    # Content goes where the registration says, not where the environment does.
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # That one counts for TCP alone: a service that is stuck, and whose kernel answers, has a minute without this.
    ("grpc.http2.ping_timeout_ms", 20_000),
    # Else gRPC shares sockets between channels behind our back, and closing one would not close its socket.
    ("grpc.use_local_subchannel_pool", 1),
    # In spite of its name the time one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # gRPC's own ceiling is 120 s: a service that is back would stay unused for two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """A certificate chain and its key, for mutual TLS."""

    certificate_chain_pem: bytes
    private_key_pem: bytes = field(repr=False)


def dial_target(endpoint: str) -> str:
    """The gRPC target of `https://host[:port]` or `http://host[:port]`.

    Raises:
        InvalidInput: it is neither, or holds more than host and port.
    """
    try:
        parts = urlsplit(endpoint)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError) as error:
        raise InvalidInput("an endpoint has the form https://host[:port]") from error
    extras = parts.username is not None or parts.path not in {"", "/"} or parts.query or parts.fragment
    if not parts.hostname or extras:
        raise InvalidInput("an endpoint has the form https://host[:port]")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    # With its scheme: a host called `unix` would otherwise be read as one.
    return f"dns:///{host}:{port}"


def shows_certificate(connection: Connection) -> bool:
    """Whether a client certificate is shown to this service."""
    return connection.client_authentication is ClientAuthentication.MUTUAL_TLS and not connection.is_insecure


def open_channel(connection: Connection, *, identity: ClientIdentity | None) -> grpc.aio.Channel:
    """A channel to a middleware service.

    `identity` is presented only where the registration asks for mutual TLS. Plaintext only for an `http://`
    endpoint, which validation admits with `allowInsecure` alone.
    """
    target = dial_target(connection.endpoint)
    if connection.is_insecure:
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    presented = identity if shows_certificate(connection) else None
    credentials = grpc.ssl_channel_credentials(
        # RFC 0009 "Registration and delivery": a CA bundle *replaces* the platform's roots; None means those.
        root_certificates=connection.ca_bundle_pem.encode() or None,
        private_key=None if presented is None else presented.private_key_pem,
        certificate_chain=None if presented is None else presented.certificate_chain_pem,
    )
    name: _Options = (("grpc.ssl_target_name_override", connection.server_name),) if connection.server_name else ()
    return grpc.aio.secure_channel(target, credentials, options=(*OPTIONS, *name))
