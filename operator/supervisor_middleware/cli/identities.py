"""Who the CLI is towards services: a folder with tls.crt, tls.key and ca.crt, as supervisors and Secrets have it."""

from pathlib import Path

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.wire.channels import ClientIdentity


def client_identity(directory: Path | None) -> ClientIdentity | None:
    """The identity kept in `directory`; None where none is to be shown.

    Raises:
        InvalidInput: the directory holds none.
        Untrusted: what it holds does not fit together; names the file.
    """
    if directory is None:
        return None
    credentials = read_credentials(directory)
    if credentials is None:
        raise InvalidInput(f"{directory}: holds no credentials (tls.crt, tls.key, ca.crt)")
    return ClientIdentity(
        certificate_chain_pem=credentials.certificate_chain_pem,
        private_key_pem=credentials.private_key_pem.reveal(),
    )
