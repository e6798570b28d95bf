"""The certificate authority. PURE: a key, a certificate, and what may be signed with them.

Who may ask is decided by the caller; *what* is signed is decided here, so that no request can widen it: of a signing
request only the public key is used. Every leaf ends with its issuer at the latest and begins a little in the past,
for peers whose clocks are behind.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki import profiles
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import PrivateKey, csr_public_key, is_pair, key_from_pem, key_to_pem, new_key
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.spiffe import (
    SandboxIdentity,
    SpiffeId,
    is_subdomain,
    operator_id,
    operator_server_name,
    supervisor_id,
)

IpAddress: TypeAlias = IPv4Address | IPv6Address

ROOT_LIFETIME: Final = timedelta(days=3650)
LEAF_LIFETIME: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """A certificate for a key that we never saw."""

    certificate_chain_pem: bytes = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A root of one trust domain. Made by `create` or `load`, which check that the parts fit."""

    trust_domain: str
    certificate: x509.Certificate = field(repr=False)
    private_key: PrivateKey = field(repr=False, compare=False)

    @classmethod
    def create(cls, *, trust_domain: str, now: datetime, lifetime: timedelta = ROOT_LIFETIME) -> "Authority":
        """A new root with a new key.

        Raises:
            InvalidInput: the trust domain is not a DNS name, or the lifetime is not positive.
        """
        key = new_key()
        spiffe_id = SpiffeId(trust_domain=trust_domain)
        validity = profiles.validity(now, lifetime=lifetime)
        certificate = profiles.root(key, spiffe_id=spiffe_id, validity=validity)
        return cls(trust_domain=trust_domain, certificate=certificate, private_key=key)

    @classmethod
    def load(cls, cert_pem: bytes, key_pem: SecretBytes, *, trust_domain: str, now: datetime) -> "Authority":
        """The root that is kept in (or was supplied as) `cert_pem` and `key_pem`.

        Raises:
            InvalidInput: with every reason why it cannot serve as the root of `trust_domain`.
        """
        certificates = parse_bundle(cert_pem)
        key = key_from_pem(key_pem)
        problems = list(_problems(certificates, key=key, trust_domain=SpiffeId(trust_domain=trust_domain), now=now))
        if problems:
            raise InvalidInput("the CA certificate cannot be used: " + "; ".join(problems))
        return cls(trust_domain=trust_domain, certificate=certificates[0], private_key=key)

    @property
    def certificate_pem(self) -> bytes:
        """The root's certificate: what goes into a trust bundle."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def private_key_pem(self) -> SecretBytes:
        """The root's private key, to be stored."""
        return key_to_pem(self.private_key)

    @property
    def not_before(self) -> datetime:
        """When the root becomes valid."""
        return self.certificate.not_valid_before_utc

    @property
    def expires_at(self) -> datetime:
        """When the root, and everything it issued, stops being valid."""
        return self.certificate.not_valid_after_utc

    def issue_supervisor(
        self, csr_pem: bytes, *, identity: SandboxIdentity, now: datetime, lifetime: timedelta = LEAF_LIFETIME
    ) -> IssuedCertificate:
        """A client certificate for the supervisor `identity`, with the key of `csr_pem` and nothing else of it.

        Raises:
            InvalidInput: the request cannot be read or its key is of a wrong kind; or the root has expired.
            Untrusted: the request is not signed by its own key.
        """
        spiffe_id = supervisor_id(self.trust_domain, namespace=identity.namespace, sandbox=identity.sandbox)
        leaf = profiles.Leaf(
            subject=x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, identity.pod_uid)]),
            names=(x509.UniformResourceIdentifier(str(spiffe_id)),),
            usages=(profiles.CLIENT_AUTH,),
            validity=self._validity(now, lifetime=lifetime),
        )
        certificate = profiles.sign(
            leaf, key=csr_public_key(csr_pem), issuer=self.certificate, signer=self.private_key
        )
        return IssuedCertificate(
            certificate_chain_pem=certificate.public_bytes(Encoding.PEM),
            expires_at=certificate.not_valid_after_utc,
        )

    def issue_operator(
        self,
        *,
        namespace: str,
        dns_names: Iterable[str] = (),
        ip_addresses: Iterable[IpAddress] = (),
        now: datetime,
        lifetime: timedelta = LEAF_LIFETIME,
    ) -> Credentials:
        """Credentials of the operator in `namespace`: a server to supervisors, a client of middleware services.

        Raises:
            InvalidInput: a name is not a DNS name, the lifetime is not positive, or the root has expired.
        """
        own = operator_server_name(self.trust_domain)
        spiffe_id = operator_id(self.trust_domain, namespace)
        names = (x509.UniformResourceIdentifier(str(spiffe_id)), *_server_names((own, *dns_names), ip_addresses))
        usages = (profiles.SERVER_AUTH, profiles.CLIENT_AUTH)
        return self._credentials(names=names, usages=usages, validity=self._validity(now, lifetime=lifetime))

    def issue_server(
        self,
        *,
        dns_names: Iterable[str] = (),
        ip_addresses: Iterable[IpAddress] = (),
        now: datetime,
        lifetime: timedelta = LEAF_LIFETIME,
    ) -> Credentials:
        """Credentials of a plain server (the webhook, a middleware service of the demo); no SPIFFE ID.

        Raises:
            InvalidInput: no name, a name that is not a DNS name or is the operator's; or as `issue_operator`.
        """
        wanted = tuple(dns_names)
        if operator_server_name(self.trust_domain) in wanted:
            # Supervisors know the operator by this name: whoever else bore it could hand them generations.
            raise InvalidInput(f"{operator_server_name(self.trust_domain)} is the operator's own name")
        names = _server_names(wanted, ip_addresses)
        if not names:
            raise InvalidInput("a server's certificate needs a DNS name or an IP address")
        validity = self._validity(now, lifetime=lifetime)
        return self._credentials(names=names, usages=(profiles.SERVER_AUTH,), validity=validity)

    def _validity(self, now: datetime, *, lifetime: timedelta) -> profiles.Validity:
        if not self.not_before <= now < self.expires_at:
            raise InvalidInput(f"the CA certificate is valid from {self.not_before} to {self.expires_at} only")
        return profiles.validity(now, lifetime=lifetime, issuer=self.certificate)

    def _credentials(
        self,
        *,
        names: tuple[x509.GeneralName, ...],
        usages: tuple[x509.ObjectIdentifier, ...],
        validity: profiles.Validity,
    ) -> Credentials:
        key = new_key()
        leaf = profiles.Leaf(subject=profiles.OUR_NAME, names=names, usages=usages, validity=validity)
        certificate = profiles.sign(leaf, key=key.public_key(), issuer=self.certificate, signer=self.private_key)
        return Credentials(
            certificate_chain_pem=certificate.public_bytes(Encoding.PEM),
            private_key_pem=key_to_pem(key),
            trust_bundle_pem=self.certificate_pem,
        )


