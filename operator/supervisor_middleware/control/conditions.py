"""Conditions: what people and tools wait for. PURE; time is an argument.

Violation reasons are fine-grained, condition reasons a coarse class; `CLASSES` is the mapping. A condition keeps its
transition time while its status stays the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from supervisor_middleware.model.limits import MAX_STATUS_VIOLATIONS
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.statuses import Condition, Status, StatusViolation
from supervisor_middleware.model.violation import Reason, Report


class ConditionReason(StrEnum):
    """Why a condition has its status."""

    ACCEPTED = "Accepted"
    INVALID = "Invalid"
    CONFLICTED = "Conflicted"
    VALIDATION_PENDING = "ValidationPending"
    PENDING = "Pending"
    RESOLVED = "ResolvedRefs"
    BINDING_NOT_FOUND = "BindingNotFound"
    PROGRAMMED = "Programmed"
    NO_SANDBOXES = "NoSandboxes"
    PROGRESSING = "Progressing"
    WAITING = "Waiting"
    REJECTED = "Rejected"
    NOT_CONNECTED = "NotConnected"
    READY = "Ready"
    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    TLS_VERIFICATION_FAILED = "TLSVerificationFailed"
    IN_SYNC = "InSync"
    DRIFTED = "Drifted"
    PLAINTEXT = "Plaintext"
    NO_CLIENT_AUTHENTICATION = "NoClientAuthentication"


CLASSES: Final[Mapping[Reason, ConditionReason]] = {
    Reason.CONFLICTED: ConditionReason.CONFLICTED,
    Reason.DUPLICATE_BINDING: ConditionReason.CONFLICTED,
    Reason.SERVICE_UNREACHABLE: ConditionReason.VALIDATION_PENDING,
    Reason.TLS_VERIFICATION_FAILED: ConditionReason.TLS_VERIFICATION_FAILED,
    Reason.UNKNOWN_BINDING: ConditionReason.BINDING_NOT_FOUND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Untimed:
    """One condition before it has a time."""

    type: str
    status: bool | None
    reason: ConditionReason
    message: str = ""


def conditions(
    found: Iterable[Untimed], *, previous: Iterable[Mapping[str, Any]], generation: int, now: datetime
) -> list[Condition]:
    """Give each its transition time: the previous one unless the status changed."""
    before = {c.get("type"): c for c in previous if isinstance(c, Mapping)}
    return [_condition(u, before.get(u.type), generation=generation, now=now) for u in found]


def coarse(report: Report) -> ConditionReason:
    """The class of a report's gravest violation: what the author must change comes before what may pass."""
    reasons = {CLASSES.get(v.reason, ConditionReason.INVALID) for v in report.violations}
    ranked = (
        ConditionReason.INVALID,
        ConditionReason.BINDING_NOT_FOUND,
        ConditionReason.CONFLICTED,
        ConditionReason.TLS_VERIFICATION_FAILED,
    )
    return next((r for r in ranked if r in reasons), ConditionReason.VALIDATION_PENDING)


def violations_for_status(report: Report) -> list[StatusViolation]:
    """The first violations, each with its next move, without anything a service said."""
    return [
        StatusViolation(path=v.path[:1024], reason=v.reason.value, message=str(replace(v, path="", detail=""))[:2048])
        for v in report.violations[:MAX_STATUS_VIOLATIONS]
    ]


def summary_of(report: Report) -> str:
    """One line for a condition: the first violation and how many more there are."""
    if not report.violations:
        return ""
    first, more = report.violations[0], len(report.violations) - 1
    text = str(replace(first, detail=""))
    return f"{text} (and {more} more)" if more else text


def timestamp(now: datetime) -> str:
    """`metav1.Time`: whole seconds, UTC."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def dump(status: Status, stored: Stored) -> Mapping[str, Any]:
    """As JSON. What is accepted and cannot be read (it is of a later release, or lost) stays as it is."""
    dumped = status.model_dump(by_alias=True, exclude_none=True, mode="json")
    if "accepted" not in dumped and isinstance(kept := stored.status.get("accepted"), Mapping):
        dumped["accepted"] = dict(kept)
    return dumped


def _condition(untimed: Untimed, before: Mapping[str, Any] | None, *, generation: int, now: datetime) -> Condition:
    status = {True: "True", False: "False", None: "Unknown"}[untimed.status]
    is_same = before is not None and before.get("status") == status and before.get("lastTransitionTime")
    return Condition(
        type=untimed.type,
        status=status,
        reason=untimed.reason.value,
        message=untimed.message,
        observed_generation=generation,
        last_transition_time=str(before["lastTransitionTime"]) if before and is_same else timestamp(now),
    )
