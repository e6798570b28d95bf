"""What one process proves itself with, and whom it believes. PURE; `credential_files` keeps it on disk.

A `Credentials` that exists is consistent: certificate, key and bundle can be read and the key is the certificate's.
Whether TLS peers accept it is decided by TLS; when to replace it, by `should_renew`.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from cryptography import x509

from supervisor_middleware.errors import Bug, InvalidInput, Untrusted
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.keys import is_pair, key_from_pem
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.spiffe import SpiffeId, spiffe_id_of

RENEWAL_POINT: Final = 0.5
RENEWAL_SPREAD: Final = 0.1  # of the lifetime; processes that start together must not renew together


class Part(StrEnum):
    """The three parts of credentials, as people call them."""

    CERTIFICATE = "certificate chain"
    KEY = "private key"
    BUNDLE = "trust bundle"


class CredentialsRefused(Untrusted):
    """A part of the credentials cannot be what it should be; says which, never its content."""

    def __init__(self, part: Part, problem: str) -> None:
        super().__init__(f"{part}: {problem}")
        self.part = part


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Certificate chain (leaf first), its private key, and the roots to verify peers with; all PEM.

    Raises:
        CredentialsRefused: a part cannot be read, or the key is another certificate's.
    """

    certificate_chain_pem: bytes = field(repr=False)
    private_key_pem: SecretBytes
    trust_bundle_pem: bytes = field(repr=False)
    leaf: x509.Certificate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        leaf = _read(Part.CERTIFICATE, self.certificate_chain_pem)[0]
        _read(Part.BUNDLE, self.trust_bundle_pem)
        try:
            key = key_from_pem(self.private_key_pem)
        except InvalidInput as error:
            raise CredentialsRefused(Part.KEY, str(error)) from None
        if not is_pair(key, leaf):
            raise CredentialsRefused(Part.KEY, "belongs to another certificate")
        object.__setattr__(self, "leaf", leaf)

    @property
    def not_before(self) -> datetime:
        """When the leaf becomes valid (backdated for clock skew)."""
        return self.leaf.not_valid_before_utc

    @property
    def expires_at(self) -> datetime:
        """When the leaf stops being valid."""
        return self.leaf.not_valid_after_utc

    @property
    def spiffe_id(self) -> SpiffeId:
        """Who the leaf says we are.

        Raises:
            Untrusted: a plain server's leaf carries no SPIFFE ID.
        """
        return spiffe_id_of(self.leaf)


def renewal_time(*, not_before: datetime, not_after: datetime, jitter: float) -> datetime:
    """When to renew: about half-life; `jitter` in [0, 1] places it within a tenth of the lifetime around that.

    Draw `jitter` once a certificate: a new draw at each look would pull the moment forward.

    Raises:
        Bug: `jitter` is outside [0, 1].
    """
    if not 0 <= jitter <= 1:
        raise Bug("jitter must lie within 0 and 1")
    return not_before + (not_after - not_before) * (RENEWAL_POINT + RENEWAL_SPREAD * (jitter - 0.5))


def should_renew(now: datetime, *, not_before: datetime, not_after: datetime, jitter: float) -> bool:
    """Whether the moment of `renewal_time` has come."""
    return now >= renewal_time(not_before=not_before, not_after=not_after, jitter=jitter)


def _read(part: Part, pem: bytes) -> tuple[x509.Certificate, ...]:
    try:
        return parse_bundle(pem)
    except InvalidInput as error:
        raise CredentialsRefused(part, str(error)) from None
