"""The operator's TLS towards supervisors, on its two ports."""

from collections.abc import Callable
from enum import Enum

import grpc

from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.wire.server_tls import ServerMaterial, following


class ClientCertificate(Enum):
    """Whether a client must present a certificate. A port that does not require one never asks for one."""

    REQUIRED = True
    NOT_ASKED = False


def server_credentials(
    current: Callable[[], Credentials], *, client_certificate: ClientCertificate
) -> grpc.ServerCredentials:
    """TLS as `current` has it at each handshake; client certificates are verified against its trust bundle."""

    def material() -> ServerMaterial:
        credentials = current()
        return ServerMaterial(
            certificate_chain_pem=credentials.certificate_chain_pem,
            private_key_pem=credentials.private_key_pem.reveal(),
            client_roots_pem=credentials.trust_bundle_pem if client_certificate.value else None,
        )

    return following(material(), material)
