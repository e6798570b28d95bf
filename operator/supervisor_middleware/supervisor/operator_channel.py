"""How the operator is dialled, for enrolment and for discovery: verified by name and by our roots, no proxy.

Python gRPC cannot verify a server's SPIFFE ID; the name `operator.<trust domain>`, which only the operator's
certificate carries, stands for it (decisions, 20).
"""

from typing import Final, TypeAlias

import grpc
from grpc import aio

from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError, Unavailable, Untrusted
from supervisor_middleware.model.identifiers import service_reason
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.spiffe import operator_server_name
from supervisor_middleware.supervisor.pacing import Random
from supervisor_middleware.wire.gen import distribution_pb2 as pb

MAX_DETAIL_CHARS: Final = 200
MAX_PAUSE: Final = 120.0
"""Seconds, whatever the operator asks for."""
PUSHBACK: Final = "grpc-retry-pushback-ms"
"""Where it does (gRFC A6)."""

Options: TypeAlias = tuple[tuple[str, int | str], ...]
"""Of gRPC, for a channel."""

OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", MAX_STREAM_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_STREAM_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
    # A quiet stream is a healthy one. The kernel finds an operator whose machine is gone (`wire.sockets`), and pings
    # one that is stuck. They are seldom: those of thousands of supervisors are most of what an operator does at rest.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # That one counts for TCP alone: see the operator's.
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # What is offered is small and seldom: to measure the way to it by a ping each time costs more than it brings.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_HINT: Final = (
    "its certificate is of no root in our trust bundle; if its CA was replaced meanwhile, give us the new bundle: "
    "standalone ca.crt of its state directory, in a cluster ConfigMap supervisor-middleware-trust"
)
_REFUSALS: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})


class Busy(Unavailable):
    """The operator has too much to do now: `pause` is how many seconds to stay away."""

    def __init__(self, message: str, *, pause: float) -> None:
        super().__init__(message)
        self.pause = pause


def asked_for(error: SupervisorMiddlewareError, *, random: Random) -> float:
    """Seconds to stay away: never less than the operator asked for, and not with all who were told the same."""
    return error.pause * (1 + random() / 2) if isinstance(error, Busy) else 0.0


class IdentityRefused(Untrusted):
    """The operator does not take who we say we are."""


def open_operator_channel(
    address: str,
    *,
    trust_domain: str,
    roots_pem: bytes,
    credentials: Credentials | None,
    options: Options = OPTIONS,
) -> aio.Channel:
    """A channel to the operator at `address` (host:port); `credentials` None shows no certificate.

    Raises:
        InvalidInput: the trust domain is no DNS name.
    """
    tls = grpc.ssl_channel_credentials(
        root_certificates=roots_pem,
        private_key=None if credentials is None else credentials.private_key_pem.reveal(),
        certificate_chain=None if credentials is None else credentials.certificate_chain_pem,
    )
    name = operator_server_name(trust_domain)
    whole = (*options, ("grpc.ssl_target_name_override", name))
    return aio.secure_channel(f"dns:///{address}", tls, options=whole)


def check_addresses(addresses: tuple[str, ...]) -> None:
    """Check once what is dialled for ever.

    Raises:
        InvalidInput: there is none, or one is not host:port.
    """
    if not addresses:
        raise InvalidInput("no operator address is configured: give one or more, as host:port")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or "/" in address:
            raise InvalidInput(f"{address!r}: an operator address has the form host:port")


def issued_credentials(
    response: pb.EnrollResponse, *, private_key: SecretBytes, roots: bytes, owner: str
) -> Credentials:
    """What the operator issued for `private_key`, if it is `owner`'s.

    Raises:
        Untrusted: it is somebody else's, or not what it must be.
    """
    credentials = Credentials(
        certificate_chain_pem=response.certificate_chain_pem,
        private_key_pem=private_key,
        trust_bundle_pem=response.trust_bundle_pem or roots,
    )
    if str(credentials.spiffe_id) != owner:
        raise Untrusted(
            f"the operator issued a certificate for {credentials.spiffe_id}, but this supervisor is set up as "
            f"{owner}: correct its namespace and sandbox name, or give it a token of its own"
        )
    return credentials


def translated(error: aio.AioRpcError, *, address: str) -> SupervisorMiddlewareError:
    """What gRPC says went wrong with the operator at `address`, by whose move it is; on one line, capped."""
    detail = service_reason(error.details() or "", limit=MAX_DETAIL_CHARS)
    message = f"operator {address}: {error.code().name}: {detail}"
    if _UNTRUSTED in (error.details() or ""):
        return Unavailable(f"{message} ({_HINT})")
    if error.code() in _REFUSALS:
        return IdentityRefused(message)
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidInput(message)
    if (pause := _pushback(error)) > 0:
        return Busy(message, pause=pause)
    return Unavailable(message)


def _pushback(error: aio.AioRpcError) -> float:
    metadata: object = error.trailing_metadata()  # the stubs are wrong about it
    found = metadata.get(PUSHBACK) if isinstance(metadata, aio.Metadata) else None
    return min(int(found) / 1000, MAX_PAUSE) if isinstance(found, str) and found.isdecimal() else 0.0
