"""What a malicious client makes: signing requests that ask for more, and certificates that we did not issue."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import key_from_pem, key_to_pem, new_key
from supervisor_middleware.pki.spiffe import operator_id, operator_server_name, supervisor_id
from tests.pki.builders import TRUST_DOMAIN

Signer: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

OTHER: Final = str(supervisor_id(TRUST_DOMAIN, namespace="team-b", sandbox="victim"))
OPERATOR: Final = str(operator_id(TRUST_DOMAIN, "system"))


def a_name(**attributes: str) -> x509.Name:
    oids = {"serial": NameOID.SERIAL_NUMBER, "common": NameOID.COMMON_NAME, "organization": NameOID.ORGANIZATION_NAME}
    return x509.Name([x509.NameAttribute(oids[key], value) for key, value in attributes.items()])


def a_request(key: Signer, *extensions: x509.ExtensionType, subject: x509.Name | None = None) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(a_name() if subject is None else subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def names(*uris: str, dns: str = "") -> x509.SubjectAlternativeName:
    found: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    return x509.SubjectAlternativeName([*found, *([x509.DNSName(dns)] if dns else [])])


def key_usage(*, may_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=may_sign,
        crl_sign=may_sign,
        encipher_only=False,
        decipher_only=False,
    )


GREEDY: Final[Mapping[str, tuple[tuple[x509.ExtensionType, ...], x509.Name]]] = {
    "another sandbox": ((names(OTHER),), a_name(serial="uid-victim")),
    "two names": ((names(OTHER, OPERATOR),), a_name(serial="uid-a")),
    "the operator": ((names(OPERATOR, dns=operator_server_name(TRUST_DOMAIN)),), a_name(common="operator")),
    "to be a CA": ((x509.BasicConstraints(ca=True, path_length=None), key_usage(may_sign=True)), a_name()),
    "to be a server": ((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),), a_name(common="service")),
    "any purpose": ((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),), a_name()),
    "an unknown extension": (
        (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00"),),
        a_name(organization="system:masters"),
    ),
}
"""Requests that ask for what they must not get: extensions and subject, by what they want to be."""

UNFIT_KEYS: Final[Mapping[str, Signer]] = {
    "RSA-1024": rsa.generate_private_key(public_exponent=65537, key_size=1024),
    "RSA-2048": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "P-521": ec.generate_private_key(ec.SECP521R1()),
    "P-224": ec.generate_private_key(ec.SECP224R1()),
    "secp256k1": ec.generate_private_key(ec.SECP256K1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate(),
}


def a_request_for_another_key() -> bytes:
    """A request for somebody's public key, signed with a key of one's own."""
    ours, theirs = (x509.load_pem_x509_csr(a_request(new_key())) for _ in range(2))
    forged = ours.public_bytes(Encoding.DER).replace(_point(ours), _point(theirs))
    return x509.load_der_x509_csr(forged).public_bytes(Encoding.PEM)


def _point(request: x509.CertificateSigningRequest) -> bytes:
    key = request.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def a_forged_leaf(
    *, issuer: x509.Name, signer: ec.EllipticCurvePrivateKey, key_id: x509.AuthorityKeyIdentifier, now: datetime
) -> Credentials:
    """A leaf for the victim with every extension as ours has it, signed by whomever."""
    key = new_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(a_name(serial="uid-a"))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(may_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(names(str(supervisor_id(TRUST_DOMAIN, namespace="team-a", sandbox="a"))), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(key_id, critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Credentials(
        certificate_chain_pem=certificate.public_bytes(Encoding.PEM),
        private_key_pem=key_to_pem(key),
        trust_bundle_pem=certificate.public_bytes(Encoding.PEM),
    )


def by_a_twin_of(authority: Authority, now: datetime) -> Credentials:
    """Of a CA that bears our root's name and key identifier, and another key."""
    known = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    key_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)
    return a_forged_leaf(issuer=authority.certificate.subject, signer=new_key(), key_id=key_id, now=now)


def by_a_supervisor(own: Credentials, now: datetime) -> Credentials:
    """Issued by a supervisor, which presents its own certificate as the CA between."""
    signer = key_from_pem(own.private_key_pem)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    leaf = a_forged_leaf(issuer=own.leaf.subject, signer=signer, key_id=key_id, now=now)
    return Credentials(
        certificate_chain_pem=leaf.certificate_chain_pem + own.certificate_chain_pem,
        private_key_pem=leaf.private_key_pem,
        trust_bundle_pem=own.trust_bundle_pem,
    )


def self_made(now: datetime) -> Credentials:
    """Signed by its own key."""
    authority = Authority.create(trust_domain=TRUST_DOMAIN, now=now - timedelta(days=1))
    return by_a_twin_of(authority, now)
