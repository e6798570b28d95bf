"""What is known of each object at the end of a pass, ready to become a status. PURE."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import Any, Final

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.control.decisions import Decisions
from supervisor_middleware.control.drift import Drift
from supervisor_middleware.control.judge import PolicyDecision
from supervisor_middleware.control.registrations import RegistrationDecision
from supervisor_middleware.control.rollout import Rollout
from supervisor_middleware.distribution.ledger import State, View
from supervisor_middleware.model.compact import expanded
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.violation import Report, merge

MAX_LAGGARDS: Final = 5


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
    degraded: tuple[str, ...] = ()
    """Keys of accepted entries whose service no longer offers the binding as it was accepted."""
    laggards: tuple[str, ...] = ()
    """Some sandboxes that are in the way of `Programmed`: those that refuse, else those that are not connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationStanding:
    """All that is known of a registration. `report` None: still being described."""

    report: Report | None
    accepted: Registration | None
    is_current: bool
    """Whether `accepted` was accepted under the current spec."""
    policies: int
    drift: Drift
    """How the service differs from what the registration holds."""
    last_described: datetime | None


def policy_standing(
    policy: PolicyDecision,
    accepted: StoredRevision | None,
    rollout: Rollout,
    *,
    bindings: Bindings,
    degraded: frozenset[str],
    view: Callable[[str, str], View],
) -> PolicyStanding:
    """How a policy stands if `accepted` is in force; `view` is asked by supervisor key and digest.

    `degraded` are binding IDs that are no longer offered as they were accepted.
    """
    uid = policy.stored.uid
    conflicts = rollout.conflicts.get(uid, Report())
    compiled = policy.compiled
    report = None if compiled is None else compiled.report
    if report is not None and conflicts.violations:
        report = merge((report, conflicts))
    revision = None if compiled is None else compiled.revision
    is_stored = compiled is not None and accepted is not None and accepted.digest == compiled.digest
    entries = () if accepted is None else accepted.revision.entries
    views = {key: view(key, rollout.generations[key].digest) for key in rollout.matched[uid]}
    return PolicyStanding(
        # Valid, and yet not kept: nothing can be said before the next attempt.
        report=None if revision is not None and not is_stored else report,
        accepted=accepted,
        is_current=is_stored and not conflicts.violations,
        unserved=tuple(e.key for e in entries if bindings.find(e.binding) is None),
        degraded=tuple(e.key for e in entries if e.binding in degraded) if degraded else (),
        laggards=_laggards(views, rollout),
        views=tuple(views.values()),
    )


def _laggards(views: Mapping[str, View], rollout: Rollout) -> tuple[str, ...]:
    keys = [key for key, view in views.items() if view.state is State.REJECTED]
    keys = keys or [key for key, view in views.items() if not view.is_connected]
    names = {f"{s.namespace}/{s.name}" for s in map(rollout.matched.sandbox, keys)}
    return tuple(nsmallest(MAX_LAGGARDS, names))


def users_of(decisions: Decisions) -> Mapping[str, int]:
    """How many policies select a binding of each registration (by UID)."""
    accepted = [r.accepted for r in decisions.registry.registrations if r.accepted is not None]
    owners = {binding.id: r.uid for r in accepted for binding in r.manifest.bindings}
    return Counter(uid for policy in decisions.policies for uid in _used(policy, owners))


def registration_standing(decision: RegistrationDecision, users: Mapping[str, int]) -> RegistrationStanding:
    """How a registration stands; `users` is of all registrations."""
    is_uncommitted = decision.report is not None and decision.report.is_valid and not decision.is_current
    return RegistrationStanding(
        report=None if is_uncommitted else decision.report,
        accepted=decision.accepted,
        is_current=decision.is_current,
        policies=users.get(decision.stored.uid, 0),
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
    status = expanded(stored.status)
    is_known = condition(status, "Accepted")[0] in {"True", "False"}
    return is_known and status.get("observedGeneration") == stored.generation


def _used(policy: PolicyDecision, owners: Mapping[str, str]) -> frozenset[str]:
    current = policy.compiled.revision if policy.compiled is not None else None
    in_force = current or (policy.accepted.revision if policy.accepted else policy.fallback)
    entries = () if in_force is None else in_force.entries
    return frozenset(owners[e.binding] for e in entries if e.binding in owners)
