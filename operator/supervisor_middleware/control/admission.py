"""What the webhook answers. PURE: a review in, a decision out; the same compiler as everybody else.

All that is wrong is said at once, each with its field path. A service's own words appear here and nowhere else: the
person who submitted the object is the one who can act on them. Nothing is resolved that the reviewed object could
point at (a CA bundle that is not known is a warning), so a forged review reveals nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import CompiledPolicy, compile_policy
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.compiler.registration import RegistrationDraft, accept_registration, draft_registration
from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.control.acceptances import Acceptance
from supervisor_middleware.control.foresight import Foresight, foresee
from supervisor_middleware.control.registrations import RegistrationDecision, Registry
from supervisor_middleware.control.reviews import ALLOWED, Decision, Operation, Review
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.identifiers import some_of
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings, Disclosure
from supervisor_middleware.model.snapshot import POLICY_KINDS, Kind, Snapshot
from supervisor_middleware.model.verdict import Accepted, Described, Verdict, VerdictKey
from supervisor_middleware.model.violation import Advice, Reason, Report, Subject, merge, report

_MAX_WARNING: Final = 250
_MAX_MESSAGE: Final = 16_000
_ENOUGH_ENDPOINTS: Final = 2
_MAX_NAMED: Final = 5
"""Policies that are named where many are affected."""


def open_questions(
    review: Review, acceptance: Acceptance, *, registry: Registry, verdicts: Mapping[VerdictKey, Verdict]
) -> tuple[Question, ...]:
    """What services must be asked for this review: not what they said yes to before."""
    if _is_free(review) or review.stored.subject.kind not in POLICY_KINDS:
        return ()
    draft, _ = draft_policy(review.stored)
    accepted = acceptance.of(review.stored.uid)
    asked = questions(draft, registry.bindings, accepted=None if accepted is None else accepted.revision)
    return tuple(q for q in asked if not isinstance(verdicts.get(q.key), Accepted))


def decide_review(
    review: Review,
    snapshot: Snapshot,
    *,
    acceptance: Acceptance,
    registry: Registry,
    verdicts: Mapping[VerdictKey, Verdict],
    settings: CompilerSettings,
    disclosure: Disclosure = Disclosure.NAMES,
) -> Decision:
    """Allow, or deny with every violation. `acceptance` is the snapshot's."""
    if _is_free(review):
        return ALLOWED
    subject = review.stored.subject
    match subject.kind:
        case Kind.SANDBOX_POLICY | Kind.CLUSTER_SANDBOX_POLICY if Kind.SUPERVISOR_MIDDLEWARE in snapshot.unknown:
            message = f"{subject} cannot be judged: registrations cannot be read now; try again"
            return Decision(is_allowed=False, is_retryable=True, message=message)
        case Kind.SANDBOX_POLICY | Kind.CLUSTER_SANDBOX_POLICY:
            compiled = _compile(review, acceptance, registry=registry, verdicts=verdicts, settings=settings)
            if compiled.revision is None:
                return decision_of(subject, compiled.report)
            foreseen = _foresee(compiled.revision, review, snapshot, acceptance)
            fragile = _fragile(compiled.revision, snapshot, registry=registry, disclosure=disclosure)
            broken = _broken(compiled.revision, foreseen.broken, disclosure=disclosure)
            found = merge((compiled.report, foreseen.own, report((), (*fragile, *broken))))
            return replace(decision_of(subject, found), met=foreseen.met)
        case Kind.SUPERVISOR_MIDDLEWARE:
            found = _judge_registration(review, snapshot, registry=registry, settings=settings)
        case _:
            return ALLOWED
    return decision_of(subject, found)


def decision_of(subject: Subject, found: Report) -> Decision:
    """A report as an answer."""
    warnings = tuple(_clip(str(w), _MAX_WARNING) for w in found.warnings)
    if found.is_valid:
        return Decision(is_allowed=True, warnings=warnings)
    count = len(found.violations)
    lines = "\n".join(f"- {v}" for v in found.violations)
    text = f"{subject} has {count} violation{'s' if count > 1 else ''}:\n{lines}"
    if found.is_retryable:
        text += "\nNothing is wrong with the object itself: apply it again when the service is back."
    return Decision(
        is_allowed=False,
        message=_clip(text, _MAX_MESSAGE),
        is_retryable=found.is_retryable,
        warnings=warnings,
        violations=found,
    )


def _is_free(review: Review) -> bool:
    return review.operation is Operation.DELETE or review.is_unchanged


def _compile(
    review: Review,
    acceptance: Acceptance,
    *,
    registry: Registry,
    verdicts: Mapping[VerdictKey, Verdict],
    settings: CompilerSettings,
) -> CompiledPolicy:
    mine = acceptance.of(review.stored.uid)
    return compile_policy(
        review.stored,
        bindings=registry.bindings,
        verdicts=verdicts,
        settings=settings,
        accepted=None if mine is None else mine.revision,
        pending=registry.pending,
    )


