"""Asks middleware services: `Describe` and `ValidateConfig`, each with a deadline and a size limit.

Every outcome is a value: an answer, or the platform's own word for why there is none. A service's text never
passes here but for a rejected config's reason, cut and cleaned by the codec. One channel a connection, rebuilt when
our certificate changes (Python gRPC does not reload client certificates).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, TypeVar, assert_never

import grpc
import grpc.aio

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.limits import TIMEOUT_MAX
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import (
    Accepted,
    Described,
    Description,
    Outage,
    Rejected,
    Undescribable,
    Unreachable,
    Verdict,
)
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.channels import ClientIdentity, open_channel
from supervisor_middleware.wire.codec import (
    DESCRIBE_REQUEST,
    METHODS,
    ManifestUndecodable,
    VerdictUndecodable,
    decode_manifest,
    decode_verdict,
    encode_validate_config,
)

_CALLS_PER_SERVICE: Final = 8
"""So that one tenant's policies cannot take a service, or us, away from the others."""
_OUTAGES: Final[Mapping[grpc.StatusCode, Outage]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Outage.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAUTHENTICATED: Outage.CREDENTIALS_REFUSED,
    grpc.StatusCode.PERMISSION_DENIED: Outage.CREDENTIALS_REFUSED,
    grpc.StatusCode.UNIMPLEMENTED: Outage.NOT_IMPLEMENTED,
}
# gRPC has no status for a failed handshake: these are OpenSSL's and gRPC core's own words in the details.
_TLS_MARKS: Final = (
    "CERTIFICATE_VERIFY_FAILED",
    "Hostname Verification",
    "certificate verify failed",
    "WRONG_VERSION",
)
_REFUSED_MARKS: Final = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_EXPIRED")
# TLS 1.3 lets a client finish its handshake before the server looks at the client's certificate.
_CONNECTING: Final = "failed to connect"
_CLOSED_MARKS: Final = ("Socket closed", "Connection reset by peer")
_HANDSHAKE: Final = "andshake"
_OVER_LIMIT: Final = "larger than max"

_Answer = TypeVar("_Answer")


