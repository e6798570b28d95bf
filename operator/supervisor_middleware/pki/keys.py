"""Private keys and signing requests. PURE but for `cryptography`'s own key generation.

New keys are ECDSA P-256. From others, P-256 and P-384 are taken (BoringSSL, so gRPC and Envoy, refuses a P-521 peer
in the handshake: NO_COMMON_SIGNATURE_ALGORITHMS), and RSA of 2048 bits or more for a CA that somebody supplies. Parse
errors of keys are raised without their cause: a PEM library's message may quote what it choked on.
"""

import hashlib
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.pki.secret import SecretBytes

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

MAX_CSR_BYTES: Final = 16_384
MIN_RSA_BITS: Final = 2048

_CURVES: Final = (ec.SECP256R1, ec.SECP384R1)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh ECDSA P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: PrivateKey) -> SecretBytes:
    """PKCS#8 PEM of `key`, not encrypted."""
    return SecretBytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def key_from_pem(pem: SecretBytes) -> PrivateKey:
    """The key in `pem`.

    Raises:
        InvalidInput: unreadable, encrypted, or of a kind or size that is not used here.
    """
    try:
        key = load_pem_private_key(pem.reveal(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidInput("the private key cannot be read: PEM without a password is needed") from None
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, _CURVES):
        return key
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= MIN_RSA_BITS:
        return key
    raise InvalidInput(f"the private key must be ECDSA P-256 or P-384, or RSA of {MIN_RSA_BITS} bits or more")


def is_pair(key: PrivateKey, certificate: x509.Certificate) -> bool:
    """Whether `certificate` is for `key`."""
    try:
        return _spki(key.public_key()) == _spki(certificate.public_key())
    except (ValueError, UnsupportedAlgorithm):
        return False


def signature_hash(key: PrivateKey) -> hashes.SHA256 | hashes.SHA384:
    """The hash to sign with: as strong as the key."""
    is_p384 = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1)
    return hashes.SHA384() if is_p384 else hashes.SHA256()


def new_key_and_csr() -> tuple[SecretBytes, bytes]:
    """A fresh private key (PEM) and a signing request (PEM) for it."""
    key = new_key()
    return key_to_pem(key), csr_of(key)


def csr_of(key: PrivateKey) -> bytes:
    """A signing request (PEM) that proves possession of `key` and asks for nothing else."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, signature_hash(key))
    return request.public_bytes(Encoding.PEM)


def public_key_digest(key: PublicKeyTypes) -> str:
    """SHA-256 (hex) of the SubjectPublicKeyInfo."""
    return hashlib.sha256(_spki(key)).hexdigest()


def csr_public_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The key that `csr_pem` proves to hold; its subject and extensions are not looked at.

    Raises:
        InvalidInput: unreadable, too large, or a key that is not ECDSA P-256 or P-384.
        Untrusted: the request is not signed by its own key.
    """
    if len(csr_pem) > MAX_CSR_BYTES:
        raise InvalidInput(f"the signing request is larger than {MAX_CSR_BYTES} bytes")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput("the signing request cannot be read: PEM of PKCS#10 is needed") from error
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES)):
        raise InvalidInput("the signing request's key must be ECDSA P-256 or P-384")
    if not _is_signed_by_itself(request):
        raise Untrusted("the signing request is not signed by its own key")
    return key


def _is_signed_by_itself(request: x509.CertificateSigningRequest) -> bool:
    try:
        return request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _spki(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
