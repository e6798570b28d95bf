"""What is said about generations: reports to the operator and audit events, each only when it is news."""

from collections.abc import Callable

import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.model.canonical import short
from supervisor_middleware.supervisor.activation import Refusal
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.record import Defect
from supervisor_middleware.supervisor.reports import (
    Accepted,
    Active,
    NotReady,
    Outbox,
    Rejected,
    ServiceReport,
    StateReport,
)

_log = structlog.get_logger(__name__)


class Announcer:
    """Remembers what was said last, for streams that begin later. `subject` is how audit names this supervisor."""

    def __init__(self, *, subject: str, audit: Callable[[Event], None]) -> None:
        self._subject = subject
        self._audit = audit
        self._active: Active | None = None
        self._waiting: NotReady | None = None
        self.outbox = Outbox()

    def state(self) -> tuple[StateReport, ...]:
        """What a new stream says after its hello."""
        return tuple(r for r in (self._active, self._waiting) if r is not None)

    def defective(self, defect: Defect) -> None:
        """What is on disk is not used."""
        self._audit(Changed(kind=ChangeKind.STATE_DEFECTIVE, subject=self._subject, reason=defect.value))
        _log.error("starting without last-known-good: what is on disk cannot be used", defect=defect.value)

    def refused(self, refusal: Refusal) -> None:
        """An offer is refused for the first time."""
        self.refused_again(refusal)
        self._say(ChangeKind.GENERATION_REJECTED, digest=refusal.digest, reason=refusal.reason.value)

    def refused_again(self, refusal: Refusal) -> None:
        """An offer is refused that was refused before: the operator alone is told."""
        self.outbox.put(Rejected(digest=refusal.digest, reason=refusal.reason))

    def accepted(self, digest: str) -> None:
        """A candidate could be prepared; until it is on disk nobody says that it is served."""
        self.outbox.put(Accepted(digest=digest))

    def serving(self, digest: str) -> None:
        """A generation is served from now on: what was said of the one before, or of the wait, is over."""
        self._active = self._waiting = None
        self._say(ChangeKind.GENERATION_ACTIVATED, digest=digest)

    def active(self, digest: str, services: tuple[ServiceReport, ...]) -> None:
        """The served generation and its services are in this state; said once for each state."""
        report = Active(digest=digest, services=services)
        if report != self._active:
            self.active_again(digest, services)
            if missing := _missing(services):
                _log.warning("serving without some services", digest=short(digest), services=missing)

    def active_again(self, digest: str, services: tuple[ServiceReport, ...]) -> None:
        """The operator asked for what is served already: it is told in any case."""
        self._active = Active(digest=digest, services=services)
        self.outbox.put(self._active)

    def waiting(self, digest: str, services: tuple[ServiceReport, ...]) -> None:
        """A candidate waits for services in this state; audited once a candidate."""
        report = NotReady(digest=digest, services=services)
        if self._waiting is None or self._waiting.digest != digest:
            self._say(ChangeKind.GENERATION_WAITING, digest=digest)
        if report != self._waiting:
            self._waiting = report
            self.outbox.put(report)
            _log.warning("waiting for services", digest=short(digest), services=_missing(services))

    def wait_is_over(self) -> None:
        """No candidate waits any more."""
        self._waiting = None

    def _say(self, kind: ChangeKind, *, digest: str, reason: str = "") -> None:
        self._audit(Changed(kind=kind, subject=self._subject, reason=reason, digest=digest))


def _missing(services: tuple[ServiceReport, ...]) -> dict[str, str]:
    """What keeps each from being used, in our words: whether to look at the network or at the service's rule."""
    return {s.name: s.state.value for s in services if s.state is not ServiceState.READY}
