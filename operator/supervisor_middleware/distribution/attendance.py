"""When supervisors came and went. PURE: the ledger remembers nothing across connections, people want to know.

What is kept goes with the sandbox.
"""

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from supervisor_middleware.distribution.ledger import Record, Wish
from supervisor_middleware.errors import Untrusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Of a supervisor's certificate: which one it is, its life, and the key identifier of the root that issued it."""

    serial: int
    begins_at: datetime
    expires_at: datetime
    issuer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """`reconnects` are the streams after the first one; `left_at` is when the latest one ended."""

    leaf: Leaf
    reconnects: int = 0
    left_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one supervisor should run, what it said while it is connected, and what of its visits is known."""

    desired: Wish | None
    record: Record | None
    visits: Visits | None


class Attendance:
    """Visits by supervisor key."""

    def __init__(self) -> None:
        self._visits: dict[str, Visits] = {}

    def came(self, key: str, leaf: Leaf) -> None:
        """A stream was opened."""
        before = self._visits.get(key)
        self._visits[key] = Visits(leaf=leaf, reconnects=0 if before is None else before.reconnects + 1)

    def left(self, key: str, *, at: datetime | None) -> None:
        """The supervisor's only stream ended."""
        before = self._visits.get(key)
        if before is not None:
            self._visits[key] = Visits(leaf=before.leaf, reconnects=before.reconnects, left_at=at)

    def forget(self, key: str) -> None:
        """Its sandbox is no more."""
        self._visits.pop(key, None)

    def of(self, key: str) -> Visits | None:
        """What is known of a supervisor; None if it never came while this operator led."""
        return self._visits.get(key)


def leaf_of(certificate_pem: bytes) -> Leaf:
    """What is told of a certificate that TLS has verified.

    Raises:
        Untrusted: it cannot be read.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        return Leaf(
            serial=certificate.serial_number,
            begins_at=certificate.not_valid_before_utc,
            expires_at=certificate.not_valid_after_utc,
            issuer=_issuer(certificate),
        )
    except ValueError as error:
        raise Untrusted("the peer's certificate cannot be read") from error


def _issuer(certificate: x509.Certificate) -> str:
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except (x509.ExtensionNotFound, x509.DuplicateExtension):
        return ""
    return "" if found is None else found.hex()
