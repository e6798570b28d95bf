"""That a running control plane looks at its connections: whoever opens too many loses the oldest of them."""

import socket
from contextlib import ExitStack

from supervisor_middleware.apps.control_plane import bounds
from supervisor_middleware.distribution.connections import raise_descriptor_limit
from supervisor_middleware.distribution.tls import ClientCertificate
from supervisor_middleware.sources.local_access import read_endpoint
from tests.apps.rig import Rig


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_connections_of_one_host_that_never_prove_anything_are_so_many(rig: Rig) -> None:
    raise_descriptor_limit()
    most = bounds(ClientCertificate.NOT_ASKED).of_one
    rig.control.start()
    rig.until("it listens", lambda: read_endpoint(rig.state) is not None)
    endpoint = read_endpoint(rig.state)
    assert endpoint is not None
    host, _, port = endpoint.address.rpartition(":")
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(most + 40)]
        for client in clients:
            client.settimeout(0)
        rig.until("those over the bound are ended", lambda: sum(map(has_ended, clients)) == 40)
        assert all(map(has_ended, clients[:40])), "the oldest"
