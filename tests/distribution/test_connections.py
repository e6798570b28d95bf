"""A connection is cut by its peer's address, and no other."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from supervisor_middleware.distribution.connections import connections, cut, cut_all, descriptors


@contextmanager
def connected(host: str) -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """A client's end, the server's end, and the client's port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        accepted, address = server.accept()
        with accepted:
            yield client, accepted, address[1]


def is_open(client: socket.socket, accepted: socket.socket) -> bool:
    try:
        accepted.sendall(b"x")
    except OSError:
        return False
    return client.recv(1) == b"x"


@pytest.mark.parametrize(("host", "peer"), [("127.0.0.1", "ipv4:127.0.0.1:{}"), ("::1", "ipv6:%5B::1%5D:{}")])
def test_the_connection_of_a_peer_ends_and_others_go_on(host: str, peer: str) -> None:
    with connected(host) as (client, accepted, port), connected(host) as (other, others_end, _):
        assert is_open(client, accepted)
        assert cut(peer.format(port))
        assert not is_open(client, accepted)
        assert is_open(other, others_end)


def test_a_peer_of_ipv4_on_a_socket_of_both_families_is_found() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", server.getsockname()[1])))
        accepted = stack.enter_context(server.accept()[0])
        assert cut(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
        assert not is_open(client, accepted)


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:/tmp/socket", "", "ipv4:127.0.0.1", "ipv4:127.0.0.1:x"])
def test_a_peer_that_is_not_there_is_none(peer: str) -> None:
    with connected("127.0.0.1") as (client, accepted, _):
        assert not cut(peer)
        assert is_open(client, accepted)


def test_connections_are_told_by_our_port_and_their_peer_and_ended_by_both() -> None:
    with connected("127.0.0.1") as (client, accepted, port), connected("127.0.0.1") as (other, others_end, _):
        ours = accepted.getsockname()[1]
        assert [peer for own, peer in connections() if own == ours] == [("127.0.0.1", port)]
        theirs = others_end.getsockname()[1]
        assert cut_all({("127.0.0.1", port)}, port=theirs) == 0
        assert is_open(client, accepted)
        assert cut_all({("127.0.0.1", port)}, port=ours) == 1
        assert not is_open(client, accepted)
        assert is_open(other, others_end)


def test_open_files_are_counted() -> None:
    before = descriptors()
    with connected("127.0.0.1"):
        assert descriptors() == before + 3


@pytest.mark.parametrize(("soft", "hard", "then"), [(100, 200, 200), (200, 200, 200)])
def test_a_process_may_have_as_many_files_open_as_its_hard_limit(soft: int, hard: int, then: int) -> None:
    program = f"""
import resource
from supervisor_middleware.distribution.connections import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_descriptor_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(then), str(hard)]
