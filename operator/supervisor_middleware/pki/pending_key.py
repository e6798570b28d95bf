"""The key of an enrolment whose end is not known: kept until its certificate is. A file edge.

A standalone join token is good for one key. If the answer is lost, or we die before it is kept, only the same key
gets another one: so the key is on disk (0600) before it is asked with.
"""

import contextlib
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError
from supervisor_middleware.pki.files import Mode, make_directory, permissions, read_file, replace_file
from supervisor_middleware.pki.keys import PrivateKey, key_from_pem, key_to_pem, new_key
from supervisor_middleware.pki.secret import SecretBytes

PENDING_KEY: Final = "..pending.key"
"""Beside the versions of credentials, and as little of a reader's business."""
_OTHERS: Final = 0o077

_log = structlog.get_logger(__name__)


class PendingKey:
    """One for each directory of credentials."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` None: in memory alone."""
        self._path = path
        self._key: PrivateKey | None = None
        self._is_saved = False

    def take(self) -> PrivateKey:
        """The key to ask with, the same until it is dropped. A disk that takes nothing is no reason not to enrol."""
        if self._key is None:
            self._key = self._stored()
            self._is_saved = self._key is not None
        if self._key is None:
            self._key = new_key()
        if self._path is not None and not self._is_saved:
            try:
                make_directory(self._path.parent)
                replace_file(self._path, key_to_pem(self._key).reveal(), mode=Mode.PRIVATE)
                self._is_saved = True
            except SupervisorMiddlewareError as error:
                why = "the key of this enrolment is not on disk: after a restart the token may be good for nothing"
                _log.warning(why, reason=str(error))
        return self._key

    def drop(self, kept: SecretBytes) -> None:
        """A certificate for `kept` is kept. If that is the pending key, the next enrolment has another one."""
        pending = self._key or self._stored()
        if pending is None or key_to_pem(pending).reveal() != kept.reveal():
            return
        self._key, self._is_saved = None, False
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _stored(self) -> PrivateKey | None:
        if self._path is None:
            return None
        try:
            content = read_file(self._path)
            if content is None:
                return None
            if permissions(self._path) & _OTHERS:
                raise InvalidInput(f"{self._path}: others could read it")
            return key_from_pem(SecretBytes(content))
        except SupervisorMiddlewareError as error:
            _log.warning("the key of an enrolment before cannot be used: a new one is made", reason=str(error))
            return None
