"""The identity of one sandbox, wired: what `smw supervisor` and `smw enroll` prove themselves with."""

import random
from collections.abc import Callable
from pathlib import Path

from supervisor_middleware.apps.clock import SystemClock
from supervisor_middleware.audit.events import Event
from supervisor_middleware.pki.pending_key import PENDING_KEY, PendingKey
from supervisor_middleware.pki.spiffe import supervisor_id
from supervisor_middleware.settings import SandboxSettings
from supervisor_middleware.supervisor.enrollment import Enroller
from supervisor_middleware.supervisor.identity import Identity, Surroundings
from supervisor_middleware.supervisor.renewal import Renewer
from supervisor_middleware.supervisor.trust import TrustBundle


def trust_of(settings: SandboxSettings, *, own: Path, audit: Callable[[Event], None]) -> TrustBundle:
    """The trust bundle at `own`, taken from the given one where that is news.

    Raises:
        InvalidInput: there is none.
    """
    subject = str(supervisor_id(settings.trust_domain, namespace=settings.namespace, sandbox=settings.sandbox))
    trust = TrustBundle(own, given=settings.trust_bundle, subject=subject, audit=audit)
    trust.adopt()
    return trust


def identity_of(
    settings: SandboxSettings, *, directory: Path, trust: TrustBundle, audit: Callable[[Event], None]
) -> Identity:
    """The identity that is kept in `directory`.

    Raises:
        InvalidInput: a setting is no good.
    """
    owner = str(supervisor_id(settings.trust_domain, namespace=settings.namespace, sandbox=settings.sandbox))
    return Identity(
        Surroundings(
            directory=directory,
            enroller=Enroller(
                addresses=addresses(settings.operators, settings.enrollment_port),
                trust_domain=settings.trust_domain,
                trust=trust,
                owner=owner,
                token_file=settings.token_file,
                pending=PendingKey(directory / PENDING_KEY),
            ),
            renewer=Renewer(
                addresses=addresses(settings.operators, settings.discovery_port),
                trust_domain=settings.trust_domain,
                trust=trust,
                owner=owner,
            ),
            trust=trust,
            audit=audit,
            clock=SystemClock(),
            random=random.random,
        )
    )


def addresses(hosts: tuple[str, ...], port: int) -> tuple[str, ...]:
    """Where the operator's replicas listen."""
    return tuple(f"{host}:{port}" for host in hosts)
