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


def post(path: Path, method: str, call: Mapping[str, object]) -> str:
    """Make a call by its path and return the answer; anything but success is an error."""
    return _ask(path, "POST", method, body=json.dumps(call))


def get(path: Path, page: str) -> str:
    """Read a page, as `/metrics`; anything but success is an error."""
    return _ask(path, "GET", page)


def _ask(path: Path, verb: str, page: str, *, body: str | None = None) -> str:
    connection = _Connection(path)
    try:
        connection.request(verb, page, body=body, headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != http.client.OK:
            raise ConnectionError(f"etcd answered {answer.status} to {page}: {text}")
        return text
    finally:
        connection.close()
