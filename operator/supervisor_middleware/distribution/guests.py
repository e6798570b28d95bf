"""Who is on a stream, as its certificate says. PURE."""

from dataclasses import dataclass

from supervisor_middleware.distribution.attendance import Leaf, leaf_of
from supervisor_middleware.pki.spiffe import SandboxIdentity, sandbox_identity
from supervisor_middleware.pki.tokens import JOINED_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A supervisor and the certificate it showed."""

    identity: SandboxIdentity
    leaf: Leaf

    @property
    def key(self) -> str:
        """What the ledger knows it by."""
        return supervisor_key(self.identity)

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and name of its sandbox."""
        return self.identity.namespace, self.identity.sandbox


def guest_of(certificate_pem: bytes, *, trust_domain: str) -> Guest:
    """Who showed `certificate_pem`, which TLS has verified.

    Raises:
        Untrusted: it names no sandbox of `trust_domain`.
    """
    identity = sandbox_identity(certificate_pem, trust_domain=trust_domain)
    return Guest(identity=identity, leaf=leaf_of(certificate_pem))


def supervisor_key(identity: SandboxIdentity) -> str:
    """The ledger's key: the Pod's UID, or the sandbox's name for one that joined without a Pod."""
    if identity.pod_uid.startswith(JOINED_PREFIX):
        return f"{identity.namespace}/{identity.sandbox}"
    return identity.pod_uid
