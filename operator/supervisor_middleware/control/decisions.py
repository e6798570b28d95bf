"""What follows from a snapshot and the catalog. PURE: the reconciler gathers, this decides, the reconciler applies.

Last-known-good is per object. A registration keeps the accepted value of its status until `Describe` succeeds under
its new spec; a policy keeps its accepted revision until its new spec compiles and every service said yes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.pipeline import CompiledPolicy
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.control.judge import Judge
from supervisor_middleware.control.registrations import RegistrationDecision, decide_registrations
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from supervisor_middleware.model.violation import Reason, Report
from supervisor_middleware.registry.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """One policy. `compiled` None: an answer it needs is still under way; `accepted` is what is in force until then.

    `questions` are those whose answer the accepted revision does not hold already.
    """

    stored: Stored
    questions: tuple[Question, ...]
    compiled: CompiledPolicy | None
    accepted: StoredRevision | None
    fallback: Revision | None
    """What sandboxes run of a policy that was never accepted."""

    @property
    def fresh(self) -> Revision | None:
        """A revision to be committed: valid, and not what is accepted already."""
        if self.compiled is None or (self.accepted is not None and self.accepted.digest == self.compiled.digest):
            return None
        return self.compiled.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Every registration, and the bindings policies can select."""

    registrations: tuple[RegistrationDecision, ...]
    bindings: Bindings

    @property
    def pending(self) -> tuple[str, ...]:
        """Names of registrations that nothing was ever accepted of."""
        return tuple(r.draft.name for r in self.registrations if r.accepted is None)

    @property
    def is_incomplete(self) -> bool:
        """Whether a service that was never accepted is still being described: its bindings may come in a moment."""
        return any(r.accepted is None and r.report is None for r in self.registrations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The whole pass."""

    registry: Registry
    policies: tuple[PolicyDecision, ...]


def decide(snapshot: Snapshot, catalog: Catalog, *, judge: Judge, frozen: frozenset[str] = frozenset()) -> Decisions:
    """Judge every object of a snapshot. Registrations in `frozen` (by UID) stay on what is committed of them."""
    accepted = accepted_by_policy(snapshot)
    registry = decide_registry(snapshot, catalog, settings=judge.settings, frozen=frozen)
    registry = replace(registry, bindings=judge.same(registry.bindings))
    judge.keep(frozenset(p.uid for p in snapshot.policies))
    policies = tuple(
        _policy(p, catalog, registry=registry, judge=judge, accepted=accepted.get(p.uid)) for p in snapshot.policies
    )
    return Decisions(registry=registry, policies=policies)


def decide_registry(
    snapshot: Snapshot, catalog: Catalog, *, settings: CompilerSettings, frozen: frozenset[str] = frozenset()
) -> Registry:
    """Judge the registrations only: all that judging one policy needs."""
    used = frozenset(e.binding for r in accepted_by_policy(snapshot).values() for e in r.revision.entries)
    registrations = tuple(decide_registrations(snapshot, catalog, settings=settings, used=used, frozen=frozen))
    bindings = bind((r.accepted for r in registrations if r.accepted is not None), settings.builtins)
    return Registry(registrations=registrations, bindings=bindings)


def accepted_by_policy(snapshot: Snapshot) -> Mapping[str, StoredRevision]:
    """The revision each policy's status names: a revision that no status names was never committed."""
    stored = {(r.revision.uid, r.number, r.digest): r for r in snapshot.revisions}
    named = ((p.uid, accepted_reference(p.status)) for p in snapshot.policies)
    return {uid: stored[uid, *reference] for uid, reference in named if reference and (uid, *reference) in stored}


def accepted_reference(status: Mapping[str, Any]) -> tuple[int, str] | None:
    """Number and digest of the revision that a policy's status names."""
    accepted = status.get("accepted")
    if not isinstance(accepted, Mapping):
        return None
    number, digest = accepted.get("revision"), accepted.get("digest")
    return (number, digest) if isinstance(number, int) and isinstance(digest, str) else None


def _policy(
    stored: Stored,
    catalog: Catalog,
    *,
    registry: Registry,
    judge: Judge,
    accepted: StoredRevision | None,
) -> PolicyDecision:
    read = judge.read(stored)
    standing = None if accepted is None else accepted.revision
    asked = questions(read.draft, registry.bindings, accepted=standing)
    compiled = None
    if not any(catalog.is_unasked(q.key) for q in asked):
        compiled = judge.compile(
            read,
            bindings=registry.bindings,
            verdicts=catalog.verdicts,
            accepted=standing,
            pending=registry.pending,
        )
    if compiled is not None and registry.is_incomplete and _misses_a_binding(compiled.report):
        compiled = None
    return PolicyDecision(
        stored=stored, questions=asked, compiled=compiled, accepted=accepted, fallback=read.fallback
    )


def _misses_a_binding(found: Report) -> bool:
    return any(v.reason is Reason.UNKNOWN_BINDING for v in found.violations)
