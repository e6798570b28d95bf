"""What follows from a snapshot and the catalog. PURE: the reconciler gathers, this decides, the reconciler applies.

Last-known-good is per object. A registration keeps the accepted value of its status until `Describe` succeeds under
its new spec; a policy keeps its accepted revision until its new spec compiles and every service said yes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.control.judge import Judge, PolicyDecision
from supervisor_middleware.control.registrations import Registry, decide_registrations
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot, StoredRevision
from supervisor_middleware.registry.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The whole pass."""

    registry: Registry
    policies: tuple[PolicyDecision, ...]


def decide(snapshot: Snapshot, catalog: Catalog, *, judge: Judge, frozen: frozenset[str] = frozenset()) -> Decisions:
    """Judge every object of a snapshot. Registrations in `frozen` (by UID) stay on what is committed of them."""
    accepted = accepted_by_policy(snapshot)
    registry = decide_registry(snapshot, catalog, settings=judge.settings, frozen=frozen)
    around = judge.around(registry, catalog)
    judge.keep(frozenset(p.uid for p in snapshot.policies))
    policies = tuple(judge.decide(p, catalog, around=around, accepted=accepted.get(p.uid)) for p in snapshot.policies)
    return Decisions(registry=replace(registry, bindings=around.bindings), policies=policies)


def decide_registry(
    snapshot: Snapshot, catalog: Catalog, *, settings: CompilerSettings, frozen: frozenset[str] = frozenset()
) -> Registry:
    """Judge the registrations only: all that judging one policy needs."""
    used = frozenset(e.binding for r in accepted_by_policy(snapshot).values() for e in r.revision.entries)
    registrations = tuple(decide_registrations(snapshot, catalog, settings=settings, used=used, frozen=frozen))
    bindings = bind((r.accepted for r in registrations if r.accepted is not None), settings.builtins)
    return Registry(registrations=registrations, bindings=bindings)


def accepted_by_policy(snapshot: Snapshot) -> Mapping[str, StoredRevision]:
    """The revision each policy's status names: a revision that no status names was never committed.

    Nor is one of a policy that is another by now: a file may move to another namespace and keep its UID.
    """
    stored = {(r.revision.uid, r.number, r.digest): r for r in snapshot.revisions}
    named = ((p, accepted_reference(p.status)) for p in snapshot.policies)
    found = ((p, stored.get((p.uid, *reference))) for p, reference in named if reference)
    return {p.uid: r for p, r in found if r is not None and r.revision.policy == p.subject}


def accepted_reference(status: Mapping[str, Any]) -> tuple[int, str] | None:
    """Number and digest of the revision that a policy's status names."""
    accepted = status.get("accepted")
    if not isinstance(accepted, Mapping):
        return None
    number, digest = accepted.get("revision"), accepted.get("digest")
    return (number, digest) if isinstance(number, int) and isinstance(digest, str) else None
