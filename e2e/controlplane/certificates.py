"""Keys, certificates and kubeconfigs of a throwaway control plane. Makes bytes and text; writes no file."""

import base64
import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=30)
# Clocks of a test that travels back in time, or of a container beside us, may lag.
_BACKDATED = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority that lives as long as the object: its key is never written down."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "throwaway control plane")])
        builder = _builder(subject=self._name, issuer=self._name, key=self._key)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        certificate = (
            builder.add_extension(constraints, critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate: bytes = certificate.public_bytes(Encoding.PEM)

    def server(self, *names: str) -> Credential:
        """Issue for DNS names and IP addresses; the first is the common name too."""
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._issue(
            _subject(names[0]), extensions=(alternatives, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]))
        )

    def client(self, user: str, groups: Sequence[str] = ()) -> Credential:
        """Issue for a Kubernetes user: common name is the user, each organization a group."""
        return self._issue(
            _subject(user, groups), extensions=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),)
        )

    def _issue(self, subject: x509.Name, *, extensions: Sequence[x509.ExtensionType]) -> Credential:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject=subject, issuer=self._name, key=key)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Credential(certificate=certificate.public_bytes(Encoding.PEM), key=_pem(key))


def signing_key() -> bytes:
    """Return a fresh private key (PEM) for signing ServiceAccount tokens."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def kubeconfig(*, url: str, authority: Authority, credential: Credential, user: str) -> str:
    """Return a kubeconfig that carries everything inline, so it can be copied anywhere."""
    cluster = {"server": url, "certificate-authority-data": _base64(authority.certificate)}
    identity = {
        "client-certificate-data": _base64(credential.certificate),
        "client-key-data": _base64(credential.key),
    }
    context = {"cluster": "controlplane", "user": user, "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "controlplane", "cluster": cluster}],
        "users": [{"name": user, "user": identity}],
        "contexts": [{"name": "controlplane", "context": context}],
        "current-context": "controlplane",
    }
    return yaml.safe_dump(document, sort_keys=False)


def _builder(*, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFETIME)
    )


def _subject(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # kube-apiserver derives the public key from this form only, not from PKCS 8.
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
