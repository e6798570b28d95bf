"""The server's side of mutual TLS: certificates that are read again at every handshake, and who may call.

A service is restarted for no certificate: whoever writes the files (cert-manager, a Secret mount) writes them,
and the next handshake uses them. A half-written or broken set keeps the last good one in use.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import grpc

from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError
from supervisor_middleware.middleware.service import Caller
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.keys import is_pair, key_from_pem
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.spiffe import SpiffeId
from supervisor_middleware.wire.server_tls import ServerMaterial, following

CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a server proves itself with, and whose client certificates it takes; all PEM.

    With `client_ca_pem` (the operator's trust bundle and nothing else) a client certificate is required; without it
    none is asked for, and callers are anonymous.

    Raises:
        InvalidInput: a part cannot be read, or the key is another certificate's.
    """

    certificate_chain_pem: bytes = field(repr=False)
    private_key_pem: SecretBytes
    client_ca_pem: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        leaf = parse_bundle(self.certificate_chain_pem)[0]
        if not is_pair(key_from_pem(self.private_key_pem), leaf):
            raise InvalidInput("the private key belongs to another certificate")
        if self.client_ca_pem is not None:
            parse_bundle(self.client_ca_pem)


TlsSource: TypeAlias = Callable[[], ServerTls]
"""Asked before every handshake; raises OSError or InvalidInput where there is nothing good to use."""

CallerRule: TypeAlias = Callable[[Caller], bool]
"""Whether a caller may call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A `TlsSource` over `tls.crt` and `tls.key` in a directory (a `kubernetes.io/tls` Secret) and a CA file."""

    directory: Path
    client_ca: Path | None = None

    def __call__(self) -> ServerTls:
        """What the files hold now."""
        return ServerTls(
            certificate_chain_pem=(self.directory / CERTIFICATE_FILE).read_bytes(),
            private_key_pem=SecretBytes((self.directory / KEY_FILE).read_bytes()),
            client_ca_pem=None if self.client_ca is None else self.client_ca.read_bytes(),
        )


def any_caller(_: Caller) -> bool:
    """Everybody, also without a certificate: for plaintext on a developer's machine."""
    return True


def identified(caller: Caller) -> bool:
    """Whoever proves a SPIFFE ID. The client CA of one trust domain signs nobody else's."""
    return caller.spiffe_id is not None


def members_of(trust_domain: str) -> CallerRule:
    """Whoever proves a SPIFFE ID of `trust_domain`: for a client CA that several domains share."""

    def rule(caller: Caller) -> bool:
        return caller.spiffe_id is not None and _trust_domain(caller.spiffe_id) == trust_domain

    return rule


def sandbox_of(caller: Caller) -> str | None:
    """The sandbox (`namespace/name`) whose supervisor calls; None for the operator and whoever proves no sandbox."""
    match _path(caller):
        case ("ns", namespace, "sandbox", sandbox):
            return f"{namespace}/{sandbox}"
        case _:
            return None


def is_operator(caller: Caller) -> bool:
    """Whether the operator calls: `Describe` and `ValidateConfig`, never with a sandbox's request."""
    match _path(caller):
        case ("ns", _, "operator"):
            return True
        case _:
            return False


def chosen(trust_domain: str, *, namespaces: Collection[str] = (), sandboxes: Collection[str] = ()) -> CallerRule:
    """Supervisors of these `namespaces`, of these `sandboxes` (`namespace/name`), and the operator.

    A renewed certificate names the same sandbox, so a choice outlives it, and a change of the CA.
    """
    of_namespaces, of_sandboxes = frozenset(namespaces), frozenset(sandboxes)
    is_member = members_of(trust_domain)

    def rule(caller: Caller) -> bool:
        sandbox = sandbox_of(caller)
        is_chosen = sandbox is not None and (sandbox in of_sandboxes or sandbox.partition("/")[0] in of_namespaces)
        return is_member(caller) and (is_chosen or is_operator(caller))

    return rule


def server_credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Credentials that ask `source` again before every handshake.

    Raises:
        OSError, InvalidInput: nothing good to start with.
    """
    first = source()

    def material() -> ServerMaterial | None:
        try:
            fetched = source()
            if (fetched.client_ca_pem is None) != (first.client_ca_pem is None):
                raise InvalidInput("whether client certificates are required is fixed at start")
        except (OSError, SupervisorMiddlewareError) as error:
            _log.warning("TLS files cannot be used, the last good ones stay: %s", error)
            return None
        return _material(fetched)

    return following(_material(first), material)


def _material(tls: ServerTls) -> ServerMaterial:
    return ServerMaterial(
        certificate_chain_pem=tls.certificate_chain_pem,
        private_key_pem=tls.private_key_pem.reveal(),
        client_roots_pem=tls.client_ca_pem,
    )


def _trust_domain(spiffe_id: str) -> str | None:
    found = _parsed(spiffe_id)
    return None if found is None else found.trust_domain


def _path(caller: Caller) -> tuple[str, ...]:
    found = None if caller.spiffe_id is None else _parsed(caller.spiffe_id)
    return () if found is None else found.path


def _parsed(spiffe_id: str) -> SpiffeId | None:
    try:
        return SpiffeId.parse(spiffe_id)
    except InvalidInput:
        return None
