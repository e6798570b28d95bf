"""What the operator's own are told when a supervisor rejects a generation: each once, whatever it says how often."""

from collections.abc import Callable

import structlog

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.distribution.ledger import Answer
from supervisor_middleware.telemetry import ControlMetrics

_log = structlog.get_logger(__name__)


class Rejections:
    """Log, metric and audit of them."""

    def __init__(self, *, metrics: ControlMetrics | None, audit: Callable[[Event], None]) -> None:
        self._metrics, self._audit = metrics, audit
        self._told: dict[str, str] = {}

    def tell(self, key: str, answer: Answer, *, subject: str) -> None:
        """A supervisor rejected what it was offered; one of another version that does so as well is no news."""
        if self._told.get(key) == answer.digest:
            return
        self._told[key] = answer.digest
        reasons = answer.reasons or ("unspecified",)
        _log.warning("a supervisor rejected a generation", supervisor=key, digest=answer.digest, reasons=reasons)
        if self._metrics is not None:
            for reason in reasons:
                self._metrics.rejections.labels(reason).inc()
        kind = ChangeKind.GENERATION_REJECTED
        self._audit(Changed(kind=kind, subject=subject, reason=",".join(reasons), digest=answer.digest))

    def forget(self, key: str) -> None:
        """Its sandbox is no more."""
        self._told.pop(key, None)
