"""Ends a peer's connection under gRPC, which has no way to.

A write that is under way cannot be cancelled, and no status can be sent behind it. A peer that answers pings and
takes no byte would hold an offer in memory until its connection is too old. Its socket is one of this process's: shut
down, gRPC sees the connection end, and everything on it.
"""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def cut(peer: str) -> bool:
    """Shut down the connection of a call's peer (`ipv4:10.0.0.1:4711`, `ipv6:[::1]:4711`); whether there was one.

    It looks at every open file of the process: for the rare peer that deserves it.
    """
    address = _address(peer)
    if address is None:
        return False
    found = False
    for connection in _connections():
        with connection:
            try:
                host, port = connection.getpeername()[:2]
                if (_plain(host), port) == address:
                    connection.shutdown(socket.SHUT_RDWR)
                    found = True
            except OSError:
                continue
    return found


def _address(peer: str) -> tuple[str, int] | None:
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in {"ipv4", "ipv6"} or not port.isdecimal():
        return None
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    """A socket of both families says `::ffff:10.0.0.1` where gRPC says `10.0.0.1`."""
    return host.partition("%")[0].removeprefix("::ffff:")


def _connections() -> Iterator[socket.socket]:
    """Duplicates of the process's TCP sockets: gRPC may close one meanwhile, and its number be another's."""
    for entry in Path(_DESCRIPTORS).iterdir():
        try:
            descriptor = os.dup(int(entry.name))
        except OSError:
            continue
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        if connection.family in {socket.AF_INET, socket.AF_INET6} and connection.type is socket.SOCK_STREAM:
            yield connection
        else:
            connection.close()
