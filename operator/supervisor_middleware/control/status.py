"""Reports and standings to statuses. PURE: what `kubectl get` and `kubectl wait` see.

`Ready` is `Accepted` and `ResolvedRefs`; `Programmed` stands apart, so that one stuck Pod does not hold back a GitOps
tool. `Programmed` counts only supervisors that *serve* what the policy's current spec says.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from supervisor_middleware.control.conditions import (
    ConditionReason,
    Untimed,
    coarse,
    conditions,
    dump,
    summary_of,
    violations_for_status,
)
from supervisor_middleware.control.standings import PolicyStanding
from supervisor_middleware.distribution.ledger import State, View
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.statuses import (
    AcceptedRevision,
    SandboxPolicyStatus,
    SupervisorCounts,
)
from supervisor_middleware.model.violation import Reason, Report

_REFS: Final = frozenset({Reason.UNKNOWN_BINDING})
_MOVING: Final = frozenset({State.IDLE, State.OFFERED, State.PREPARED})


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
    return dump(status, stored)


def is_news(status: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    """Whether a status is worth a write: `lastDescribed` alone is not."""
    return {k: v for k, v in status.items() if k != "lastDescribed"} != {
        k: v for k, v in previous.items() if k != "lastDescribed"
    }


def _policy_conditions(standing: PolicyStanding, counts: SupervisorCounts) -> Iterable[Untimed]:
    yield from _verdict(standing, counts)
    if standing.degraded:
        keys = ", ".join(standing.degraded)
        message = f"the service behind {keys} no longer offers what was accepted; sandboxes keep the last accepted"
        yield Untimed(type="Degraded", status=True, reason=ConditionReason.DRIFTED, message=message)


def _verdict(standing: PolicyStanding, counts: SupervisorCounts) -> Iterable[Untimed]:
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
    is_moving = report.is_valid and any(map(_is_moving, standing.views))
    yield Untimed(
        type="Reconciling",
        status=is_moving or is_pending,
        reason=ConditionReason.PROGRESSING if is_moving else reason,
        message=message,
    )
    yield Untimed(type="Stalled", status=not report.is_valid and not is_pending, reason=reason, message=message)


def _is_moving(view: View) -> bool:
    """Whether a supervisor is expected to serve it in a moment; one that is away, refuses or waits keeps nobody."""
    return view.is_connected and not view.is_active and view.state in _MOVING


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
    return Untimed(type="Programmed", status=False, reason=reason, message=message + _in_the_way(standing, reason))


def _in_the_way(standing: PolicyStanding, reason: ConditionReason) -> str:
    if reason is ConditionReason.WAITING:
        return _waiting_for(standing.views)
    words = {ConditionReason.REJECTED: "refused by", ConditionReason.NOT_CONNECTED: "not connected:"}
    if reason not in words or not standing.laggards:
        return ""
    is_refusal = reason is ConditionReason.REJECTED
    count = sum(v.state is State.REJECTED if is_refusal else not v.is_connected for v in standing.views)
    more = f" and {count - len(standing.laggards)} more" if count > len(standing.laggards) else ""
    return f"; {words[reason]} {', '.join(standing.laggards)}{more}"


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
