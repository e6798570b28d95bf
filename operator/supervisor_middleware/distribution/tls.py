"""Server credentials that follow a renewed certificate. Python gRPC reloads a server's certificate by callback."""

from collections.abc import Callable
from enum import Enum

import grpc

from supervisor_middleware.pki.credentials import Credentials


class ClientCertificate(Enum):
    """Whether a client must present a certificate. A port that does not require one never asks for one."""

    REQUIRED = True
    NOT_ASKED = False


def server_credentials(
    current: Callable[[], Credentials], *, client_certificate: ClientCertificate
) -> grpc.ServerCredentials:
    """TLS as `current` has it at each handshake; client certificates are verified against its trust bundle."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        credentials = current()
        pair = (credentials.private_key_pem.reveal(), credentials.certificate_chain_pem)
        roots = credentials.trust_bundle_pem if client_certificate is ClientCertificate.REQUIRED else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    return grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=client_certificate.value
    )
