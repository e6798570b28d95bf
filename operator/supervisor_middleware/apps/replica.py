"""What every replica has, whether it leads or not: its certificate, the way to services, and what it knows of them.

The webhook stands on it in every replica, the control plane in the one that leads.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import structlog

from supervisor_middleware.apps.clock import LOOK_INTERVAL, until_renewal, utc_now
from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.control.acceptances import Acceptances
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS, BUILTINS
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.rotation import Rotation
from supervisor_middleware.pki.succession import Succession
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.registry.client import RegistryClient
from supervisor_middleware.registry.inquiry import (
    RECONCILING,
    REVIEWING,
    REVIEWS_WAITING,
    Inquirer,
    Turns,
)
from supervisor_middleware.settings import ControlPlaneSettings
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.channels import ClientIdentity

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class OperatorIdentity:
    """The operator's own certificate: a server to supervisors, a client of services; renewed at half-life.

    It is always of the root that issues, and beside it stand all roots that are trusted.
    """

    roots: Succession
    namespace: str
    lifetime: timedelta
    current: Credentials = field(init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Issue anew; connections made from now on use it."""
        self.current = self.issued_by(self.roots.current)

    def follow(self, roots: Succession) -> None:
        """Go by `roots` from now on, with a certificate of the one that issues."""
        before, self.roots = self.roots, roots
        if roots.current.certificate != before.current.certificate:
            self.renew()
        elif roots.bundle != before.bundle:
            self.current = replace(self.current, trust_bundle_pem=roots.bundle)

    def issued_by(self, authority: Authority) -> Credentials:
        """What we would prove ourselves with if `authority` issued."""
        issued = authority.issue_operator(namespace=self.namespace, now=utc_now(), lifetime=self.lifetime)
        return replace(issued, trust_bundle_pem=self.roots.bundle)

    def credentials(self) -> Credentials:
        """What to prove ourselves with now."""
        return self.current

    def client_identity(self) -> ClientIdentity:
        """The same, for channels to services."""
        return client_identity(self.current)

    async def keep_fresh(self, emit: Callable[[Event], None]) -> None:
        """Renew at half-life, with jitter, for ever; `emit` takes audit events."""
        while True:
            await until_renewal(self.credentials)
            try:
                self.renew()
            except InvalidInput as error:
                # The root has ended, or begins later by our clock. Reviews go on, and so does the look for another.
                _log.error("the operator's certificate cannot be renewed", reason=str(error))
                await asyncio.sleep(LOOK_INTERVAL)
                continue
            emit(Changed(kind=ChangeKind.CREDENTIALS_ROTATED, subject=str(self.current.spiffe_id)))
            _log.info("renewed the operator's certificate", expires_at=self.current.expires_at.isoformat())


def client_identity(credentials: Credentials) -> ClientIdentity:
    """What channels to services take."""
    return ClientIdentity(
        certificate_chain_pem=credentials.certificate_chain_pem,
        private_key_pem=credentials.private_key_pem.reveal(),
    )


class Replica:
    """One process of the operator, or standalone."""

    def __init__(
        self, settings: ControlPlaneSettings, *, namespace: str, rotation: Rotation, metrics: ControlMetrics
    ) -> None:
        """`namespace` stands in the operator's SPIFFE ID."""
        self.settings, self.namespace, self.rotation, self.metrics = settings, namespace, rotation, metrics
        self.identity = OperatorIdentity(rotation.roots, namespace, settings.leaf_lifetime)
        self.client = RegistryClient(self.identity.client_identity, metrics=metrics)
        self.inquirer = Inquirer(self.client, BUILTINS, turns=Turns(at_once=RECONCILING))
        self.reviewer = Inquirer(self.client, BUILTINS, turns=Turns(at_once=REVIEWING, waiting=REVIEWS_WAITING))
        self.catalog = Catalog()
        self.acceptances = Acceptances()
        self.compiler_settings = CompilerSettings(
            builtins=BUILTIN_BINDINGS,
            unselected=settings.unselected,
            loopback=settings.loopback,
            transport_phase=settings.transport_phase,
            latency_budget=settings.latency_budget,
        )

    async def aclose(self) -> None:
        """Close every connection to a service."""
        await self.client.close()

    @property
    def authority(self) -> Authority:
        """The root that issues."""
        return self.rotation.roots.current

    def trust_bundle(self) -> bytes:
        """The roots, PEM."""
        return self.rotation.roots.bundle

    def follow(self, rotation: Rotation) -> None:
        """Go by `rotation` from now on: whoever asks for a root, a bundle or a certificate gets them of it."""
        self.rotation = rotation
        self.identity.follow(rotation.roots)

    def forget_descriptions(self) -> None:
        """What this replica heard as leader is stale once another leads: what counts is in registrations' statuses.

        A service's yes to a config stays a yes.
        """
        self.catalog.keep(frozenset(), frozenset(self.catalog.verdicts))

    def render_metrics(self, states: Mapping[str, int]) -> bytes:
        """The exposition format; `states` are the supervisors'."""
        metrics = self.metrics
        metrics.supervisors.clear()
        for state, count in states.items():
            metrics.supervisors.labels(state).set(count)
        root, leaf = self.authority, self.identity.current
        metrics.certified("root", not_before=root.not_before, expires_at=root.expires_at)
        metrics.certified("operator", not_before=leaf.not_before, expires_at=leaf.expires_at)
        return metrics.render()
