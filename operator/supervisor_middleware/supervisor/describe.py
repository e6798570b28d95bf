"""Asking a middleware service what it is. A gRPC edge; called while a generation is prepared, never for a request."""

from typing import Final, Protocol

from grpc import StatusCode, aio

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.generation import Service
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.wire.codec import DESCRIBE_REQUEST, METHODS, decode_manifest

_REFUSALS: Final = frozenset({StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED})


class CallerRefused(Unavailable):
    """The service answers, and does not let this supervisor call. Retried: its rule may change."""


class Describer(Protocol):
    """Gets a service's manifest."""

    async def describe(self, channel: aio.Channel, *, service: Service) -> Manifest:
        """The manifest; raises `Unavailable` without one (`CallerRefused`: for us) and `Untrusted` if it is none."""


class GrpcDescriber:
    """Calls `Describe` within the registration's timeout (RFC 0009 "Registration and delivery": default 500 ms)."""

    async def describe(self, channel: aio.Channel, *, service: Service) -> Manifest:
        """The manifest that the service answers with now.

        Raises:
            CallerRefused: the service does not let us call.
            Unavailable: no answer in time, no connection, or another gRPC error.
            Untrusted: the answer is no manifest.
        """
        # Raw bytes: which of the two dialects they are in is the codec's to find out.
        call = channel.unary_unary(METHODS.describe, None, None)
        try:
            answer: bytes = await call(DESCRIBE_REQUEST, timeout=service.connection.timeout.total_seconds())
        except aio.AioRpcError as error:
            kind = CallerRefused if error.code() in _REFUSALS else Unavailable
            raise kind(f"service {service.name}: Describe failed ({error.code().name})") from error
        return decode_manifest(answer, registration_name=service.name)
