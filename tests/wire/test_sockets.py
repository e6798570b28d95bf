"""What the kernel is told of our sockets."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from supervisor_middleware.wire.sockets import Probing, own_sockets, probe_who_connects, probe_whom_we_reached

PROBING = Probing(idle=7, interval=3, count=2)


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with socket.create_server(
        (request.param, 0), family=socket.AF_INET6 if ":" in request.param else socket.AF_INET
    ) as made:
        yield made


def is_probed(each: socket.socket) -> bool:
    options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
    found = tuple(each.getsockopt(socket.IPPROTO_TCP, o) for o in options)
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) and found == (7, 3, 2)


def test_whoever_connects_from_now_on_is_asked_after_and_nobody_else(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    with closing(socket.create_connection((host, port))):
        before, _ = listener.accept()
        assert probe_who_connects(port, PROBING) == 1
        with closing(before), closing(socket.create_connection((host, port))) as near:
            after, _ = listener.accept()
            with closing(after):
                assert (is_probed(before), is_probed(after), is_probed(near)) == (False, True, False)


def test_whom_we_reached_is_asked_after_and_not_who_reached_us(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    with closing(socket.create_connection((host, port))) as near:
        far, _ = listener.accept()
        with closing(far):
            assert probe_whom_we_reached(port, PROBING) == 1
            assert (is_probed(near), is_probed(far), is_probed(listener)) == (True, False, False)


def test_files_of_other_kinds_are_passed_over_and_nothing_is_left_open(listener: socket.socket) -> None:
    with closing(socket.socket(socket.AF_UNIX)), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)):
        for _ in range(3):
            found = list(own_sockets())
            assert listener.getsockname() in [each.getsockname() for each in found]
            assert {each.type for each in found} == {socket.SOCK_STREAM}
            for each in found:
                each.close()
        assert probe_who_connects(1, PROBING) == 0
