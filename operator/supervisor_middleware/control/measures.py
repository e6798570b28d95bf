"""What a reconciler measures. Owns when a change was first seen, for convergence; time is an argument."""

from collections.abc import Mapping
from datetime import datetime

from supervisor_middleware.control.standings import PolicyStanding
from supervisor_middleware.telemetry import ControlMetrics


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

    def passed(self, *, seconds: float) -> None:
        """A pass ended, well or not."""
        self._metrics.reconcile.observe(seconds)

    def failed(self) -> None:
        """A pass could not be completed."""
        self._metrics.reconcile_errors.inc()
