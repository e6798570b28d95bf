"""A registration's standing to its status. PURE: what `kubectl get smw` and `kubectl wait` see.

`Ready` says that nothing is wrong now; `Accepted` that spec and manifest are in force, which an outage takes from
nobody. `Stalled` is what needs somebody: the author, or whoever runs the service.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from supervisor_middleware.compiler.binding import is_usable
from supervisor_middleware.control.conditions import (
    ConditionReason,
    Untimed,
    coarse,
    conditions,
    dump,
    summary_of,
    timestamp,
    violations_for_status,
)
from supervisor_middleware.control.standings import RegistrationStanding
from supervisor_middleware.model.canonical import short
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.identifiers import status_text
from supervisor_middleware.model.registration import ClientAuthentication, Registration
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.statuses import BindingStatus, ManifestStatus, SupervisorMiddlewareStatus
from supervisor_middleware.model.violation import Reason, Report

_UNREACHABLE: Final = frozenset({Reason.SERVICE_UNREACHABLE, Reason.TLS_VERIFICATION_FAILED})


def registration_status(stored: Stored, standing: RegistrationStanding, *, now: datetime) -> Mapping[str, Any]:
    """The status of a `SupervisorMiddleware`."""
    accepted = standing.accepted
    status = SupervisorMiddlewareStatus(
        observed_generation=stored.generation,
        manifest=None if accepted is None else _manifest(accepted),
        accepted=None if accepted is None else dict(accepted.to_json()),
        binding_count=0 if accepted is None else len(accepted.manifest.bindings),
        policies=standing.policies,
        last_described=None if standing.last_described is None else timestamp(standing.last_described),
        violations=[] if standing.report is None else violations_for_status(standing.report),
        conditions=conditions(
            _registration_conditions(standing),
            previous=stored.status.get("conditions", ()),  # type: ignore[arg-type]
            generation=stored.generation,
            now=now,
        ),
    )
    return dump(status, stored)


def _registration_conditions(standing: RegistrationStanding) -> Iterable[Untimed]:
    report, accepted = standing.report, standing.accepted
    if report is None:
        waiting = "the service is being described"
        for name in ("Reachable", "Accepted", "Ready"):
            yield Untimed(type=name, status=None, reason=ConditionReason.PENDING, message=waiting)
    else:
        outages = Report(violations=tuple(v for v in report.violations if v.reason in _UNREACHABLE))
        is_known = standing.last_described is not None
        yield Untimed(
            type="Reachable",
            status=outages.is_valid if is_known else None,
            reason=_outage_reason(outages) if is_known else ConditionReason.PENDING,
            message=summary_of(outages),
        )
        # An outage takes acceptance from nobody: what was accepted under this spec stays so.
        is_outage = not report.is_valid and len(outages.violations) == len(report.violations)
        is_accepted = report.is_valid or (is_outage and standing.is_current)
        kept = ". The last accepted registration stays in force" if accepted and not report.is_valid else ""
        reason = _outage_reason(outages) if is_outage else coarse(report)
        message = summary_of(report) + kept
        yield Untimed(
            type="Accepted",
            status=is_accepted,
            reason=ConditionReason.ACCEPTED if is_accepted else reason,
            message=message,
        )
        yield Untimed(
            type="Ready",
            status=report.is_valid,
            reason=ConditionReason.READY if report.is_valid else reason,
            message=message,
        )
    yield from _progress_of(standing)
    yield Untimed(
        type="Drifted",
        status=bool(standing.drift),
        reason=ConditionReason.DRIFTED if standing.drift else ConditionReason.IN_SYNC,
        message=_drifted(standing),
    )
    if accepted is not None and accepted.connection.is_insecure:
        yield Untimed(
            type="InsecureTransport",
            status=True,
            reason=ConditionReason.PLAINTEXT,
            message="request content and decisions travel in the clear",
        )
    if accepted is not None and accepted.connection.client_authentication is ClientAuthentication.NONE:
        yield Untimed(
            type="CallerUnauthenticated",
            status=True,
            reason=ConditionReason.NO_CLIENT_AUTHENTICATION,
            message="the service cannot tell who calls it",
        )


def _progress_of(standing: RegistrationStanding) -> Iterable[Untimed]:
    """kstatus: an outage passes by itself, what is wrong with spec or manifest does not."""
    report = standing.report
    if report is None:
        reason, message = ConditionReason.PENDING, "the service is being described"
        yield Untimed(type="Reconciling", status=True, reason=reason, message=message)
        yield Untimed(type="Stalled", status=False, reason=reason)
        return
    is_passing = not report.is_valid and all(v.reason in _UNREACHABLE for v in report.violations)
    reason = _outage_reason(report) if is_passing else ConditionReason.READY if report.is_valid else coarse(report)
    message = summary_of(report)
    yield Untimed(type="Reconciling", status=is_passing, reason=reason, message=message)
    yield Untimed(type="Stalled", status=not report.is_valid and not is_passing, reason=reason, message=message)


def _drifted(standing: RegistrationStanding) -> str:
    drift, accepted = standing.drift, standing.accepted
    if not drift or accepted is None:
        return drift.text
    before, after = short(accepted.manifest.digest), short(drift.offered)
    return f"{drift.text} (the accepted manifest is {before}, the offered {after})"


def _outage_reason(outages: Report) -> ConditionReason:
    if outages.is_valid:
        return ConditionReason.REACHABLE
    is_tls = any(v.reason is Reason.TLS_VERIFICATION_FAILED for v in outages.violations)
    return ConditionReason.TLS_VERIFICATION_FAILED if is_tls else ConditionReason.UNREACHABLE


def _manifest(accepted: Registration) -> ManifestStatus:
    manifest = accepted.manifest
    return ManifestStatus(
        name=status_text(manifest.name),
        service_version=status_text(manifest.service_version),
        dialect=manifest.dialect.value,
        digest=manifest.digest,
        bindings=[
            BindingStatus(
                id=b.id,
                operation=b.operation.value,
                phase=b.phase.value,
                max_body_bytes=b.max_body_bytes,
                timeout=b.timeout,
                effective_max_body_bytes=accepted.max_body_bytes if is_usable(b) else 0,
                effective_timeout=format_duration(accepted.timeout_of(b)),
            )
            for b in manifest.bindings
        ],
    )
