"""What is worth auditing, as plain values. PURE. `ocsf` says how each looks to a security team.

RFC 0009 "Audit and logging": events carry policy-local keys, validated binding IDs, decisions, latency,
platform-owned failure categories and aggregate counts. No field here can hold content, a config value, a query
string or a service's text; that is the guarantee, by construction.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

from supervisor_middleware.model.evaluation import Decision, FailureCode


class Severity(StrEnum):
    """How much it matters, in OCSF's words."""

    INFORMATIONAL = "Informational"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRef:
    """Which stage of which chain, for which request."""

    request_id: str
    policy: str
    key: str
    binding: str
    host: str
    port: int
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoked:
    """A stage answered with a valid decision."""

    stage: StageRef
    decision: Decision
    is_transformed: bool
    latency: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A required (`FailClosed`) stage gave no valid result: the request was denied."""

    stage: StageRef
    code: FailureCode
    latency: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypassed:
    """A `FailOpen` stage gave no valid result: the request went on without it."""

    stage: StageRef
    code: FailureCode
    latency: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A stage reported findings of one kind. `type` and `severity` are ours unless the stage is a built-in."""

    stage: StageRef
    type: str
    count: int
    severity: Severity


class ChangeKind(StrEnum):
    """What changed in the configuration."""

    REGISTRATION_ACCEPTED = "registration_accepted"
    REGISTRATION_REJECTED = "registration_rejected"
    REGISTRATION_INSECURE = "registration_insecure"
    REGISTRATION_DRIFTED = "registration_drifted"
    POLICY_ACCEPTED = "policy_accepted"
    POLICY_REJECTED = "policy_rejected"
    GENERATION_PUBLISHED = "generation_published"
    GENERATION_ACTIVATED = "generation_activated"
    GENERATION_REJECTED = "generation_rejected"
    GENERATION_WAITING = "generation_waiting"
    STATE_DEFECTIVE = "state_defective"
    CREDENTIALS_ISSUED = "credentials_issued"
    CREDENTIALS_ROTATED = "credentials_rotated"
    JOIN_REFUSED = "join_refused"
    TRUST_BUNDLE_CHANGED = "trust_bundle_changed"
    ROOT_STEADY = "root_steady"
    ROOT_PREPARED = "root_prepared"
    ROOT_ACTIVATED = "root_activated"
    ROOT_TAINTED = "root_tainted"
    ROOT_REVOKED = "root_revoked"
    ROOT_FORCED = "root_forced"
    ROOT_REQUEST_REFUSED = "root_request_refused"
    ROOT_REFUSED = "root_refused"
    ROOT_MISSING = "root_missing"
    LEADERSHIP_ACQUIRED = "leadership_acquired"
    LEADERSHIP_LOST = "leadership_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A configuration change. `subject` is an object's kind and name, `reason` one of our enumerations.

    `digest` is of what is in force or refused; `count` says how many sandboxes it concerns, where that is known.
    `request` identifies what somebody asked for, so that the API server's own audit log says who.
    """

    kind: ChangeKind
    subject: str
    reason: str = ""
    digest: str = ""
    count: int = 0
    request: str = ""


Event: TypeAlias = Invoked | Failed | Bypassed | Found | Changed
