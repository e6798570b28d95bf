"""Judges a gathered folder: the reconciler's and the webhook's own functions in a row. PURE.

Nothing is in force here, so nobody is older: of two objects that conflict both are told.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from supervisor_middleware.cli.offline.assumptions import elsewhere
from supervisor_middleware.cli.offline.conflicts import conflicts
from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.checks import PolicyInput
from supervisor_middleware.compiler.drafts import PolicyDraft, draft_policy
from supervisor_middleware.compiler.pipeline import CompiledPolicy, compile_draft
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.compiler.registration import RegistrationDraft, accept_registration, draft_registration
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.settings import CompilerSettings, Knowledge
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Described, Description, Verdict, VerdictKey
from supervisor_middleware.model.violation import Report, Violation, merge

T = TypeVar("T")
Policy: TypeAlias = tuple[PolicyDraft, list[Violation]]
"""A policy as far as it can be read, with every structural violation: drafted once, then asked about and judged."""
Progress: TypeAlias = Callable[[int, int], None]
"""Hears of what is done, of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The registrations of a folder as far as they are accepted."""

    bindings: Bindings
    pending: tuple[RegistrationDraft, ...]
    report: Report


def drafts_of(snapshot: Snapshot, settings: CompilerSettings) -> tuple[tuple[RegistrationDraft, ...], Report]:
    """The registrations before anyone is asked, the older first."""
    ordered = sorted(snapshot.registrations, key=lambda s: (s.created_at, s.subject.name))
    drafted = [draft_registration(s, bundles=snapshot.bundles, settings=settings) for s in ordered]
    return tuple(draft for draft, _ in drafted), merge(found for _, found in drafted)


def recorded(drafts: Iterable[RegistrationDraft], manifests: Mapping[str, Manifest]) -> dict[str, Description]:
    """Recorded manifests as the answers of those registrations, by UID."""
    return {d.uid: Described(manifests[d.name]) for d in drafts if d.name in manifests}


def accept(
    drafts: Sequence[RegistrationDraft],
    descriptions: Mapping[str, Description],
    *,
    manifests: Mapping[str, Manifest],
    settings: CompilerSettings,
) -> Registry:
    """Judge what services said; a manifest without a registration here still tells which bindings there are."""
    accepted: list[Registration] = []
    reports: list[Report] = []
    pending: list[RegistrationDraft] = []
    for draft in drafts:
        registration, found = None, Report()
        if draft.uid in descriptions:
            registration, found = accept_registration(draft, descriptions[draft.uid], others=accepted, drafts=drafts)
        reports.append(found)
        if registration is None:
            pending.append(draft)
        else:
            accepted.append(registration)
    known = {d.name for d in drafts}
    accepted.extend(_recorded(name, manifest) for name, manifest in sorted(manifests.items()) if name not in known)
    return Registry(bindings=bind(accepted, settings.builtins), pending=tuple(pending), report=merge(reports))


def policies_of(snapshot: Snapshot, progress: Progress) -> tuple[Policy, ...]:
    """The policies before anyone is asked."""
    return tuple(draft_policy(stored) for stored in _counted(snapshot.policies, progress))


def questions_of(
    policies: Iterable[Policy], bindings: Bindings, *, settings: CompilerSettings
) -> tuple[Question, ...]:
    """What has to be asked: offline only what is answered in this process."""
    every = (q for draft, _ in policies for q in questions(draft, bindings))
    return tuple(q for q in every if settings.knowledge is Knowledge.LIVE or q.bound.registration is None)


def judge(
    policies: Sequence[Policy],
    snapshot: Snapshot,
    registry: Registry,
    *,
    verdicts: Mapping[VerdictKey, Verdict],
    settings: CompilerSettings,
    progress: Progress,
) -> tuple[tuple[CompiledPolicy, ...], Report]:
    """The policies compiled, and everything that is wrong with them, each by itself and together."""
    compiled: list[CompiledPolicy] = []
    pending = tuple(d.name for d in registry.pending)
    for draft, structural in _counted(policies, progress):
        given = PolicyInput(
            draft=draft, bindings=registry.bindings, verdicts=verdicts, settings=settings, pending=pending
        )
        compiled.append(compile_draft(given, structural))
    revisions = [p.revision for p in compiled if p.revision is not None]
    together = conflicts(snapshot, revisions)
    return tuple(compiled), merge((*(p.report for p in compiled), together))


def _counted(items: Sequence[T], progress: Progress) -> Iterator[T]:
    for number, item in enumerate(items):
        progress(number, len(items))
        yield item


def _recorded(name: str, manifest: Manifest) -> Registration:
    """A registration of which only the manifest is here."""
    return elsewhere(name, manifest, max_body_bytes=min((b.max_body_bytes for b in manifest.bindings), default=0))
