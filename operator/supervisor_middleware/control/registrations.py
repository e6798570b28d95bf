"""What follows for registrations from a snapshot and the catalog. PURE: a part of `control.decisions`.

A registration keeps the accepted value of its status until `Describe` succeeds under its new spec and offers what
policies use. What a service offers beyond or short of what its registration holds is drift: said, never taken over.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.claims import neighbours_of
from supervisor_middleware.compiler.registration import RegistrationDraft, accept_registration, draft_registration
from supervisor_middleware.control.drift import Drift, drift_of
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot, Stored
from supervisor_middleware.model.verdict import Described
from supervisor_middleware.model.violation import Reason, Report, Violation, merge, report
from supervisor_middleware.registry.catalog import Catalog, Known


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationDecision:
    """One registration. `report` None: not described yet; `accepted` is to be in force, `committed` is."""

    stored: Stored
    draft: RegistrationDraft
    accepted: Registration | None
    committed: Registration | None
    report: Report | None
    drift: Drift
    """How what the service offers differs from what the registration holds."""
    offered: Manifest | None
    """All that the service offers, if it is good under the stored spec."""
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
class Registry:
    """Every registration, and the bindings policies can select."""

    registrations: tuple[RegistrationDecision, ...]
    bindings: Bindings

    @property
    def pending(self) -> tuple[str, ...]:
        """Names of registrations that nothing was ever accepted of."""
        return tuple(r.draft.name for r in self.registrations if r.accepted is None)

    @property
    def degraded(self) -> frozenset[str]:
        """Binding IDs that a service no longer offers as they were accepted."""
        return frozenset(i for r in self.registrations for i in r.drift.lost)

    @property
    def is_incomplete(self) -> bool:
        """Whether a service that was never accepted is still being described: its bindings may come in a moment."""
        return any(r.accepted is None and r.report is None for r in self.registrations)


def decide_registrations(
    snapshot: Snapshot, catalog: Catalog, *, settings: CompilerSettings, used: frozenset[str], frozen: frozenset[str]
) -> Iterator[RegistrationDecision]:
    """Judge every registration, the older first; `used` are the binding IDs that accepted policies run on.

    Those in `frozen` (by UID) stay on what is committed of them.
    """
    ordered = sorted(snapshot.registrations, key=lambda s: (s.created_at, s.subject.name))
    accepted = ((s.uid, accepted_registration(s)) for s in ordered)
    # Last-known-good holds back nothing that the platform no longer permits.
    standing = {uid: a for uid, a in accepted if a is not None and settings.permits(a.connection)}
    drafted = [draft_registration(s, bundles=snapshot.bundles, settings=settings) for s in ordered]
    drafts = tuple(draft for draft, _ in drafted)
    for stored, (draft, spec_report) in zip(ordered, drafted, strict=True):
        known = None if draft.connection is None else catalog.description(draft.connection, draft.name)
        committed = standing.get(stored.uid)
        around = _Around(others=tuple(standing.values()), drafts=drafts, used=used)
        decision = _registration(stored, draft, spec_report, known=known, committed=committed, around=around)
        if stored.uid in frozen:
            decision = replace(decision, accepted=committed)
        if decision.accepted is not None:
            standing[stored.uid] = decision.accepted
        yield decision


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What a registration is judged beside: what is accepted, what is asked for, and which IDs policies use."""

    others: tuple[Registration, ...]
    drafts: tuple[RegistrationDraft, ...]
    used: frozenset[str]


def _registration(
    stored: Stored,
    draft: RegistrationDraft,
    spec_report: Report,
    *,
    known: Known | None,
    committed: Registration | None,
    around: _Around,
) -> RegistrationDecision:
    if known is None:
        # Nothing to go by: a broken spec is final, an undescribed service is still being asked.
        return RegistrationDecision(
            stored=stored,
            draft=draft,
            accepted=committed,
            committed=committed,
            report=spec_report if draft.connection is None else None,
            drift=Drift(),
            offered=None,
            last_described=None,
        )
    fresh, found = accept_registration(draft, known.description, others=around.others, drafts=around.drafts)
    lost = () if fresh is None or committed is None else tuple(_lost(draft, committed, fresh, used=around.used))
    complete = merge((spec_report, found, report(lost)))
    described = known.description.manifest if isinstance(known.description, Described) else None
    is_good = complete.is_valid and described is not None
    return RegistrationDecision(
        stored=stored,
        draft=draft,
        accepted=committed if fresh is None or lost else fresh,
        committed=committed,
        report=complete,
        drift=Drift() if described is None else _drift(draft, described, complete, committed, around),
        offered=described if is_good else None,
        last_described=known.at,
    )


def _drift(
    draft: RegistrationDraft, described: Manifest, found: Report, committed: Registration | None, around: _Around
) -> Drift:
    neighbours = neighbours_of(draft, others=around.others, drafts=around.drafts)
    return drift_of(draft, described, found, committed=committed, neighbours=neighbours)


def _lost(
    draft: RegistrationDraft, previous: Registration, fresh: Registration, *, used: frozenset[str]
) -> Iterator[Violation]:
    """Bindings that policies run on and that are offered or listed no longer: those policies keep what they have."""
    offered = {b.id for b in fresh.manifest.bindings}
    for identifier in sorted({b.id for b in previous.manifest.bindings} & used - offered):
        is_claimed = identifier in fresh.claims
        who = "the service no longer offers" if is_claimed else "no longer lists"
        yield Violation(
            subject=draft.subject,
            path="status.manifest" if is_claimed else "spec.bindings",
            reason=Reason.INVALID_MANIFEST,
            message=f"{who} binding {identifier}, which policies use",
            hint="restore the binding, or remove it from the policies first",
        )


def accepted_registration(stored: Stored) -> Registration | None:
    """What its status says is accepted, if that can be read."""
    value = stored.status.get("accepted")
    if not isinstance(value, Mapping):
        return None
    try:
        # A round trip through text: what a store hands over may be any mapping, what we keep is plain JSON.
        return Registration.from_json(json.loads(json.dumps(value)))
    except (KeyError, TypeError, ValueError):
        return None
