"""Whom the supervisor believes: the trust bundle file. A file edge.

The file is the only truth and is read at every use. In a cluster it is a mounted ConfigMap, which the operator keeps
current and we cannot write; standalone it is ours, and bundles the operator sends replace it. It exists before first
contact: there is no trust on first use (design, section 7 "Bootstrap").
"""

from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki.bundles import MAX_BUNDLE_BYTES, bundle_digest, parse_bundle
from supervisor_middleware.pki.files import Mode, replace_file


class Installation(StrEnum):
    """What became of a bundle that was sent."""

    UNCHANGED = "unchanged"
    INSTALLED = "installed"
    READ_ONLY = "read_only"
    """Somebody else keeps the file (a mounted ConfigMap), or the disk takes nothing."""


class TrustBundle:
    """The roots in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes:
        """The roots, PEM.

        Raises:
            InvalidInput: the file is missing, unreadable, or no bundle.
        """
        try:
            with self._path.open("rb") as file:
                pem = file.read(MAX_BUNDLE_BYTES + 1)
        except OSError as error:
            hint = "put the operator's trust bundle there (nobody is trusted on first use)"
            raise InvalidInput(f"{self._path}: {error.strerror}: {hint}") from error
        try:
            parse_bundle(pem)
        except InvalidInput as error:
            raise InvalidInput(f"{self._path}: {error}") from error
        return pem

    def digest(self) -> str:
        """Of the roots in the file; empty if it holds none, so that an operator sends them."""
        try:
            return bundle_digest(self.read())
        except InvalidInput:
            return ""

    def install(self, pem: bytes, *, stated_digest: str) -> Installation:
        """Believe the roots in `pem`, and no others, from now on.

        Raises:
            Untrusted: it is no bundle, or not the one that its digest says; the old one stays.
        """
        try:
            digest = bundle_digest(pem)
        except InvalidInput as error:
            raise Untrusted(f"the trust bundle that was sent cannot be used: {error}") from error
        if digest != stated_digest:
            raise Untrusted("the trust bundle that was sent does not have the digest beside it")
        if digest == self.digest():
            return Installation.UNCHANGED
        try:
            replace_file(self._path, pem, mode=Mode.PRIVATE)
        except (InvalidInput, Unavailable):
            return Installation.READ_ONLY
        return Installation.INSTALLED


def is_issued_by(leaf: x509.Certificate, bundle_pem: bytes) -> bool:
    """Whether one of the roots in `bundle_pem` issued `leaf`: if not, no operator will take it any more."""
    return any(_issued(leaf, root) for root in parse_bundle(bundle_pem))


def _issued(leaf: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
