"""Whom the supervisor believes: its trust bundle. A file edge.

Our own copy is the only truth and is read at every use; bundles that the operator sends replace it. It begins as a
copy of the one we were given (a mounted ConfigMap, a file that an administrator put there), which exists before first
contact: there is no trust on first use (design, section 7 "Bootstrap"). The given one goes on to count: whenever its
*content* changes, it is taken anew, whatever an operator has sent meanwhile. Whoever writes it could have us trust
anybody from the start, so this trusts nobody else, and a root that must go can be taken away without an operator. One
that stays as it was never brings back a root that a rotation has ended.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki.bundles import MAX_BUNDLE_BYTES, bundle_digest, parse_bundle
from supervisor_middleware.pki.files import Mode, read_file, replace_file

_SEEN: Final = ".given"
"""Ends the name of the file that holds the digest of the given bundle as it was last taken."""
_log = structlog.get_logger(__name__)


class Installation(StrEnum):
    """What became of a bundle that was sent."""

    UNCHANGED = "unchanged"
    INSTALLED = "installed"
    READ_ONLY = "read_only"
    """Somebody else keeps the file (a mounted ConfigMap), or the disk takes nothing."""


class TrustBundle:
    """The roots in one file, and perhaps the file it was copied from."""

    def __init__(
        self,
        path: Path,
        *,
        given: Path | None = None,
        subject: str = "",
        audit: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """`path` is ours; `given` somebody else's. `audit` hears of every change to what `subject` believes."""
        self._path, self._given, self._subject, self._audit = path, given, subject, audit
        self._seen = path.with_name(f"{path.name}{_SEEN}")
        self._problem = ""

    def adopt(self) -> bool:
        """Take the given bundle if there is none of our own, or its content is another than when it was last taken.

        Returns:
            Whether we believe somebody else now.

        Raises:
            InvalidInput: there is no bundle that can be used.
        """
        if self._given is None:
            return False
        own = self.digest()
        try:
            pem = _read(self._given)
            offered = bundle_digest(pem)
        except InvalidInput as error:
            if not own:
                raise
            self._tell(str(error))
            return False
        self._problem = ""
        seen = (read_file(self._seen) or b"").decode("ascii", "replace")
        if own and offered == seen:
            return False
        # A copy of an earlier release, which took no note of what it copied, stays.
        is_taken = not own or seen != ""
        if is_taken:
            replace_file(self._path, pem, mode=Mode.PRIVATE)
        replace_file(self._seen, offered.encode(), mode=Mode.PRIVATE)
        if not is_taken or offered == own:
            return False
        if own:
            self._report(offered, reason="given")
        return True

    def read(self) -> bytes:
        """The roots, PEM.

        Raises:
            InvalidInput: the file is missing, unreadable, or no bundle.
        """
        return _read(self._path)

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
        self._report(digest, reason="sent")
        return Installation.INSTALLED

    def _report(self, digest: str, *, reason: str) -> None:
        kind = ChangeKind.TRUST_BUNDLE_CHANGED
        self._audit(Changed(kind=kind, subject=self._subject, reason=reason, digest=digest))

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("the given trust bundle cannot be used; our copy stays", reason=problem)
        self._problem = problem


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            pem = file.read(MAX_BUNDLE_BYTES + 1)
    except OSError as error:
        hint = "put the operator's trust bundle there (nobody is trusted on first use)"
        raise InvalidInput(f"{path}: {error.strerror}: {hint}") from error
    try:
        parse_bundle(pem)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    return pem


def is_issued_by(leaf: x509.Certificate, bundle_pem: bytes) -> bool:
    """Whether one of the roots in `bundle_pem` issued `leaf`: if not, no operator will take it any more."""
    return any(_issued(leaf, root) for root in parse_bundle(bundle_pem))


def _issued(leaf: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