class RegistryClient:
    """Asks services on behalf of the control plane."""

    def __init__(
        self, identity: Callable[[], ClientIdentity | None], *, metrics: ControlMetrics | None = None
    ) -> None:
        """`identity` gives the certificate to present now; it is asked before each call."""
        self._identity, self._metrics = identity, metrics
        self.lost: Callable[[Connection], None] = _nobody_cares
        """Called when an established connection ends that we did not end: a redeployment, often."""
        self._channels: dict[Connection, tuple[ClientIdentity | None, grpc.aio.Channel]] = {}
        self._permits: dict[str, asyncio.Semaphore] = {}
        self._draining: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        self._watches: dict[grpc.aio.Channel, asyncio.Task[None]] = {}

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        """Ask a service what it is. The registration's timeout covers connecting and answering."""

        def read(data: bytes) -> Description:
            try:
                return Described(decode_manifest(data, registration_name=registration_name))
            except ManifestUndecodable as error:
                return Undescribable(error.problem)

        answer = await self._call(
            connection, METHODS.describe, DESCRIBE_REQUEST, deadline=connection.timeout, read=read
        )
        if self._metrics is not None:
            self._metrics.describe.labels(_outcome(answer)).inc()
        return answer

    async def validate_config(
        self, connection: Connection, *, dialect: Dialect, binding: str, config: JsonObject, deadline: timedelta
    ) -> Verdict:
        """Ask whether `config` suits `binding`. `config` is known to be encodable."""

        def read(data: bytes) -> Verdict:
            try:
                return decode_verdict(dialect, data)
            except VerdictUndecodable:
                return Unreachable(Outage.CALL_FAILED)

        request = encode_validate_config(dialect, binding=binding, config=config)
        began = time.monotonic()
        answer = await self._call(connection, METHODS.validate_config, request, deadline=deadline, read=read)
        if self._metrics is not None:
            self._metrics.validate_config.labels(_outcome(answer)).observe(time.monotonic() - began)
        return answer

    def forget(self, keep: frozenset[Connection]) -> None:
        """Close the channels of connections nobody needs any more, as soon as their calls have ended."""
        for connection in [c for c in self._channels if c not in keep]:
            _, channel = self._channels.pop(connection)
            self._drain(channel)
        endpoints = {c.endpoint for c in keep}
        self._permits = {e: p for e, p in self._permits.items() if e in endpoints}

    async def close(self) -> None:
        """Close every channel; calls under way end as unreachable."""
        draining = dict(self._draining)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        for watch in self._watches.values():
            watch.cancel()
        channels, self._channels = self._channels, {}
        for channel in (*draining.values(), *(channel for _, channel in channels.values())):
            await channel.close(None)

    async def _call(
        self,
        connection: Connection,
        method: str,
        request: bytes,
        *,
        deadline: timedelta,
        read: Callable[[bytes], _Answer],
    ) -> _Answer | Unreachable:
        permits = self._permits.setdefault(connection.endpoint, asyncio.Semaphore(_CALLS_PER_SERVICE))
        try:
            async with asyncio.timeout(deadline.total_seconds()), permits:
                channel = self._channel(connection)
                answer = await channel.unary_unary(method, None, None)(request, timeout=deadline.total_seconds())
        except TimeoutError:
            return Unreachable(Outage.DEADLINE_EXCEEDED)
        except asyncio.CancelledError:
            # gRPC ends the calls of a closed channel this way; only our own task's cancellation goes on.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return Unreachable(Outage.CALL_FAILED)
        except grpc.aio.AioRpcError as error:
            return Unreachable(_outage(error, connection))
        return read(answer)

    def _channel(self, connection: Connection) -> grpc.aio.Channel:
        identity = self._identity()
        known = self._channels.get(connection)
        if known is not None and known[0] == identity:
            return known[1]
        channel = open_channel(connection, identity=identity)
        self._channels[connection] = (identity, channel)
        watch = self._watches[channel] = asyncio.create_task(self._watch(connection, channel))
        watch.add_done_callback(lambda _: self._watches.pop(channel, None))
        if known is not None:
            # Calls under way end on the certificate they began with.
            self._drain(known[1])
        return channel

    async def _watch(self, connection: Connection, channel: grpc.aio.Channel) -> None:
        """Never asks for a connection: what nobody calls may rest."""
        state = channel.get_state()
        while state is not grpc.ChannelConnectivity.SHUTDOWN:
            await channel.wait_for_state_change(state)
            before, state = state, channel.get_state()
            if before is grpc.ChannelConnectivity.READY and state is not before:
                self.lost(connection)

    def _drain(self, channel: grpc.aio.Channel) -> None:
        if (watch := self._watches.get(channel)) is not None:
            watch.cancel()
        task = asyncio.create_task(channel.close(TIMEOUT_MAX.total_seconds()))
        self._draining[task] = channel
        task.add_done_callback(lambda done: self._draining.pop(done, None))


def _nobody_cares(_: Connection) -> None: ...


def _outcome(answer: Description | Verdict) -> str:
    match answer:
        case Described():
            return "described"
        case Undescribable():
            return "undescribable"
        case Accepted():
            return "accepted"
        case Rejected():
            return "rejected"
        case Unreachable(outage):
            return outage.name.lower()
        case _:
            assert_never(answer)


def _outage(error: grpc.aio.AioRpcError, connection: Connection) -> Outage:
    details = error.details() or ""
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return _failed_connection(details, connection)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _OVER_LIMIT in details:
            return Outage.ANSWER_OVER_LIMIT
        case code:
            return _OUTAGES.get(code, Outage.CALL_FAILED)


def _failed_connection(details: str, connection: Connection) -> Outage:
    def has(marks: tuple[str, ...]) -> bool:
        return any(mark in details for mark in marks)

    if has(_TLS_MARKS):
        return Outage.TLS_VERIFICATION_FAILED
    if has(_REFUSED_MARKS):
        return Outage.CREDENTIALS_REFUSED
    is_after_handshake = _CONNECTING in details and _HANDSHAKE not in details and has(_CLOSED_MARKS)
    if is_after_handshake and not connection.is_insecure:
        return Outage.CLOSED_AFTER_HANDSHAKE
    return Outage.CONNECTION_FAILED
