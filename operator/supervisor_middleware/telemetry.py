"""Every metric name and label, and how logs look. No per-sandbox label: there may be thousands.

Names are public surface. Constructed once by an app and handed down; nothing here is global.
"""

import logging
import re
import sys
import traceback
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from supervisor_middleware.model.evaluation import FailureCode

_PREFIX: Final = "supervisor_middleware_"
_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_REPRS: Final = re.compile(r"[\n(<:'\"]")
_CONVERGENCE: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class ControlMetrics:
    """What the control plane measures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.admission_review = self._histogram(
            "admission_review_duration_seconds", "Time to answer an admission review.", ("kind", "outcome")
        )
        self.admission_busy = self._counter(
            "admission_busy_total", "Reviews put off because too many or too large ones were under way.", ()
        )
        self.validate_config = self._histogram(
            "validate_config_duration_seconds", "Time of a ValidateConfig call.", ("outcome",)
        )
        self.describe = self._counter("describe_total", "Describe calls.", ("outcome",))
        self.reconcile = self._histogram("reconcile_duration_seconds", "Time of a reconcile pass.", ())
        self.reconcile_errors = self._counter("reconcile_errors_total", "Reconcile passes that failed.", ())
        self.convergence = Histogram(
            f"{_PREFIX}generation_convergence_seconds",
            "From a change seen to the last supervisor Active.",
            buckets=_CONVERGENCE,
            registry=self.registry,
        )
        self.supervisors = self._gauge("supervisors", "Supervisors by state.", ("state",))
        self.registrations = self._gauge("registrations", "Registrations by state.", ("state",))
        self.rejections = self._counter("generation_rejections_total", "Generations refused.", ("reason",))
        self.last_known_good = self._gauge(
            "last_known_good_serving", "Policies whose current spec is not what sandboxes run.", ()
        )
        self.watch_last_event = self._gauge(
            "watch_last_event_timestamp_seconds", "When a kind was last heard of or listed.", ("kind",)
        )
        self.kind_unknown = self._gauge(
            "kind_unknown", "1 while a kind cannot be read: everything is held as it is.", ("kind",)
        )
        self.corrupt_revisions = self._gauge(
            "corrupt_revisions", "PolicyRevisions that are skipped: they are not what an operator writes.", ()
        )
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds", "When a certificate expires.", ("role",)
        )
        self.certificate_not_before = self._gauge(
            "certificate_not_before_timestamp_seconds", "From when a certificate is valid.", ("role",)
        )
        self.root_usable = self._gauge(
            "root_usable", "1 if the CA of identities is where it is kept and good; 0: a restart would fail.", ()
        )
        self.root_usable.set(1)
        self.root_stage = self._gauge("root_rotation_stage", "1 at the stage of the root's rotation.", ("stage",))
        self.root_deadline = self._gauge(
            "root_rotation_deadline_timestamp_seconds",
            "When the stage of the root's rotation ends at the latest; 0: none is under way.",
            (),
        )
        self.webhook_selftest = self._gauge(
            "webhook_selftest_success", "1 if the API server had our webhook refuse what is wrong, last time.", ()
        )
        self.webhook_selftest_at = self._gauge(
            "webhook_selftest_timestamp_seconds", "When the self-test last ended, well or not; 0: never yet.", ()
        )
        self.leader = self._gauge("leader", "1 where this replica reconciles.", ())

    def certified(self, role: str, *, not_before: datetime, expires_at: datetime) -> None:
        """A certificate is in use; the previous one of this role is not."""
        self.certificate_not_before.labels(role).set(not_before.timestamp())
        self.certificate_expiry.labels(role).set(expires_at.timestamp())

    def render(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(_PREFIX + name, text, labels, buckets=_FAST, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(_PREFIX + name, text, labels, registry=self.registry)


class SupervisorMetrics:
    """What a supervisor measures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.stage = Histogram(
            f"{_PREFIX}stage_duration_seconds",
            "Time of one stage.",
            ("outcome",),
            buckets=_FAST,
            registry=self.registry,
        )
        self.bypass = Counter(
            f"{_PREFIX}bypass_total", "Requests that went on without a stage.", ("reason",), registry=self.registry
        )
        for code in FailureCode:
            # A series that begins at 1 looks to `increase()` as if nothing had happened.
            self.bypass.labels(code.value)
        self.configured = Gauge(
            f"{_PREFIX}configured", "1 where a known-good generation is served.", registry=self.registry
        )
        self.waiting = Gauge(
            f"{_PREFIX}waiting",
            "1 while last-known-good is served because a newer generation needs a service that is missing.",
            registry=self.registry,
        )
        self.connected = Gauge(
            f"{_PREFIX}connected", "1 while there is a stream to the operator.", registry=self.registry
        )
        self.saved = Gauge(
            f"{_PREFIX}saved",
            "1 while a restart would find what is served; 0: look at the disk.",
            registry=self.registry,
        )
        self.state_defect = Gauge(
            f"{_PREFIX}state_defect",
            "1 for what is wrong with the last-known-good that was not used at the start, until there is a new one.",
            ("defect",),
            registry=self.registry,
        )

    def render(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


def where(error: BaseException) -> str:
    """An exception for a log: its type and where it was raised, never its text, which may quote a config."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    places = (f"{f.name}:{f.lineno} in {Path(f.filename).name}" for f in reversed(frames))
    return " < ".join((type(error).__name__, *places))


def configure_logging(level: str = "INFO") -> None:
    """Structured lines on stderr, ours and libraries' alike: readable on a terminal, JSON elsewhere.

    An exception is a type and a place in them, never its text. Of libraries only warnings are shown.
    """
    renderer: structlog.typing.Processor = (
        # By default the variables of every frame are shown where `rich` is installed.
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    common: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_text,
    ]
    number = logging.getLevelNamesMapping()[level]
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, _without_context],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    logging.getLogger("supervisor_middleware").setLevel(number)


def _without_context(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Of asyncio's complaints what happened, not to whom: they go on with the repr of tasks, errors and arguments."""
    record = event.get("_record")
    if isinstance(record, logging.LogRecord) and record.name == "asyncio":
        event["event"] = _REPRS.split(str(event["event"]), maxsplit=1)[0].rstrip()
    return event


def _without_text(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    given = event.pop("exc_info", None)
    match given:
        case BaseException():
            error: BaseException | None = given
        case (_, BaseException() as error, _):
            pass
        case _:
            error = sys.exc_info()[1] if given else None
    if error is not None:
        event["error"] = where(error)
    return event
