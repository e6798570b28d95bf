"""A policy in, a revision or a report out. PURE.

`compile_policy` is one of the two functions the product hangs on (`compose` is the other); `smw validate`, the
webhook, the reconciler and standalone all call it, so they cannot disagree.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor_middleware.compiler.advice import ADVICE
from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.checks import CHECKS, PolicyInput
from supervisor_middleware.compiler.drafts import EntryDraft, PolicyDraft, draft_policy
from supervisor_middleware.compiler.questions import question_for
from supervisor_middleware.errors import Bug
from supervisor_middleware.model.limits import MAX_REVISION_BYTES
from supervisor_middleware.model.revision import Entry, Revision
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.verdict import Verdict, VerdictKey
from supervisor_middleware.model.violation import Reason, Report, Violation, report


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPolicy:
    """The outcome: a revision only if nothing is wrong, and its digest (computed once: it is dear)."""

    draft: PolicyDraft
    revision: Revision | None
    digest: str = ""
    report: Report


def compile_policy(
    stored: Stored,
    *,
    bindings: Bindings,
    verdicts: Mapping[VerdictKey, Verdict],
    settings: CompilerSettings,
    accepted: Revision | None = None,
    pending: tuple[str, ...] = (),
) -> CompiledPolicy:
    """Check everything, then build the revision.

    `accepted` is the policy's last-known-good: what it already holds stays accepted while a service is down.
    `pending` names registrations that are not accepted yet, for the hint.
    """
    draft, violations = draft_policy(stored)
    given = PolicyInput(
        draft=draft, bindings=bindings, verdicts=verdicts, settings=settings, accepted=accepted, pending=pending
    )
    return compile_draft(given, violations)


def compile_draft(given: PolicyInput, structural: Iterable[Violation]) -> CompiledPolicy:
    """The same of a policy that was read before, with the `structural` violations that showed."""
    violations = [*structural, *(v for check in CHECKS for v in check(given))]
    revision = None if violations else _revision(given.draft, given.bindings)
    if revision is not None and revision.size > MAX_REVISION_BYTES:
        violations.append(_too_large(given, revision.size))
        revision = None
    return CompiledPolicy(
        draft=given.draft,
        revision=revision,
        digest="" if revision is None else revision.digest,
        report=report(violations, (a for rule in ADVICE for a in rule(given))),
    )


def _revision(draft: PolicyDraft, bindings: Bindings) -> Revision:
    if draft.selector is None:
        raise Bug("a policy without violations has no selector")
    entries = sorted((_entry(e, bindings) for e in draft.entries), key=lambda e: (e.order, e.key))
    return Revision(
        policy=draft.subject,
        uid=draft.uid,
        generation=draft.generation,
        created_at=draft.created_at,
        selector=draft.selector,
        entries=tuple(entries),
        activation_deadline=draft.activation_deadline,
        position=draft.position,
        skips=draft.skips,
    )


def _entry(entry: EntryDraft, bindings: Bindings) -> Entry:
    if entry.middleware is None or entry.order is None or entry.config is None or entry.include is None:
        raise Bug("a policy without violations has an entry that cannot be read")
    question = question_for(entry, bindings.find(entry.middleware))
    return Entry(
        key=entry.key,
        label=entry.label,
        binding=entry.middleware,
        order=entry.order,
        config=entry.config,
        on_error=entry.on_error,
        include=entry.include,
        exclude=entry.exclude,
        verdict="" if question is None else question.digest,
    )


def _too_large(given: PolicyInput, size: int) -> Violation:
    return given.violation(
        "spec",
        Reason.TOO_LARGE,
        message=f"the policy is {size} bytes compiled, the limit is {MAX_REVISION_BYTES}",
        hint="keep large data in the services",
    )
