"""etcd's JSON gateway on its Unix socket: what a test does to it that no Kubernetes API offers."""

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 10.0


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(str(self._path))


def post(path: Path, method: str, call: Mapping[str, object]) -> None:
    """Make a call by its path; anything but success is an error."""
    connection = _Connection(path)
    try:
        connection.request("POST", method, body=json.dumps(call), headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != http.client.OK:
            raise ConnectionError(f"etcd answered {answer.status} to {method}: {text}")
    finally:
        connection.close()
