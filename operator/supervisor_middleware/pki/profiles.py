"""What our certificates look like. PURE: RFC 5280 and SPIFFE X.509-SVID profiles, for strict verifiers.

OpenSSL's X509_V_FLAG_X509_STRICT (the default of Python 3.13), Go and BoringSSL each refuse something the others
let pass: so CAs carry a critical basicConstraints, keyUsage and SKI; leaves carry AKI, SKI, keyUsage, EKU and names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.keys import PrivateKey, signature_hash
from supervisor_middleware.pki.spiffe import SpiffeId

CLOCK_SKEW: Final = timedelta(minutes=5)
MAX_BACKDATED_SHARE: Final = 10
"""A leaf begins at most this part (1/10) of its lifetime early: a half-life in the past would renew in a loop."""

CLIENT_AUTH: Final = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER_AUTH: Final = ExtendedKeyUsageOID.SERVER_AUTH
ORGANIZATION: Final = "supervisor-middleware"
OUR_NAME: Final = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION)])

_KEY_ID_DIGITS: Final = 16
_KEY_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)

Extension: TypeAlias = tuple[x509.ExtensionType, bool]
"""An extension, and whether it is critical."""

ExtensionT = TypeVar("ExtensionT", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """From when to when; whole seconds, as certificates hold them."""

    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What distinguishes one leaf from another."""

    subject: x509.Name
    names: tuple[x509.GeneralName, ...]
    usages: tuple[x509.ObjectIdentifier, ...]
    validity: Validity


def validity(now: datetime, *, lifetime: timedelta, issuer: x509.Certificate | None = None) -> Validity:
    """`lifetime` from `now` (aware), cut at the issuer's end, begun `CLOCK_SKEW` early.

    Raises:
        InvalidInput: the lifetime is less than a second.
    """
    start = now.replace(microsecond=0)
    end = start + lifetime
    if issuer is not None:
        end = min(end, issuer.not_valid_after_utc)
    if end - start < timedelta(seconds=1):
        raise InvalidInput("a certificate must be valid for a second or more")
    begin = start - min(CLOCK_SKEW, (end - start) / MAX_BACKDATED_SHARE)
    if issuer is not None:
        begin = max(begin, issuer.not_valid_before_utc)
    return Validity(not_before=begin.replace(microsecond=0), not_after=end.replace(microsecond=0))


def root(key: ec.EllipticCurvePrivateKey, *, spiffe_id: SpiffeId, validity: Validity) -> x509.Certificate:
    """A self-signed root that may issue leaves only, named after its key so that two roots are never confused."""
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    common_name = f"{ORGANIZATION} root {key_id.digest.hex()[:_KEY_ID_DIGITS]}"
    name = x509.Name([*OUR_NAME, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    extensions: tuple[Extension, ...] = (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage("key_cert_sign"), True),
        (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(spiffe_id))]), False),
        (key_id, False),
    )
    builder = _builder(subject=name, issuer=name, key=key.public_key(), validity=validity)
    return _signed(builder, extensions, signer=key)


def key_identifier(certificate: x509.Certificate) -> str:
    """The subject key identifier in hex, by which leaves name their issuer; empty if there is none."""
    found = _find(certificate.extensions, x509.SubjectKeyIdentifier)
    return "" if found is None else found.value.digest.hex()


def is_own_root(certificate: x509.Certificate) -> bool:
    """Whether `root` made it: it is named as those are."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    is_ours = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME) == list(OUR_NAME)
    return is_ours and any(str(name.value).startswith(f"{ORGANIZATION} root ") for name in names)


def sign(
    leaf: Leaf, *, key: ec.EllipticCurvePublicKey, issuer: x509.Certificate, signer: PrivateKey
) -> x509.Certificate:
    """`leaf` for `key`, signed by the root `issuer`, whose key `signer` is."""
    issuer_key_id = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    extensions: tuple[Extension, ...] = (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage(leaf.usages), False),
        (x509.SubjectAlternativeName(leaf.names), False),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key_id), False),
    )
    builder = _builder(subject=leaf.subject, issuer=issuer.subject, key=key, validity=leaf.validity)
    return _signed(builder, extensions, signer=signer)


def root_problems(certificate: x509.Certificate, *, spiffe_id: SpiffeId) -> Iterator[str]:
    """Why a strict verifier would refuse `certificate` as the root of the trust domain, one text a reason."""
    try:
        extensions = certificate.extensions
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        yield "its extensions cannot be read"
        return
    constraints = _find(extensions, x509.BasicConstraints)
    if constraints is None or not constraints.critical or not constraints.value.ca:
        yield "basicConstraints must be critical and say CA:TRUE"
    key_usage = _find(extensions, x509.KeyUsage)
    if key_usage is None or not key_usage.value.key_cert_sign:
        yield "keyUsage must allow keyCertSign"
    if _find(extensions, x509.SubjectKeyIdentifier) is None:
        yield "a subject key identifier is missing"
    purposes = _find(extensions, x509.ExtendedKeyUsage)
    if purposes is not None and not {CLIENT_AUTH, SERVER_AUTH} <= set(purposes.value):
        yield "extendedKeyUsage, if present, must allow clientAuth and serverAuth"
    if not list(certificate.subject):
        yield "its subject is empty"
    names = _find(extensions, x509.SubjectAlternativeName)
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier) if names else []
    if any(uri != str(spiffe_id) for uri in uris):
        yield f"it is the root of {', '.join(uris)}, not of {spiffe_id}"


def _find(extensions: x509.Extensions, kind: type[ExtensionT]) -> x509.Extension[ExtensionT] | None:
    try:
        return extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        return None


def _builder(
    *, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=validity.not_before,
        not_valid_after=validity.not_after,
    )


def _signed(
    builder: x509.CertificateBuilder, extensions: tuple[Extension, ...], *, signer: PrivateKey
) -> x509.Certificate:
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(signer, signature_hash(signer))


def _key_usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _KEY_USAGES})
