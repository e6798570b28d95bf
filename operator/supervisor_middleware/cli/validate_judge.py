"""Judges a gathered folder: the reconciler's and the webhook's own functions in a row. PURE.

Nothing is in force here, so nobody is older: of two objects that conflict both are told.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import combinations, groupby
from typing import Final, TypeAlias, TypeVar

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.checks import PolicyInput
from supervisor_middleware.compiler.composition import compose, selects
from supervisor_middleware.compiler.drafts import PolicyDraft, draft_policy
from supervisor_middleware.compiler.pipeline import CompiledPolicy, compile_draft
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.compiler.registration import RegistrationDraft, accept_registration, draft_registration
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.registration import Connection, Registration
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.selectors import Operator
from supervisor_middleware.model.settings import CompilerSettings, Knowledge
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Described, Description, Verdict, VerdictKey
from supervisor_middleware.model.violation import Advice, Report, Violation, merge, report
from supervisor_middleware.sources.folder import UNDATED

_MAX_PAIRED: Final = 100
"""Policies of one namespace that are compared pair by pair when no sandbox says which ones meet."""


T = TypeVar("T")
Policy: TypeAlias = tuple[PolicyDraft, list[Violation]]
"""A policy as far as it can be read, with every structural violation: drafted once, then asked about and judged."""
Progress: TypeAlias = Callable[[int, int], None]
"""Hears of what is done, of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The registrations of a folder as far as they are accepted."""

    bindings: Bindings
    pending: tuple[str, ...]
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
    pending: list[str] = []
    for draft in drafts:
        registration, found = None, Report()
        if draft.uid in descriptions:
            registration, found = accept_registration(draft, descriptions[draft.uid], others=accepted, drafts=drafts)
        reports.append(found)
        if registration is None:
            pending.append(draft.name)
        else:
            accepted.append(registration)
    known = {d.name for d in drafts}
    accepted.extend(_elsewhere(name, manifest) for name, manifest in sorted(manifests.items()) if name not in known)
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
    for draft, structural in _counted(policies, progress):
        given = PolicyInput(
            draft=draft, bindings=registry.bindings, verdicts=verdicts, settings=settings, pending=registry.pending
        )
        compiled.append(compile_draft(given, structural))
    revisions = [p.revision for p in compiled if p.revision is not None]
    sandboxes = snapshot.sandboxes
    together = report(
        _conflicts(sandboxes, revisions, bindings=registry.bindings, settings=settings),
        _possible_conflicts(sandboxes, revisions, bindings=registry.bindings, settings=settings),
    )
    return tuple(compiled), merge((*(p.report for p in compiled), together))


def _counted(items: Sequence[T], progress: Progress) -> Iterator[T]:
    for number, item in enumerate(items):
        progress(number, len(items))
        yield item


def _elsewhere(name: str, manifest: Manifest) -> Registration:
    """A registration that is kept in another place, as far as its manifest tells."""
    limit = min((b.max_body_bytes for b in manifest.bindings), default=0)
    connection = Connection(endpoint="https://recorded.invalid:443", timeout=timedelta(milliseconds=500))
    return Registration(
        name=name,
        uid=f"recorded-{name}",
        created_at=UNDATED,
        connection=connection,
        max_body_bytes=limit,
        manifest=manifest,
    )


def _conflicts(
    sandboxes: Iterable[Sandbox], revisions: Iterable[Revision], *, bindings: Bindings, settings: CompilerSettings
) -> Iterator[Violation]:
    of = _by_namespace(revisions)
    alike = {(s.namespace, tuple(sorted(s.labels.items()))): s for s in sandboxes}
    for sandbox in alike.values():
        chosen = [r for r in of.get(sandbox.namespace, ()) if selects(r, sandbox, namespace_labels={})]
        yield from _clashes(sandbox, chosen, bindings=bindings, settings=settings)


def _possible_conflicts(
    sandboxes: Iterable[Sandbox], revisions: Iterable[Revision], *, bindings: Bindings, settings: CompilerSettings
) -> Iterator[Advice]:
    """In namespaces whose sandboxes are not known here: what would clash if one sandbox had both sets of labels."""
    known = {s.namespace for s in sandboxes}
    for namespace, found in _by_namespace(revisions).items():
        pairs = combinations(found[:_MAX_PAIRED], 2) if namespace not in known else ()
        for pair in pairs:
            labels = {k: v for r in pair for k, v in _labels(r)}
            sandbox = Sandbox(namespace=namespace, name="any", labels=labels)
            both = [r for r in pair if selects(r, sandbox, namespace_labels={})]
            for clash in _clashes(sandbox, both, bindings=bindings, settings=settings):
                message = f"would conflict where a sandbox is selected by both policies: {clash.message}"
                yield Advice(subject=clash.subject, path=clash.path, message=message)


def _clashes(
    sandbox: Sandbox, revisions: list[Revision], *, bindings: Bindings, settings: CompilerSettings
) -> Iterator[Violation]:
    """Who conflicts, asked once with each end as the older: nobody knows yet which of them will stand."""
    if len(revisions) < 2:
        return
    for ordered in (revisions, revisions[::-1]):
        dated = [replace(r, created_at=UNDATED + timedelta(seconds=n)) for n, r in enumerate(ordered)]
        _, found = compose(sandbox, dated, namespace_labels={}, bindings=bindings, settings=settings)
        yield from found.violations


def _by_namespace(revisions: Iterable[Revision]) -> dict[str, list[Revision]]:
    ordered = sorted(revisions, key=lambda r: (r.policy.namespace or "", r.policy.name))
    return {namespace: list(group) for namespace, group in groupby(ordered, key=lambda r: r.policy.namespace or "")}


def _labels(revision: Revision) -> Iterator[tuple[str, str]]:
    """Labels that satisfy a selector's positive requirements."""
    for requirement in revision.selector.requirements:
        if requirement.operator is Operator.IN and requirement.values:
            yield requirement.key, requirement.values[0]
        elif requirement.operator is Operator.EXISTS:
            yield requirement.key, ""