def _server_names(dns_names: Iterable[str], ip_addresses: Iterable[IpAddress]) -> tuple[x509.GeneralName, ...]:
    unique = tuple(dict.fromkeys(dns_names))
    for name in unique:
        if not is_subdomain(name):
            raise InvalidInput(f"{name!r} is not a lower-case DNS name (wildcards are not issued)")
    addresses = (x509.IPAddress(address) for address in dict.fromkeys(ip_addresses))
    return (*(x509.DNSName(name) for name in unique), *addresses)


def _problems(
    certificates: tuple[x509.Certificate, ...], *, key: PrivateKey, trust_domain: SpiffeId, now: datetime
) -> Iterator[str]:
    certificate = certificates[0]
    if len(certificates) != 1:
        yield f"one certificate is needed, {len(certificates)} are there"
    if not is_pair(key, certificate):
        yield "the private key belongs to another certificate"
    if now >= certificate.not_valid_after_utc:
        yield f"it expired at {certificate.not_valid_after_utc}"
    if now < certificate.not_valid_before_utc:
        yield f"it is not valid before {certificate.not_valid_before_utc}"
    if not _is_self_signed(certificate):
        # Trusting a shared root would let its other issuers name our sandboxes and our operator.
        yield "it is not self-signed: the root of the trust domain itself is needed, not an intermediate"
    yield from profiles.root_problems(certificate, spiffe_id=trust_domain)


def _is_self_signed(certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
