"""What a leader knows of others who trust the roots: supervisors, services, and the bundle's publication."""

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

import structlog

from supervisor_middleware.apps.replica import Replica, client_identity
from supervisor_middleware.apps.root_trials import Outcome, Trial, Trials
from supervisor_middleware.control.registrations import accepted_registration
from supervisor_middleware.distribution.census import Census
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.profiles import key_identifier
from supervisor_middleware.pki.rotation import Facts, Rotation
from supervisor_middleware.pki.rotation_requests import Stage
from supervisor_middleware.wire.channels import shows_certificate

RENEWALS_AT_ONCE: Final = 50
"""How many supervisors are told to renew at one look: a fleet must not do so in one moment."""
RENEWAL_REPEATED: Final = 30.0
"""Seconds until one that came back by its old certificate is told again: it asks one address a time, and of several
replicas one leads."""

_log = structlog.get_logger(__name__)


class Source(Protocol):
    """Where registrations and sandboxes are known from."""

    async def snapshot(self) -> Snapshot:
        """Everything at one moment."""


class Publisher(Protocol):
    """Where the trust bundle is published."""

    async def publish_bundle(self, pem: bytes, *, namespaces: frozenset[str]) -> None:
        """Keep it in each namespace, and in our own."""


class Supervisors(Protocol):
    """Who is connected, by which certificate and with which bundle (`distribution.discovery.Discovery`)."""

    def tell_bundle(self) -> None:
        """Send the bundle to those who are known to have another."""

    def renew(self, *, issuer: str, at_most: int, spared: Container[str]) -> frozenset[str]:
        """Have some whose certificate is not of `issuer` get another; who."""

    def census(self, *, trust_bundle: str, issuer: str, may_hold: Callable[[str], bool]) -> Census | None:
        """How many have which; of those that are away, whoever `may_hold` a good certificate counts.

        None: it is not known yet who there is.
        """


class Possessing(Protocol):
    """Who may hold a good certificate (`distribution.possession.Possession`)."""

    def may_hold(self, key: str, *, longest: timedelta) -> bool:
        """Whether the supervisor of `key` may; `longest` is the life of one."""


@dataclass(slots=True, kw_only=True)
class LeaderFacts:
    """For one term, closed at its end. `check` raises when this process leads no more."""

    replica: Replica
    source: Source
    publisher: Publisher
    supervisors: Supervisors
    possession: Possessing
    check: Callable[[], None]
    trials: Trials = field(default_factory=Trials)
    monotonic: Callable[[], float] = time.monotonic
    _issuer: str = ""
    _told: dict[str, float] = field(default_factory=dict)

    async def aclose(self) -> None:
        """Ask nobody any more."""
        await self.trials.aclose()

    def tell(self, rotation: Rotation) -> None:
        """Have supervisors told of the bundle, and (tainted) told to renew."""
        self.supervisors.tell_bundle()
        if rotation.stage in {Stage.TAINTED, Stage.REVOKED}:
            self._renew(_issuer(rotation))

    async def facts(self, rotation: Rotation) -> Facts:
        """Publish the bundle, and gather what is known."""
        snapshot = await self.source.snapshot()
        is_published = await self._publish(rotation, snapshot)
        census = self.supervisors.census(
            trust_bundle=bundle_digest(rotation.roots.bundle),
            issuer=_issuer(rotation),
            may_hold=partial(self.possession.may_hold, longest=rotation.longest),
        )
        is_counted, census = census is not None, census or Census()
        outcomes = self._outcomes(rotation, snapshot)
        return Facts(
            is_published=is_published,
            refusing=tuple(sorted(name for name, o in outcomes.items() if o is Outcome.REFUSED)),
            silent=tuple(sorted(name for name, o in outcomes.items() if o is Outcome.SILENT)),
            is_counted=is_counted,
            absent=census.absent,
            unacknowledged=census.unacknowledged,
            old=census.old,
        )

    def _renew(self, issuer: str) -> None:
        now = self.monotonic()
        if issuer != self._issuer:
            self._issuer, self._told = issuer, {}
        self._told = {key: at for key, at in self._told.items() if now - at < RENEWAL_REPEATED}
        told = self.supervisors.renew(issuer=issuer, at_most=RENEWALS_AT_ONCE, spared=self._told)
        self._told |= dict.fromkeys(told, now)

    async def _publish(self, rotation: Rotation, snapshot: Snapshot) -> bool:
        if snapshot.unknown:
            return False
        namespaces = frozenset(s.namespace for s in snapshot.sandboxes)
        try:
            await self.publisher.publish_bundle(rotation.roots.bundle, namespaces=namespaces)
        except Unavailable as error:
            _log.warning("the trust bundle could not be published everywhere", reason=str(error))
            return False
        return True

    def _outcomes(self, rotation: Rotation, snapshot: Snapshot) -> Mapping[str, Outcome]:
        if rotation.stage not in {Stage.PREPARED, Stage.ACTIVATED}:
            return {}
        tried = rotation.roots.successor or rotation.roots.current

        def trial() -> Trial:
            identity = self.replica.identity
            if rotation.roots.successor is None:
                return Trial(candidate=identity.client_identity(), present=None)
            candidate = client_identity(identity.issued_by(tried))
            return Trial(candidate=candidate, present=identity.client_identity())

        subject = f"{rotation.stage.value} {bundle_digest(tried.certificate_pem)}"
        return self.trials.outcomes(_services(snapshot), subject=subject, trial=trial)


def _services(snapshot: Snapshot) -> dict[str, Connection]:
    """Those that sandboxes use and that see a certificate, by the registration's name."""
    accepted = ((stored.subject.name, accepted_registration(stored)) for stored in snapshot.registrations)
    return {name: r.connection for name, r in accepted if r is not None and shows_certificate(r.connection)}


def _issuer(rotation: Rotation) -> str:
    return key_identifier(rotation.roots.current.certificate)
