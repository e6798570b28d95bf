"""A root as cert-manager makes one: with a subject of its own, which says nothing of us."""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.keys import new_key
from tests.pki.builders import TRUST_DOMAIN


def a_foreign_root(
    *, now: datetime, lifetime: timedelta = timedelta(days=365), trust_domain: str = TRUST_DOMAIN
) -> Authority:
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "platform identities")])
    usages = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=False, **usages), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    return Authority(trust_domain=trust_domain, certificate=certificate, private_key=key)
