"""What follows from a snapshot and the catalog. PURE: the reconciler gathers, this decides, the reconciler applies.

Last-known-good is per object. A registration keeps the accepted value of its status until `Describe` succeeds under
its new spec; a policy keeps its accepted revision until its new spec compiles and every service said yes.
"""

from dataclasses import dataclass, replace

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.control.acceptances import Acceptance
from supervisor_middleware.control.judge import Judge, PolicyDecision
from supervisor_middleware.control.registrations import Registry, decide_registrations
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.registry.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The whole pass."""

    registry: Registry
    policies: tuple[PolicyDecision, ...]


def decide(snapshot: Snapshot, catalog: Catalog, *, judge: Judge, frozen: frozenset[str] = frozenset()) -> Decisions:
    """Judge every object of a snapshot. Registrations in `frozen` (by UID) stay on what is committed of them."""
    acceptance = judge.acceptances.of(snapshot)
    registry = decide_registry(snapshot, catalog, settings=judge.settings, frozen=frozen, acceptance=acceptance)
    around = judge.around(registry, catalog)
    judge.keep(frozenset(p.uid for p in snapshot.policies))
    policies = tuple(
        judge.decide(p, catalog, around=around, accepted=acceptance.of(p.uid)) for p in snapshot.policies
    )
    return Decisions(registry=replace(registry, bindings=around.bindings), policies=policies)


def decide_registry(
    snapshot: Snapshot,
    catalog: Catalog,
    *,
    settings: CompilerSettings,
    acceptance: Acceptance,
    frozen: frozenset[str] = frozenset(),
) -> Registry:
    """Judge the registrations only: all that judging one policy needs. `acceptance` is the snapshot's."""
    decided = decide_registrations(snapshot, catalog, settings=settings, used=acceptance.bindings, frozen=frozen)
    registrations = tuple(decided)
    bindings = bind((r.accepted for r in registrations if r.accepted is not None), settings.builtins)
    return Registry(registrations=registrations, bindings=bindings)
