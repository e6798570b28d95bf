"""gRPC channels to middleware services: how one is opened, and how generations share it.

A channel is named by everything that decides with whom it talks and as whom (`ChannelKey`); generations *lease* it. A
generation that changes only policy leases the channels that are open already (RFC 0009 "Registration and delivery").
A channel closes when its last lease is returned: after the last request of the last generation that uses it. Python
gRPC cannot renew a client certificate on an open channel, so new credentials mean a new key and a new channel.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import grpc
from grpc import aio

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.wire.channels import ClientIdentity, open_channel, shows_certificate

CLOSE_GRACE: Final = 1.0
"""Seconds for what still runs on a channel without a lease: nothing, unless a caller kept it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelKey:
    """What makes two channels the same. `identity` names the client certificate; empty if none is shown."""

    endpoint: str
    ca_bundle_pem: str = field(repr=False)
    server_name: str
    identity: str


ChannelOpener: TypeAlias = Callable[[Connection, Credentials | None], aio.Channel]


class Lease:
    """The use of a channel by one generation. `release` it once that generation has answered its last request."""

    def __init__(self, pool: "Pool", *, key: ChannelKey, channel: aio.Channel) -> None:
        self._pool = pool
        self._is_released = False
        self.key = key
        self.channel = channel

    @property
    def is_failing(self) -> bool:
        """Whether the channel has lost its service and could not reach it again so far.

        Looking also dials anew a channel that gRPC let go idle, so that an outage shows without traffic.
        """
        return self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def renewed(self) -> "Lease":
        """A second lease of the same channel, for another generation."""
        return self._pool.share(self)

    def release(self) -> None:
        """Return it; more than once does no harm."""
        if not self._is_released:
            self._is_released = True
            self._pool.give_back(self.key)


@dataclass(slots=True)
class _Entry:
    channel: aio.Channel
    leases: int = 0


class Pool:
    """The open channels. Used from one event loop."""

    def __init__(self, open_channel: ChannelOpener | None = None) -> None:
        self._open_channel = open_service_channel if open_channel is None else open_channel
        self._entries: dict[ChannelKey, _Entry] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.opened = 0

    @property
    def keys(self) -> frozenset[ChannelKey]:
        """The channels that are open now."""
        return frozenset(self._entries)

    def lease(self, connection: Connection, *, credentials: Credentials | None) -> Lease:
        """Use the channel for `connection` as `credentials`, opening it if nobody has.

        Raises:
            Unavailable: the service wants a client certificate and there is none yet.
            InvalidInput: the connection cannot be dialled at all.
        """
        key = channel_key(connection, credentials=credentials)
        if key not in self._entries:
            self._entries[key] = _Entry(channel=self._open_channel(connection, credentials))
            self.opened += 1
        return self._leased(key)

    def share(self, lease: Lease) -> Lease:
        """Another lease of the channel that `lease` holds."""
        return self._leased(lease.key)

    def give_back(self, key: ChannelKey) -> None:
        """One lease fewer; called by `Lease.release` only."""
        entry = self._entries.get(key)
        if entry is None:
            return  # the pool was closed first
        entry.leases -= 1
        if entry.leases == 0:
            self._close(key)

    async def close(self) -> None:
        """Close every channel, leased or not, and wait for it; for the end of the process."""
        for key in self.keys:
            self._close(key)
        await asyncio.gather(*self._closing)

    def _close(self, key: ChannelKey) -> None:
        task = asyncio.ensure_future(self._entries.pop(key).channel.close(CLOSE_GRACE))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _leased(self, key: ChannelKey) -> Lease:
        entry = self._entries[key]
        entry.leases += 1
        return Lease(self, key=key, channel=entry.channel)


def channel_key(connection: Connection, *, credentials: Credentials | None) -> ChannelKey:
    """What names the channel for `connection` as `credentials`. The timeout is of calls, not of channels."""
    return ChannelKey(
        endpoint=connection.endpoint,
        ca_bundle_pem=connection.ca_bundle_pem,
        server_name=connection.server_name,
        identity=_identity(credentials) if shows_certificate(connection) else "",
    )


def open_service_channel(connection: Connection, credentials: Credentials | None) -> aio.Channel:
    """A channel to a middleware service; dials on first use.

    Raises:
        Unavailable: the service wants a client certificate and there is none yet.
        InvalidInput: the endpoint cannot be dialled.
    """
    if credentials is None:
        if shows_certificate(connection):
            raise Unavailable("no certificate to show to the service yet: the supervisor is not enrolled")
        return open_channel(connection, identity=None)
    identity = ClientIdentity(
        certificate_chain_pem=credentials.certificate_chain_pem,
        private_key_pem=credentials.private_key_pem.reveal(),
    )
    return open_channel(connection, identity=identity)


def _identity(credentials: Credentials | None) -> str:
    return "" if credentials is None else hashlib.sha256(credentials.certificate_chain_pem).hexdigest()
