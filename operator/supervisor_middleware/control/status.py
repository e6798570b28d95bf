"""Reports and standings to statuses. PURE: what `kubectl get` and `kubectl wait` see.

`Ready` is `Accepted` and `ResolvedRefs`; `Programmed` stands apart, so that one stuck Pod does not hold back a GitOps
tool. `Programmed` counts only supervisors that *serve* what the policy's current spec says.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from supervisor_middleware.compiler.binding import is_usable
from supervisor_middleware.control.conditions import (
    ConditionReason,
    Untimed,
    coarse,
    conditions,
    summary_of,
    timestamp,
    violations_for_status,
)
from supervisor_middleware.control.standings import PolicyStanding, RegistrationStanding
from supervisor_middleware.distribution.ledger import State, View
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.identifiers import status_text
from supervisor_middleware.model.registration import ClientAuthentication, Registration
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.statuses import (
    AcceptedRevision,
    BindingStatus,
    ManifestStatus,
    SandboxPolicyStatus,
    Status,
    SupervisorCounts,
    SupervisorMiddlewareStatus,
)
from supervisor_middleware.model.violation import Reason, Report

_REFS: Final = frozenset({Reason.UNKNOWN_BINDING})
_UNREACHABLE: Final = frozenset({Reason.SERVICE_UNREACHABLE, Reason.TLS_VERIFICATION_FAILED})


def policy_status(stored: Stored, standing: PolicyStanding, *, now: datetime) -> Mapping[str, Any]:
    """The status of a policy, of either kind."""
    counts = _counts(standing.views)
    accepted = standing.accepted
    status = SandboxPolicyStatus(
        observed_generation=stored.generation,
        accepted=None if accepted is None else _accepted(accepted, standing, generation=stored.generation),
        stages=0 if accepted is None else len(accepted.revision.entries),
        supervisors=counts,
        violations=[] if standing.report is None else violations_for_status(standing.report),
        conditions=conditions(
            _policy_conditions(standing, counts),
            previous=stored.status.get("conditions", ()),  # type: ignore[arg-type]
            generation=stored.generation,
            now=now,
        ),
    )
    return _dumped(status, stored)


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
    return _dumped(status, stored)


def is_news(status: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    """Whether a status is worth a write: `lastDescribed` alone is not."""
    return {k: v for k, v in status.items() if k != "lastDescribed"} != {
        k: v for k, v in previous.items() if k != "lastDescribed"
    }


def _dumped(status: Status, stored: Stored) -> Mapping[str, Any]:
    """As JSON. What is accepted and cannot be read (it is of a later release, or lost) stays as it is."""
    dumped = status.model_dump(by_alias=True, exclude_none=True, mode="json")
    if "accepted" not in dumped and isinstance(kept := stored.status.get("accepted"), Mapping):
        dumped["accepted"] = dict(kept)
    return dumped


def _policy_conditions(standing: PolicyStanding, counts: SupervisorCounts) -> Iterable[Untimed]:
    report = standing.report
    if report is None:
        waiting = "the spec is being validated"
        yield Untimed(type="Accepted", status=None, reason=ConditionReason.PENDING, message=waiting)
        yield Untimed(type="ResolvedRefs", status=None, reason=ConditionReason.PENDING, message=waiting)
        yield Untimed(type="Ready", status=None, reason=ConditionReason.PENDING, message=waiting)
        yield _programmed(standing, counts)
        yield Untimed(type="Reconciling", status=True, reason=ConditionReason.PENDING, message=waiting)
        yield Untimed(type="Stalled", status=False, reason=ConditionReason.PENDING)
        return
    unresolved = [v for v in report.violations if v.reason in _REFS]
    others = Report(violations=tuple(v for v in report.violations if v.reason not in _REFS))
    reason = coarse(report) if report.violations else ConditionReason.READY
    message = summary_of(report) + _kept(standing, report)
    is_accepted = report.is_valid
    yield Untimed(
        type="Accepted",
        status=is_accepted,
        reason=ConditionReason.ACCEPTED if is_accepted else coarse(others if others.violations else report),
        message=message,
    )
    yield Untimed(
        type="ResolvedRefs",
        status=not unresolved,
        reason=ConditionReason.BINDING_NOT_FOUND if unresolved else ConditionReason.RESOLVED,
        message=summary_of(Report(violations=tuple(unresolved))),
    )
    yield Untimed(type="Ready", status=report.is_valid, reason=reason, message=message)
    yield _programmed(standing, counts)
    is_pending = reason in {ConditionReason.VALIDATION_PENDING, ConditionReason.BINDING_NOT_FOUND}
    is_moving = report.is_valid and counts.active < counts.matched
    yield Untimed(
        type="Reconciling",
        status=is_moving or is_pending,
        reason=ConditionReason.PROGRESSING if is_moving else reason,
        message=message,
    )
    yield Untimed(type="Stalled", status=not report.is_valid and not is_pending, reason=reason, message=message)


def _kept(standing: PolicyStanding, report: Report) -> str:
    """What sandboxes run meanwhile; nothing if the spec is what they run."""
    if standing.accepted is None or report.is_valid:
        return ""
    kept = ". Sandboxes keep the last accepted revision"
    if not standing.unserved:
        return kept
    return f"{kept}, in which nobody serves {', '.join(standing.unserved)}: its hosts follow onError"


def _programmed(standing: PolicyStanding, counts: SupervisorCounts) -> Untimed:
    """Every matched supervisor serves the current spec."""
    if not standing.is_current:
        return Untimed(
            type="Programmed",
            status=False,
            reason=coarse(standing.report) if standing.report is not None else ConditionReason.PENDING,
            message="the current spec is not accepted, so no supervisor runs it",
        )
    if not counts.matched:
        message = "no sandbox is selected"
        return Untimed(type="Programmed", status=True, reason=ConditionReason.NO_SANDBOXES, message=message)
    message = f"{counts.summary} supervisors serve it"
    if counts.active == counts.matched:
        return Untimed(type="Programmed", status=True, reason=ConditionReason.PROGRAMMED, message=message)
    reason = (
        ConditionReason.REJECTED
        if counts.rejected
        else ConditionReason.WAITING
        if counts.waiting
        else ConditionReason.NOT_CONNECTED
        if counts.connected < counts.matched
        else ConditionReason.PROGRESSING
    )
    return Untimed(type="Programmed", status=False, reason=reason, message=message + _waiting_for(standing.views))


def _waiting_for(views: Iterable[View]) -> str:
    services = sorted({s for v in views if v.state is State.WAITING for s in v.services})
    return f"; waiting for {', '.join(services[:5])}" if services else ""


def _counts(views: Sequence[View]) -> SupervisorCounts:
    active = sum(v.is_active for v in views)
    prepared = (State.PREPARED, State.ACTIVE)
    return SupervisorCounts(
        matched=len(views),
        connected=sum(v.is_connected for v in views),
        prepared=sum(v.is_connected and v.state in prepared for v in views),
        active=active,
        waiting=sum(v.state is State.WAITING for v in views),
        rejected=sum(v.state is State.REJECTED for v in views),
        summary=f"{active}/{len(views)}",
    )


def _accepted(accepted: StoredRevision, standing: PolicyStanding, *, generation: int) -> AcceptedRevision:
    return AcceptedRevision(
        revision=accepted.number,
        epoch=accepted.epoch,
        generation=generation if standing.is_current else accepted.revision.generation,
        digest=accepted.digest,
    )


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
    yield Untimed(
        type="Drifted",
        status=bool(standing.drift),
        reason=ConditionReason.DRIFTED if standing.drift else ConditionReason.IN_SYNC,
        message=standing.drift,
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


def _outage_reason(outages: Report) -> ConditionReason:
    if outages.is_valid:
        return ConditionReason.REACHABLE
    is_tls = any(v.reason is Reason.TLS_VERIFICATION_FAILED for v in outages.violations)
    return ConditionReason.TLS_VERIFICATION_FAILED if is_tls else ConditionReason.UNREACHABLE
