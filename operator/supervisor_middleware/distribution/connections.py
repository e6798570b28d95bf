"""The connections under gRPC, which neither tells of them nor has a way to end one.

A write that is under way cannot be cancelled, and no status can be sent behind it. A peer that answers pings and
takes no byte would hold an offer in memory until its connection is too old. Its socket is one of this process's: shut
down, gRPC sees the connection end, and everything on it.
"""

import os
import resource
import socket
from collections.abc import Collection
from typing import Final, TypeAlias
from urllib.parse import unquote

from supervisor_middleware.wire.sockets import DESCRIPTORS, own_sockets

_ENOUGH: Final = 65_536

Address: TypeAlias = tuple[str, int]
"""Of a peer: its IP address and its port."""


def cut(peer: str) -> bool:
    """Shut down the connection of a call's peer (`ipv4:10.0.0.1:4711`, `ipv6:[::1]:4711`); whether there was one.

    It looks at every open file of the process: for the rare peer that deserves it.
    """
    address = address_of(peer)
    return address is not None and cut_all({address}) > 0


def cut_all(addresses: Collection[Address], *, port: int | None = None) -> int:
    """Shut down the connections of peers, those to `port` of ours if it is given; how many there were."""
    found = 0
    for connection in own_sockets():
        with connection:
            try:
                if _address(connection.getpeername()) in addresses and port in {None, connection.getsockname()[1]}:
                    connection.shutdown(socket.SHUT_RDWR)
                    found += 1
            except OSError:
                continue
    return found


def connections() -> list[tuple[int, Address]]:
    """Our port and the peer of every connection, also of those whose handshake is under way."""
    found = list[tuple[int, Address]]()
    for connection in own_sockets():
        with connection:
            try:
                found.append((connection.getsockname()[1], _address(connection.getpeername())))
            except OSError:  # it listens, or ended just now
                continue
    return found


def descriptors() -> int:
    """How many files, connections among them, this process has open."""
    return len(os.listdir(DESCRIPTORS))  # noqa: PTH208 - a path for each of thousands costs


def raise_descriptor_limit() -> None:
    """Let this process have as many open as it may, up to a number that is enough: by default 1,024 are usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def address_of(peer: str) -> Address | None:
    """The address in what gRPC calls a call's peer; None if it has none."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in {"ipv4", "ipv6"} or not port.isdecimal():
        return None
    return _plain(host.strip("[]")), int(port)


def _address(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return _plain(name[0]), name[1]


def _plain(host: str) -> str:
    """A socket of both families says `::ffff:10.0.0.1` where gRPC says `10.0.0.1`."""
    return host.partition("%")[0].removeprefix("::ffff:")
