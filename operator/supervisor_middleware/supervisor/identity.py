"""Keeps a valid certificate: from the state directory if it is good, else by enrolling; renewed at half-life.

A certificate buys its successor, so a token is needed once. Everything that makes a certificate worthless leads to
the same step, enrolling anew: it expired (also while the operator was away), its root left the trust bundle, the
operator does not renew it, it is another supervisor's. An operator that is away is no reason to spend a token, unless
the certificate begins later by our clock: then the operator's was wrong, and is perhaps right by now, or ours is.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError, Unavailable, Untrusted
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.credential_files import read_credentials, write_credentials
from supervisor_middleware.pki.credentials import Credentials, renewal_time
from supervisor_middleware.supervisor.operator_channel import asked_for
from supervisor_middleware.supervisor.pacing import Backoff, Clock, Random, Watched, first_of
from supervisor_middleware.supervisor.renewal import RenewalRefused
from supervisor_middleware.supervisor.trust import TrustBundle, is_issued_by

LOOK_INTERVAL: Final = 30.0
"""Seconds between two looks at the certificate: clocks jump, and mounted bundles change."""
LOOK_MINIMUM: Final = 1.0
EARLY_RETRY: Final = 1800.0
"""Seconds between two attempts to replace a certificate that begins later by our clock."""

_log = structlog.get_logger(__name__)


class Enrolling(Protocol):
    """Gets a certificate (`enrollment.Enroller`)."""

    @property
    def can_enroll(self) -> bool:
        """Whether there is anything to enrol with."""

    @property
    def owner(self) -> str:
        """The SPIFFE ID it asks for."""

    async def enroll(self, *, attempt: int) -> Credentials:
        """New credentials, or one of our errors."""

    def settled(self, credentials: Credentials) -> None:
        """They are kept: what they were asked with is pending no more."""


class Renewing(Protocol):
    """Gets the successor of a certificate (`renewal.Renewer`)."""

    async def renew(self, current: Credentials, *, attempt: int) -> Credentials:
        """New credentials, or one of our errors: `RenewalRefused` if only enrolling helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an identity works with. `directory` is for credentials alone (its writer locks it)."""

    directory: Path
    enroller: Enrolling
    renewer: Renewing
    trust: TrustBundle
    audit: Callable[[Event], None]
    clock: Clock
    random: Random


class Identity:
    """The credentials in use. `load` first, then `run` for ever."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._with = surroundings
        self._jitter = surroundings.random()
        self._refusal = asyncio.Event()
        self._backoff = Backoff(random=surroundings.random)
        self._attempts = 0
        self._attempted_at: float | None = None
        self._problem = ""
        self._roots_at_issue = b""
        self.credentials: Watched[Credentials | None] = Watched(None)
        self.is_saved = False
        """Whether the directory holds what is in use."""

    def load(self) -> None:
        """Take what the state directory holds, if it is whole, ours and not expired."""
        try:
            stored = read_credentials(self._with.directory)
            if stored is not None and self._is_usable(stored):
                self.credentials.set(stored)
                self.is_saved = True
                self._with.enroller.settled(stored)
        except SupervisorMiddlewareError as error:
            _log.warning("stored credentials cannot be used: enrolling anew", reason=str(error))

    def refused(self) -> None:
        """The operator does not take the certificate any more: get another one soon."""
        self._refusal.set()

    async def run(self) -> None:
        """Renew or enrol whenever there is need; for ever."""
        while True:
            self.follow_trust()
            if not self.is_due():
                self._backoff.reset()
                self._refusal.clear()  # refused, and nothing to do about it: what we have may be taken again
                await first_of(self._refusal.wait(), self._with.clock.sleep(self._until_next_look()))
                continue
            self._refusal.clear()  # one attempt a refusal: if it was a passing one, we stay with what we have
            pause = self._backoff.next()
            try:
                await self.attempt()
            except SupervisorMiddlewareError as error:
                self._tell(error)
                pause = max(pause, asked_for(error, random=self._with.random))
            await self._with.clock.sleep(pause)

    async def attempt(self) -> None:
        """Get new credentials, by those we have or else by the token; once.

        Raises:
            SupervisorMiddlewareError: there are none to be had now; says whose move it is.
        """
        number, self._attempts = self._attempts, self._attempts + 1
        self._attempted_at = self._with.clock.monotonic()
        before = self.credentials.value
        credentials = await self._next(before, attempt=number)
        self._jitter = self._with.random()  # once a certificate
        await asyncio.to_thread(self._keep, credentials)
        self._problem = ""
        self._refusal.clear()  # of the one before
        self.credentials.set(credentials)
        kind = ChangeKind.CREDENTIALS_ISSUED if before is None else ChangeKind.CREDENTIALS_ROTATED
        self._with.audit(Changed(kind=kind, subject=str(credentials.spiffe_id)))

    async def _next(self, current: Credentials | None, *, attempt: int) -> Credentials:
        if current is None or not self._is_usable(current) or self._is_orphaned(current):
            return await self._with.enroller.enroll(attempt=attempt)
        try:
            return await self._with.renewer.renew(current, attempt=attempt)
        except RenewalRefused as error:
            if not self._with.enroller.can_enroll:
                raise
            _log.warning("not renewed: enrolling anew", reason=str(error))
        except Unavailable as error:
            if not self._is_early(current) or not self._with.enroller.can_enroll:
                raise
            _log.warning("the certificate begins later by our clock: enrolling anew", reason=str(error))
        return await self._with.enroller.enroll(attempt=attempt)

    def _tell(self, error: SupervisorMiddlewareError) -> None:
        # Once a problem, not once an attempt: one certificate may be asked for a thousand times.
        log = _log.debug if str(error) == self._problem else _log.error
        log("no new certificate yet; trying again", reason=str(error))
        self._problem = str(error)

    def _is_usable(self, current: Credentials) -> bool:
        return is_usable(current, owner=self._with.enroller.owner, now=self._with.clock.now())

    def is_due(self) -> bool:
        """Whether new credentials should be got now."""
        current = self.credentials.value
        if current is None or not self._is_usable(current):
            return True
        if self._is_orphaned(current):
            return self._with.enroller.can_enroll
        return self._refusal.is_set() or self._is_past_half(current) or self._is_early_for_long(current)

    def follow_trust(self) -> None:
        """Heed a change of the given bundle, and keep beside the key what we believe: others read it there."""
        try:
            is_changed = self._with.trust.adopt()
            roots = self._with.trust.read()
            current = self.credentials.value
            if current is None or roots == current.trust_bundle_pem:
                return
            current = replace(current, trust_bundle_pem=roots)
            write_credentials(self._with.directory, current)
        except SupervisorMiddlewareError as error:
            self._tell(error)
            return
        if is_changed:
            self.credentials.set(current)  # whoever waits on them proves the operator anew
        else:
            self.credentials.amend(current)  # the operator sent the bundle, and was proven anew then

    def _is_early(self, current: Credentials) -> bool:
        return self._with.clock.now() < current.not_before

    def _is_early_for_long(self, current: Credentials) -> bool:
        if not self._is_early(current) or not self._with.enroller.can_enroll:
            return False
        # Now and then: if the clock that is wrong is ours, a new certificate is no better.
        pause = EARLY_RETRY * (0.5 + self._jitter / 2)
        return self._attempted_at is None or self._with.clock.monotonic() - self._attempted_at >= pause

    def _is_past_half(self, current: Credentials) -> bool:
        return self._with.clock.now() >= self._renewal_of(current)

    def _renewal_of(self, current: Credentials) -> datetime:
        return renewal_time(not_before=current.not_before, not_after=current.expires_at, jitter=self._jitter)

    def _until_next_look(self) -> float:
        current = self.credentials.value
        if current is None:
            return LOOK_INTERVAL
        # A certificate of a minute is past its half before the next look that does not mind it.
        remaining = (self._renewal_of(current) - self._with.clock.now()).total_seconds()
        return min(LOOK_INTERVAL, max(remaining, LOOK_MINIMUM))

    def _is_orphaned(self, current: Credentials) -> bool:
        try:
            roots = self._with.trust.read()
            # Once a bundle: if the new certificate is no better, its root is not in *our* copy of the bundle yet.
            return roots != self._roots_at_issue and not is_issued_by(current.leaf, roots)
        except InvalidInput:
            return False  # no bundle, no operator: a new certificate is out of reach anyway

    def _keep(self, credentials: Credentials) -> None:
        self.is_saved = False
        try:
            pem = credentials.trust_bundle_pem
            self._with.trust.install(pem, stated_digest=bundle_digest(pem))
            self._roots_at_issue = self._with.trust.read()
            write_credentials(self._with.directory, credentials)
            self.is_saved = True
            self._with.enroller.settled(credentials)
        except SupervisorMiddlewareError as error:
            # In memory they serve as well; a restart enrols again, by the same key.
            _log.warning("new credentials could not be saved", reason=str(error))


def is_usable(credentials: Credentials, *, owner: str, now: datetime) -> bool:
    """Whether they are `owner`'s and not expired. PURE."""
    try:
        return str(credentials.spiffe_id) == owner and now < credentials.expires_at
    except Untrusted:
        return False
