"""Keys and signing requests: what is made, and what is taken from others."""

import traceback

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.pki import keys
from supervisor_middleware.pki.secret import SecretBytes
from tests.pki.builders import an_authority

RSA_2048 = rsa.generate_private_key(65537, 2048)


def a_csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, algorithm)
    return request.public_bytes(Encoding.PEM)


def test_a_new_key_proves_itself_by_its_request() -> None:
    key_pem, csr = keys.new_key_and_csr()
    key = keys.key_from_pem(key_pem)
    assert isinstance(key.public_key(), ec.EllipticCurvePublicKey)
    assert keys.csr_public_key(csr) == key.public_key()
    assert b"PRIVATE" not in csr


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1()])
def test_keys_that_every_peer_can_verify_are_taken(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve)
    assert keys.csr_public_key(a_csr(key)) == key.public_key()
    assert isinstance(keys.key_from_pem(keys.key_to_pem(key)), ec.EllipticCurvePrivateKey)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP224R1()),
        ec.generate_private_key(ec.SECP521R1()),
        RSA_2048,
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["P-224", "P-521", "RSA", "Ed25519"],
)
def test_other_keys_are_not_certified(key: ec.EllipticCurvePrivateKey) -> None:
    with pytest.raises(InvalidInput, match="P-256 or P-384"):
        keys.csr_public_key(a_csr(key))


def test_a_request_signed_by_another_key_is_not_trusted() -> None:
    der = bytearray(x509.load_pem_x509_csr(a_csr(keys.new_key())).public_bytes(Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
    with pytest.raises(Untrusted, match="not signed by its own key"):
        keys.csr_public_key(forged)


@pytest.mark.parametrize("csr", [b"", b"junk", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", b"x" * 20_000])
def test_an_unreadable_request_is_refused(csr: bytes) -> None:
    with pytest.raises(InvalidInput, match="signing request"):
        keys.csr_public_key(csr)


def test_a_supplied_rsa_key_is_taken_and_a_short_one_is_not() -> None:
    assert keys.key_from_pem(keys.key_to_pem(RSA_2048)).key_size == 2048
    with pytest.raises(InvalidInput, match="2048"):
        keys.key_from_pem(keys.key_to_pem(rsa.generate_private_key(65537, 1024)))


@pytest.mark.parametrize(
    "pem",
    [
        b"junk",
        b"-----BEGIN PRIVATE KEY-----\nSECRETSECRET!\n-----END PRIVATE KEY-----\n",
        keys.new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"SECRET")),
    ],
    ids=["junk", "corrupt", "encrypted"],
)
def test_an_unreadable_key_is_refused_without_a_word_of_it(pem: bytes) -> None:
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        keys.key_from_pem(SecretBytes(pem))
    assert caught.value.__cause__ is None
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_key_of_an_unused_kind_is_refused() -> None:
    pem = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(InvalidInput, match="ECDSA"):
        keys.key_from_pem(SecretBytes(pem))


def test_the_hash_is_as_strong_as_the_key() -> None:
    assert isinstance(keys.signature_hash(keys.new_key()), hashes.SHA256)
    assert isinstance(keys.signature_hash(ec.generate_private_key(ec.SECP384R1())), hashes.SHA384)
    assert isinstance(keys.signature_hash(RSA_2048), hashes.SHA256)


PRIME256V1 = bytes.fromhex("2a8648ce3d030107")
PRIME192V2 = bytes.fromhex("2a8648ce3d030102")
ECDSA_SHA256 = bytes.fromhex("2a8648ce3d040302")
UNKNOWN_ALGORITHM = bytes.fromhex("2a8648ce3d040309")


def test_a_request_signed_in_an_unknown_way_is_not_trusted() -> None:
    der = x509.load_pem_x509_csr(a_csr(keys.new_key())).public_bytes(Encoding.DER)
    strange = x509.load_der_x509_csr(der.replace(ECDSA_SHA256, UNKNOWN_ALGORITHM)).public_bytes(Encoding.PEM)
    with pytest.raises(Untrusted, match="not signed by its own key"):
        keys.csr_public_key(strange)


def test_a_certificate_of_an_unknown_curve_pairs_with_no_key() -> None:
    der = an_authority().certificate.public_bytes(Encoding.DER)
    strange = x509.load_der_x509_certificate(der.replace(PRIME256V1, PRIME192V2))
    assert not keys.is_pair(keys.new_key(), strange)
