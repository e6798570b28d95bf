"""Asking a middleware service what it is. A gRPC edge; called while a generation is prepared, never for a request."""

from typing import Protocol

from grpc import aio

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.generation import Service
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.wire.codec import DESCRIBE_REQUEST, METHODS, decode_manifest


class Describer(Protocol):
    """Gets a service's manifest."""

    async def describe(self, channel: aio.Channel, *, service: Service) -> Manifest:
        """The manifest; raises `Unavailable` without an answer and `Untrusted` if the answer is no manifest."""


class GrpcDescriber:
    """Calls `Describe` within the registration's timeout (RFC 0009 "Registration and delivery": default 500 ms)."""

    async def describe(self, channel: aio.Channel, *, service: Service) -> Manifest:
        """The manifest that the service answers with now.

        Raises:
            Unavailable: no answer in time, no connection, or a gRPC error.
            Untrusted: the answer is no manifest.
        """
        # Raw bytes: which of the two dialects they are in is the codec's to find out.
        call = channel.unary_unary(METHODS.describe, None, None)
        try:
            answer: bytes = await call(DESCRIBE_REQUEST, timeout=service.connection.timeout.total_seconds())
        except aio.AioRpcError as error:
            raise Unavailable(f"service {service.name}: Describe failed ({error.code().name})") from error
        return decode_manifest(answer, registration_name=service.name)
