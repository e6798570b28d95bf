"""An `AdmissionReview` as values. PURE: JSON in, a review out; a decision in, JSON out.

Whoever reaches the port may send anything, so nothing here is believed to have the right form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.sandbox import GROUP
from supervisor_middleware.model.snapshot import Kind, Stored
from supervisor_middleware.model.violation import Report, Subject

_MAX_CAUSES: Final = 32
_MAX_UID: Final = 128
_MAX_NAME: Final = 253
_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"


class Operation(StrEnum):
    """The operations we may be asked about."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    """Not ours to judge, and never in anybody's way: with the operator gone, objects still delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """An `AdmissionReview` request. `stored` is what is to be, `old` what was; of a deletion they are the same."""

    uid: str
    operation: Operation
    stored: Stored
    old: Stored | None

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing of the spec changes: nothing to judge, nobody to ask."""
        return self.old is not None and self.old.spec == self.stored.spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer."""

    is_allowed: bool
    message: str = ""
    is_retryable: bool = False
    warnings: tuple[str, ...] = ()
    violations: Report = Report()  # noqa: RUF009 - a frozen value
    met: tuple[Subject, ...] = ()
    """Policies it was compared with: what a conflict is with is one of them."""


ALLOWED: Final = Decision(is_allowed=True)


def parse_review(body: object, *, now: datetime) -> Review:
    """Read a request.

    Raises:
        InvalidInput: it is no `AdmissionReview` v1 about a kind and operation of ours.
    """
    review = _mapping(body)
    request = _mapping(review.get("request"))
    uid = request.get("uid")
    if (review.get("apiVersion"), review.get("kind")) != (_API_VERSION, _KIND):
        raise InvalidInput("the body is not an AdmissionReview v1")
    if not isinstance(uid, str) or not 1 <= len(uid) <= _MAX_UID:
        raise InvalidInput("the request has no UID")
    try:
        operation = Operation(str(request.get("operation")))
        kind = Kind(str(_mapping(request.get("kind")).get("kind")))
    except ValueError:
        raise InvalidInput("this webhook reviews CREATE and UPDATE of our kinds only") from None
    old = request.get("oldObject")
    new = old if operation is Operation.DELETE else request.get("object")
    if not isinstance(new, Mapping):
        raise InvalidInput("the request holds no object")
    return Review(
        uid=uid,
        operation=operation,
        stored=_stored(request, new, kind=kind, now=now),
        old=_stored(request, old, kind=kind, now=now) if isinstance(old, Mapping) else None,
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
    return {"apiVersion": _API_VERSION, "kind": _KIND, "response": answer}


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


def _stored(request: Mapping[str, Any], body: Mapping[str, Any], *, kind: Kind, now: datetime) -> Stored:
    metadata = _mapping(body.get("metadata"))
    name = metadata.get("name") or request.get("name") or metadata.get("generateName") or "(unnamed)"
    generation = metadata.get("generation")
    return Stored(
        subject=Subject(kind=kind.value, namespace=_name(request.get("namespace") or "") or None, name=_name(name)),
        uid=str(metadata.get("uid") or "")[:_MAX_UID],
        generation=generation if isinstance(generation, int) else 0,
        created_at=_time(metadata.get("creationTimestamp"), now),
        spec=body.get("spec") or {},
        status=_mapping(body.get("status")),
    )


def _name(text: object) -> str:
    """As it may be logged: the API server checked it, a forger did not."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:_MAX_NAME])


def _time(text: object, now: datetime) -> datetime:
    try:
        time = datetime.fromisoformat(str(text)) if text else now
    except ValueError:
        return now
    return now if time.tzinfo is None else time


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
