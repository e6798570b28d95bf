"""The process's own TCP sockets, under gRPC, which gives no access to them.

A peer whose machine is gone says nothing any more. gRPC's pings would find that out, at about a millisecond of
processor each, which a thousand quiet streams make noticeable; the kernel's cost nothing that can be measured.
"""

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """In seconds: how long nothing is heard before the kernel asks, and then how often; `count` times without answer.

    A socket on which gRPC has a timeout of its own for what it sent (`TCP_USER_TIMEOUT`: its keepalive timeout) ends
    at the first probe after that.
    """

    idle: int
    interval: int
    count: int


OF_SUPERVISORS: Final = Probing(idle=30, interval=10, count=3)
"""Nothing is lost but a number in a status while one that is gone is not missed."""
OF_OPERATOR: Final = Probing(idle=15, interval=5, count=3)
"""Changes wait until one that is gone is missed."""


def own_sockets() -> Iterator[socket.socket]:
    """Duplicates of them: gRPC may close one meanwhile, and its number be another's. Close each."""
    for entry in os.listdir(DESCRIPTORS):  # noqa: PTH208 - a path for each of thousands costs
        try:
            descriptor = os.dup(int(entry))
        except OSError:
            continue
        try:
            found = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        if found.family in {socket.AF_INET, socket.AF_INET6} and found.type is socket.SOCK_STREAM:
            yield found
        else:
            found.close()


def probe_who_connects(port: int, probing: Probing = OF_SUPERVISORS) -> int:
    """Have the kernel ask after whoever connects to `port` from now on; how many sockets listen there."""
    return _probe(probing, port=port, is_listening=True)


def probe_whom_we_reached(port: int, probing: Probing = OF_OPERATOR) -> int:
    """Have the kernel ask after those we are connected to at their `port`; how many there are."""
    return _probe(probing, port=port, is_listening=False)


def _probe(probing: Probing, *, port: int, is_listening: bool) -> int:
    found = 0
    for each in own_sockets():
        with each:
            try:
                # A socket that was accepted has what its listener was told.
                name = each.getsockname() if is_listening else each.getpeername()
                listens = bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                if name[1] == port and listens is is_listening:
                    _tell(each, probing)
                    found += 1
            except OSError:  # it is connected to nobody, or ended just now
                continue
    return found


def _tell(each: socket.socket, probing: Probing) -> None:
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, probing.idle),
            (socket.TCP_KEEPINTVL, probing.interval),
            (socket.TCP_KEEPCNT, probing.count),
        ):
            each.setsockopt(socket.IPPROTO_TCP, option, value)
    each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
