"""What is known of each object at the end of a pass, ready to become a status. PURE."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.control.decisions import Decisions
from supervisor_middleware.control.judge import PolicyDecision
from supervisor_middleware.control.registrations import RegistrationDecision
from supervisor_middleware.control.rollout import Rollout
from supervisor_middleware.distribution.ledger import View
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.violation import Report, merge


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStanding:
    """All that is known of a policy. `report` None: still being validated."""

    report: Report | None
    accepted: StoredRevision | None
    is_current: bool
    """Whether `accepted` is what the current spec compiles to."""
    views: Sequence[View]
    unserved: tuple[str, ...] = ()
    """Keys of accepted entries whose binding nobody serves any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationStanding:
    """All that is known of a registration. `report` None: still being described."""

    report: Report | None
    accepted: Registration | None
    is_current: bool
    """Whether `accepted` was accepted under the current spec."""
    policies: int
    drift: str
    """How the service differs from what the registration holds; empty if it does not."""
    last_described: datetime | None


def policy_standing(
    policy: PolicyDecision,
    accepted: StoredRevision | None,
    rollout: Rollout,
    *,
    bindings: Bindings,
    view: Callable[[str, str], View],
) -> PolicyStanding:
    """How a policy stands if `accepted` is in force; `view` is asked by supervisor key and digest."""
    uid = policy.stored.uid
    conflicts = rollout.conflicts.get(uid, Report())
    compiled = policy.compiled
    report = None if compiled is None else merge((compiled.report, conflicts))
    revision = None if compiled is None else compiled.revision
    is_stored = compiled is not None and accepted is not None and accepted.digest == compiled.digest
    entries = () if accepted is None else accepted.revision.entries
    return PolicyStanding(
        # Valid, and yet not kept: nothing can be said before the next attempt.
        report=None if revision is not None and not is_stored else report,
        accepted=accepted,
        is_current=is_stored and not conflicts.violations,
        unserved=tuple(e.key for e in entries if bindings.find(e.binding) is None),
        views=[view(key, rollout.generations[key].digest) for key in rollout.matched[uid]],
    )


def registration_standing(decision: RegistrationDecision, decisions: Decisions) -> RegistrationStanding:
    """How a registration stands, and how many policies select a binding of it."""
    accepted = decision.accepted
    offered = frozenset(b.id for b in accepted.manifest.bindings) if accepted is not None else frozenset()
    is_uncommitted = decision.report is not None and decision.report.is_valid and not decision.is_current
    return RegistrationStanding(
        report=None if is_uncommitted else decision.report,
        accepted=accepted,
        is_current=decision.is_current,
        policies=sum(_uses(p, offered) for p in decisions.policies),
        drift=decision.drift,
        last_described=decision.last_described,
    )


def condition(status: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """Status and reason of a condition; empty where there is none."""
    for found in status.get("conditions", ()):
        if found.get("type") == kind:
            return str(found.get("status")), str(found.get("reason"))
    return "", ""


def is_judged(stored: Stored) -> bool:
    """Whether the stored status already is a verdict on the current spec."""
    is_known = condition(stored.status, "Accepted")[0] in {"True", "False"}
    return is_known and stored.status.get("observedGeneration") == stored.generation


def _uses(policy: PolicyDecision, offered: frozenset[str]) -> bool:
    current = policy.compiled.revision if policy.compiled is not None else None
    in_force = current or (policy.accepted.revision if policy.accepted else policy.fallback)
    return in_force is not None and any(e.binding in offered for e in in_force.entries)
