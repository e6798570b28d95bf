"""What the webhook answers. PURE: a review in, a decision out; the same compiler as everybody else.

All that is wrong is said at once, each with its field path. A service's own words appear here and nowhere else: the
person who submitted the object is the one who can act on them. Nothing is resolved that the reviewed object could
point at (a CA bundle that is not known is a warning), so a forged review reveals nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.compiler.registration import draft_registration
from supervisor_middleware.control.decisions import accepted_by_policy
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.sandbox import GROUP
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Kind, Snapshot, Stored
from supervisor_middleware.model.verdict import Verdict, VerdictKey
from supervisor_middleware.model.violation import Advice, Reason, Report, Subject, report

_MAX_WARNING: Final = 250
_MAX_MESSAGE: Final = 16_000
_MAX_CAUSES: Final = 32


class Operation(StrEnum):
    """The operations we are asked about. DELETE never comes here: with the operator gone, objects still delete."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """An `AdmissionReview` request."""

    uid: str
    operation: Operation
    stored: Stored
    old: Stored | None

    @property
    def is_unchanged(self) -> bool:
        """Whether only metadata or status change: nothing to judge, nobody to ask."""
        return self.old is not None and self.old.spec == self.stored.spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer."""

    is_allowed: bool
    message: str = ""
    is_retryable: bool = False
    warnings: tuple[str, ...] = ()
    violations: Report = Report()  # noqa: RUF009 - a frozen value


ALLOWED: Final = Decision(is_allowed=True)


def parse_review(body: object, *, now: datetime) -> Review:
    """Read a request.

    Raises:
        InvalidInput: it is no `AdmissionReview` v1 about a kind and operation of ours.
    """
    request = body.get("request") if isinstance(body, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise InvalidInput("the body is not an AdmissionReview with a request")
    try:
        operation = Operation(str(request.get("operation")))
        kind = Kind(str((request.get("kind") or {}).get("kind")))
    except ValueError:
        raise InvalidInput("this webhook reviews CREATE and UPDATE of our kinds only") from None
    if not isinstance(request.get("object"), Mapping):
        raise InvalidInput("the request holds no object")
    old = request.get("oldObject")
    return Review(
        uid=request["uid"],
        operation=operation,
        stored=_stored(request, request["object"], kind=kind, now=now),
        old=_stored(request, old, kind=kind, now=now) if isinstance(old, Mapping) else None,
    )


def open_questions(review: Review, bindings: Bindings) -> tuple[Question, ...]:
    """What services must be asked for this review."""
    if review.is_unchanged or review.stored.subject.kind != Kind.SANDBOX_POLICY:
        return ()
    draft, _ = draft_policy(review.stored)
    return questions(draft, bindings)


def decide_review(
    review: Review,
    snapshot: Snapshot,
    *,
    bindings: Bindings,
    verdicts: Mapping[VerdictKey, Verdict],
    settings: CompilerSettings,
    pending: tuple[str, ...] = (),
) -> Decision:
    """Allow, or deny with every violation."""
    if review.is_unchanged:
        return ALLOWED
    match review.stored.subject.kind:
        case Kind.SANDBOX_POLICY:
            accepted = accepted_by_policy(snapshot).get(review.stored.uid)
            found = compile_policy(
                review.stored,
                bindings=bindings,
                verdicts=verdicts,
                settings=settings,
                accepted=None if accepted is None else accepted.revision,
                pending=pending,
            ).report
        case Kind.SUPERVISOR_MIDDLEWARE:
            _, found = draft_registration(review.stored, bundles=snapshot.bundles, settings=settings)
            found = _without_references(found)
        case _:
            return ALLOWED
    return decision_of(review.stored.subject, found)


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


def response(review_uid: str, decision: Decision) -> dict[str, Any]:
    """The `AdmissionReview` to send back."""
    answer: dict[str, Any] = {"uid": review_uid, "allowed": decision.is_allowed}
    if decision.warnings:
        answer["warnings"] = list(decision.warnings)
    if not decision.is_allowed:
        code, reason = (503, "ServiceUnavailable") if decision.is_retryable else (422, "Invalid")
        answer["status"] = {
            "code": code,
            "reason": reason,
            "message": decision.message,
            "details": _details(decision),
        }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


def _details(decision: Decision) -> dict[str, Any]:
    """For machines, and for kubectl: of an `Invalid` answer it shows kind, name and causes, and not the message.

    So a cause says all that the message says of a violation: hint and the service's words included.
    """
    violations = decision.violations.violations
    causes = [{"reason": v.reason.value, "field": v.path, "message": str(replace(v, path=""))} for v in violations]
    details: dict[str, Any] = {"causes": causes[:_MAX_CAUSES]}
    if violations:
        details |= {"group": GROUP, "kind": violations[0].subject.kind, "name": violations[0].subject.name}
    return details


def _without_references(found: Report) -> Report:
    """A reference may be created after what refers to it: a warning here, a condition later."""
    missing = [v for v in found.violations if v.reason is Reason.REFERENCE_NOT_FOUND]
    advice = [Advice(subject=v.subject, path=v.path, message=f"{v.message} yet") for v in missing]
    rest = [v for v in found.violations if v.reason is not Reason.REFERENCE_NOT_FOUND]
    return report(rest, (*found.warnings, *advice))


def _stored(request: Mapping[str, Any], body: Mapping[str, Any], *, kind: Kind, now: datetime) -> Stored:
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    namespace = request.get("namespace") or None
    name = metadata.get("name") or request.get("name") or metadata.get("generateName") or "(unnamed)"
    spec, status = body.get("spec"), body.get("status")
    return Stored(
        subject=Subject(kind=kind.value, namespace=namespace, name=str(name)),
        uid=str(metadata.get("uid") or ""),
        generation=int(metadata.get("generation") or 0),
        created_at=_time(metadata.get("creationTimestamp"), now),
        spec=spec if isinstance(spec, Mapping) else {},
        status=status if isinstance(status, Mapping) else {},
    )


def _time(text: object, now: datetime) -> datetime:
    try:
        return datetime.fromisoformat(str(text)) if text else now
    except ValueError:
        return now


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