def _foresee(revision: Revision, review: Review, snapshot: Snapshot, acceptance: Acceptance) -> Foresight:
    mine = acceptance.of(review.stored.uid)
    # One of the same name is a predecessor whose deletion has not been seen yet (`kubectl replace --force`).
    others = (r.revision for r in acceptance.by_policy.values() if r.revision.policy != review.stored.subject)
    return foresee(revision, before=None if mine is None else mine.revision, others=others, snapshot=snapshot)


def _fragile(
    revision: Revision, snapshot: Snapshot, *, registry: Registry, disclosure: Disclosure
) -> Iterator[Advice]:
    """FailClosed hosts stand and fall with a service: with one endpoint each restart of it is an outage."""
    endpoints = {r.accepted.name: r.stored.spec.get("grpcEndpoint") for r in registry.registrations if r.accepted}
    for entry in revision.entries:
        bound = registry.bindings.find(entry.binding)
        if bound is None or bound.registration is None or entry.on_error is not OnError.FAIL_CLOSED:
            continue
        name = bound.registration.name
        ready = snapshot.ready_endpoints.get(str(endpoints.get(name)))
        if ready is not None and ready < _ENOUGH_ENDPOINTS:
            count = str(ready) if disclosure is Disclosure.NAMES else f"fewer than {_ENOUGH_ENDPOINTS}"
            yield Advice(
                subject=revision.policy,
                path=path_of(("spec", "networkMiddlewares", entry.key, "middleware")),
                message=f"service {name} has {count} ready endpoints; at each restart FailClosed refuses requests",
            )


def _broken(revision: Revision, broken: tuple[Subject, ...], *, disclosure: Disclosure) -> Iterator[Advice]:
    """Nobody can veto an older policy, nor a tenant a baseline: a warning names whom it ends, or counts them."""
    fellows = [s for s in broken if s.kind == revision.policy.kind]
    tenants = [f"{s.namespace}/{s.name}" for s in broken if s.kind != revision.policy.kind]
    if fellows:
        message = "would conflict with this older policy for the same sandboxes, and no longer run"
        yield Advice(
            subject=revision.policy,
            path="spec",
            message=f"{some_of(list(map(str, fellows)), limit=_MAX_NAMED)} {message}",
        )
    if tenants:
        message = (
            f"affects {len(tenants)} of the tenants' policies, which would conflict with this baseline for the same "
            "sandboxes and no longer run"
        )
        message += (
            f": {some_of(tenants, limit=_MAX_NAMED)}"
            if disclosure is Disclosure.NAMES
            else " (their conditions will tell)"
        )
        yield Advice(subject=revision.policy, path="spec", message=message)


def _judge_registration(
    review: Review, snapshot: Snapshot, *, registry: Registry, settings: CompilerSettings
) -> Report:
    """Never dials: the manifest is what was accepted, if the endpoint is the same."""
    draft, found = draft_registration(review.stored, bundles=snapshot.bundles, settings=settings)
    mine = next((r for r in registry.registrations if r.stored.uid == review.stored.uid), None)
    described = None if mine is None else _described(mine, draft)
    if described is not None:
        others = [r.accepted for r in registry.registrations if r.accepted is not None]
        drafts = [r.draft for r in registry.registrations]
        _, judged = accept_registration(described[0], Described(described[1]), others=others, drafts=drafts)
        found = merge((found, judged))
    return _without_references(found)


def _described(mine: RegistrationDecision, draft: RegistrationDraft) -> tuple[RegistrationDraft, Manifest] | None:
    """The reviewed draft as far as it can be judged, and the manifest to judge it by."""
    accepted = mine.accepted
    if accepted is None or not draft.is_of(accepted.connection.endpoint):
        return None
    if mine.offered is not None and mine.draft.is_of(accepted.connection.endpoint):
        return draft, mine.offered
    # What was accepted tells nothing of IDs that were not: they are judged when the service is described.
    known = tuple(i for i in draft.declared_bindings if accepted.binding(i) is not None)
    is_unknown = bool(draft.declared_bindings) and not known
    return None if is_unknown else (replace(draft, declared_bindings=known), accepted.manifest)


_UNREAD: Final = "was not read yet: the condition Accepted will tell"


def _without_references(found: Report) -> Report:
    """A reference may be created after what refers to it: a warning here, a condition later."""
    missing = [v for v in found.violations if v.reason is Reason.REFERENCE_NOT_FOUND]
    advice = [Advice(subject=v.subject, path=v.path, message=f"{v.message} yet, or {_UNREAD}") for v in missing]
    rest = [v for v in found.violations if v.reason is not Reason.REFERENCE_NOT_FOUND]
    return report(rest, (*found.warnings, *advice))


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
