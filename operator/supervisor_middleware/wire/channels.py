"""gRPC client channels, built one way. Owns options and TLS of every connection we open; makes no call.

Called by the registry client, and by the supervisor for services and for the operator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import grpc
import grpc.aio

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
    ("grpc.keepalive_permit_without_calls", 1),
    # Channels to one address must not share a connection: another generation may hold another certificate.
    ("grpc.use_local_subchannel_pool", 1),
    # In spite of its name the time one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """A certificate chain and its key, for mutual TLS."""

    certificate_chain_pem: bytes
    private_key_pem: bytes = field(repr=False)


def target_of(endpoint: str) -> str:
    """`https://host[:port]` as gRPC dials it."""
    url = urlsplit(endpoint)
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"


def open_channel(connection: Connection, *, identity: ClientIdentity | None) -> grpc.aio.Channel:
    """A channel to a middleware service.

    `identity` is presented only where the registration asks for mutual TLS. Plaintext only for an `http://`
    endpoint, which validation admits with `allowInsecure` alone.
    """
    target = target_of(connection.endpoint)
    if connection.is_insecure:
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    presented = identity if connection.client_authentication is ClientAuthentication.MUTUAL_TLS else None
    return secure_channel(
        target,
        roots_pem=connection.ca_bundle_pem.encode() or None,
        server_name=connection.server_name,
        identity=presented,
    )


def secure_channel(
    target: str, *, roots_pem: bytes | None, server_name: str, identity: ClientIdentity | None
) -> grpc.aio.Channel:
    """A TLS channel that verifies the peer against `roots_pem` (platform roots if None) and `server_name`."""
    credentials = grpc.ssl_channel_credentials(
        root_certificates=roots_pem,
        private_key=None if identity is None else identity.private_key_pem,
        certificate_chain=None if identity is None else identity.certificate_chain_pem,
    )
    name: _Options = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    return grpc.aio.secure_channel(target, credentials, options=(*OPTIONS, *name))
