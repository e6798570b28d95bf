"""gRPC server credentials that follow a renewed certificate without a restart.

Python gRPC asks a callback at every handshake. It must answer None while nothing has changed: a new configuration
makes gRPC's core (1.85) replace the handshaker factory that other handshakes are using at that moment, and many
clients that connect at once then end the process with a segmentation fault. So does this: one answer a change.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMaterial:
    """What a server proves itself with, PEM; with `client_roots_pem` a client certificate is required."""

    certificate_chain_pem: bytes = field(repr=False)
    private_key_pem: bytes = field(repr=False)
    client_roots_pem: bytes | None = field(default=None, repr=False)


def following(first: ServerMaterial, current: Callable[[], ServerMaterial | None]) -> grpc.ServerCredentials:
    """Credentials that begin with `first` and become what `current` gives at a handshake; None keeps what is in use.

    `current` is called from gRPC's own threads, one at a time. Whether client certificates are required is decided
    by `first`.
    """
    return grpc.dynamic_ssl_server_credentials(
        _configuration(first),
        Fetcher(first, current),  # type: ignore[arg-type] # the stubs do not know that a fetcher may return None
        require_client_authentication=first.client_roots_pem is not None,
    )


class Fetcher:
    """gRPC's certificate fetcher: a configuration once a change, None otherwise."""

    def __init__(self, first: ServerMaterial, current: Callable[[], ServerMaterial | None]) -> None:
        """As for `following`."""
        self._used, self._current = first, current
        self._lock = threading.Lock()

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC is to use from now on, if that is news."""
        with self._lock:
            fetched = self._current()
            if fetched is None or fetched == self._used:
                return None
            self._used = fetched
            return _configuration(fetched)


def _configuration(material: ServerMaterial) -> grpc.ServerCertificateConfiguration:
    pair = (material.private_key_pem, material.certificate_chain_pem)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=material.client_roots_pem)
