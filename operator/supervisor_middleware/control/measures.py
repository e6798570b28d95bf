"""What a reconciler measures. Owns when a change was first seen, for convergence; time is an argument."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from supervisor_middleware.control.registrations import RegistrationDecision
from supervisor_middleware.control.standings import PolicyStanding
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.telemetry import ControlMetrics

_OUTAGES: Final = frozenset({Reason.SERVICE_UNREACHABLE, Reason.TLS_VERIFICATION_FAILED})


class Measures:
    """One a reconciler."""

    def __init__(self, metrics: ControlMetrics) -> None:
        self._metrics = metrics
        self._changed_at: dict[str, datetime] = {}

    def changed(self, uid: str, *, at: datetime) -> None:
        """A policy has a new revision."""
        self._changed_at[uid] = at

    def stand(self, standings: Mapping[str, PolicyStanding], *, now: datetime) -> None:
        """Take in how every policy (by UID) stands."""
        stale = (s.accepted is not None and s.report is not None and not s.is_current for s in standings.values())
        self._metrics.last_known_good.set(sum(stale))
        self._changed_at = {uid: at for uid, at in self._changed_at.items() if uid in standings}
        for uid, at in list(self._changed_at.items()):
            standing = standings[uid]
            if standing.is_current and standing.views and all(v.is_active for v in standing.views):
                self._metrics.convergence.observe((now - at).total_seconds())
                del self._changed_at[uid]

    def registered(self, registrations: Iterable[RegistrationDecision]) -> None:
        """Take in how every registration stands."""
        counts = Counter(map(_state_of, registrations))
        for state in ("ready", "pending", "unreachable", "drifted", "refused"):
            self._metrics.registrations.labels(state).set(counts[state])

    def passed(self, *, seconds: float) -> None:
        """A pass ended, well or not."""
        self._metrics.reconcile.observe(seconds)

    def failed(self) -> None:
        """A pass could not be completed."""
        self._metrics.reconcile_errors.inc()


def _state_of(registration: RegistrationDecision) -> str:
    found = registration.report
    if found is None:
        return "pending"
    if any(v.reason in _OUTAGES for v in found.violations):
        return "unreachable"
    if registration.drift:
        return "drifted"
    return "ready" if found.is_valid else "refused"
