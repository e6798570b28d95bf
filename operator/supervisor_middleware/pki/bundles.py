"""Trust bundles: roots as concatenated PEM. PURE: read strictly, compared by content."""

import re
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import digest

MAX_BUNDLE_BYTES: Final = 1_048_576  # what a ConfigMap holds

_BEGIN: Final = re.compile(rb"-----BEGIN ([^\r\n]*?)-----")
_END: Final = re.compile(rb"-----END ([^\r\n]*?)-----")


def parse_bundle(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of `pem`, in its order; text between the blocks is allowed, as in distributions' bundles.

    Raises:
        InvalidInput: no certificate, a block that is none (a private key above all), a broken or cut block.
    """
    if len(pem) > MAX_BUNDLE_BYTES:
        raise InvalidInput(f"larger than {MAX_BUNDLE_BYTES} bytes")
    labels = _BEGIN.findall(pem)
    if not labels:
        raise InvalidInput("no certificate found: PEM is needed")
    if any(label != b"CERTIFICATE" for label in labels):
        raise InvalidInput("only CERTIFICATE blocks are allowed (a private key does not belong there)")
    if _END.findall(pem) != labels:
        raise InvalidInput("a certificate block is cut off")
    try:
        certificates = tuple(x509.load_pem_x509_certificates(pem))
    except ValueError as error:
        raise InvalidInput("a certificate block cannot be read") from error
    if len(certificates) != len(labels):
        raise InvalidInput("a certificate block cannot be read")
    return certificates


def bundle_digest(pem: bytes) -> str:
    """`sha256:` and hex over the sorted DER of the certificates: independent of order, spacing and duplicates.

    Raises:
        InvalidInput: as `parse_bundle`.
    """
    return digest(b"".join(sorted({c.public_bytes(Encoding.DER) for c in parse_bundle(pem)})))
