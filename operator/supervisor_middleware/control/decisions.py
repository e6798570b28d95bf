"""What follows from a snapshot and the catalog. PURE: the reconciler gathers, this decides, the reconciler applies.

Last-known-good is per object. A registration keeps the accepted value of its status until `Describe` succeeds under
its new spec; a policy keeps its accepted revision until its new spec compiles and every service said yes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.pipeline import CompiledPolicy
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.compiler.registration import RegistrationDraft, accept_registration, draft_registration
from supervisor_middleware.control.judge import Judge
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from supervisor_middleware.model.verdict import Described
from supervisor_middleware.model.violation import Reason, Report, Violation, merge, report
from supervisor_middleware.registry.catalog import Catalog, Known

_NOTHING: Final = Report()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationDecision:
    """One registration. `report` None: not described yet; `accepted` is to be in force, `committed` is."""

    stored: Stored
    draft: RegistrationDraft
    accepted: Registration | None
    committed: Registration | None
    report: Report | None
    is_drifted: bool
    last_described: datetime | None

    @property
    def is_fresh(self) -> bool:
        """Whether what is accepted is still to be committed."""
        return self.accepted != self.committed

    @property
    def is_current(self) -> bool:
        """Whether what is accepted is what the current spec says."""
        accepted, draft = self.accepted, self.draft
        return accepted is not None and (
            (accepted.name, accepted.connection, accepted.max_body_bytes, accepted.declared_bindings)
            == (draft.name, draft.connection, draft.max_body_bytes, draft.declared_bindings)
        )


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
    registrations = tuple(_registrations(snapshot, catalog, settings=settings, used=used, frozen=frozen))
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


def _registrations(
    snapshot: Snapshot,
    catalog: Catalog,
    *,
    settings: CompilerSettings,
    used: frozenset[str],
    frozen: frozenset[str],
) -> Iterator[RegistrationDecision]:
    ordered = sorted(snapshot.registrations, key=lambda s: (s.created_at, s.subject.name))
    standing = {s.uid: a for s in ordered if (a := _accepted_registration(s)) is not None}
    for stored in ordered:
        draft, spec_report = draft_registration(stored, bundles=snapshot.bundles, settings=settings)
        known = None if draft.connection is None else catalog.description(draft.connection, draft.name)
        committed = standing.get(stored.uid)
        decision = _registration(
            stored, draft, spec_report, known=known, committed=committed, others=standing.values(), used=used
        )
        if stored.uid in frozen:
            decision = replace(decision, accepted=committed)
        if decision.accepted is not None:
            standing[stored.uid] = decision.accepted
        yield decision


def _registration(
    stored: Stored,
    draft: RegistrationDraft,
    spec_report: Report,
    *,
    known: Known | None,
    committed: Registration | None,
    others: Iterable[Registration],
    used: frozenset[str],
) -> RegistrationDecision:
    if known is None:
        # Nothing to go by: a broken spec is final, an undescribed service is still being asked.
        return RegistrationDecision(
            stored=stored,
            draft=draft,
            accepted=committed,
            committed=committed,
            report=spec_report if draft.connection is None else None,
            is_drifted=False,
            last_described=None,
        )
    fresh, found = accept_registration(draft, known.description, others=others)
    lost = () if fresh is None or committed is None else tuple(_lost(draft, committed, fresh, used=used))
    complete = merge((spec_report, found, report(lost)))
    return RegistrationDecision(
        stored=stored,
        draft=draft,
        accepted=committed if fresh is None or lost else fresh,
        committed=committed,
        report=complete,
        is_drifted=not complete.is_valid and _has_drifted(draft, known, committed),
        last_described=known.at,
    )


def _has_drifted(draft: RegistrationDraft, known: Known, committed: Registration | None) -> bool:
    """Whether the accepted service itself, under the connection it was accepted at, is another one now."""
    return (
        committed is not None
        and committed.connection == draft.connection
        and isinstance(known.description, Described)
        and known.description.manifest.digest != committed.manifest.digest
    )


def _lost(
    draft: RegistrationDraft, previous: Registration, fresh: Registration, *, used: frozenset[str]
) -> Iterator[Violation]:
    """Bindings that policies run on and the service no longer offers: those policies keep what they have."""
    offered = {b.id for b in fresh.manifest.bindings}
    for binding in previous.manifest.bindings:
        if binding.id in used and binding.id not in offered:
            yield Violation(
                subject=draft.subject,
                path="status.manifest",
                reason=Reason.INVALID_MANIFEST,
                message=f"the service no longer offers binding {binding.id}, which policies use",
                hint="restore the binding, or remove it from the policies first",
            )


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


def _accepted_registration(stored: Stored) -> Registration | None:
    value = stored.status.get("accepted")
    if not isinstance(value, Mapping):
        return None
    try:
        # A round trip through text: what a store hands over may be any mapping, what we keep is plain JSON.
        return Registration.from_json(json.loads(json.dumps(value)))
    except (KeyError, TypeError, ValueError):
        return None
