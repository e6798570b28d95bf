"""Who is on a stream, as its certificate says. PURE."""

from dataclasses import dataclass, field

from supervisor_middleware.distribution.attendance import Leaf, leaf_of
from supervisor_middleware.pki.spiffe import SandboxIdentity, sandbox_identity
from supervisor_middleware.pki.tokens import JOINED_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A supervisor and the certificate it showed."""

    identity: SandboxIdentity
    leaf: Leaf
    key: str = field(init=False)
    """What the ledger knows it by."""
    place: tuple[str, str] = field(init=False)
    """Namespace and name of its sandbox."""

    def __post_init__(self) -> None:
        # Asked for with each word that is said on a stream.
        object.__setattr__(self, "key", supervisor_key(self.identity))
        object.__setattr__(self, "place", (self.identity.namespace, self.identity.sandbox))


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
