"""What is wrong with an object, said so that its author can mend it. PURE.

A *violation* is a problem found by validation (a *finding* is a data-plane observation, see `evaluation`).
The same text reaches people from the CLI, the webhook and the status. Paths are shown, values never:
a config may hold secrets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a violation was raised; stable, CamelCase, safe for status, metrics and logs."""

    MALFORMED = "Malformed"
    UNKNOWN_FIELD = "UnknownField"
    MISSING_FIELD = "MissingField"
    OUT_OF_RANGE = "OutOfRange"
    TOO_MANY = "TooMany"
    TOO_LARGE = "TooLarge"
    INVALID_PATTERN = "InvalidPattern"
    INVALID_TIMEOUT = "InvalidTimeout"
    INVALID_ENDPOINT = "InvalidEndpoint"
    INVALID_CA_BUNDLE = "InvalidCABundle"
    INSECURE_TRANSPORT = "InsecureTransport"
    RESERVED_NAMESPACE = "ReservedNamespace"
    SELECTS_SKIPPED_HOST = "SelectsSkippedHost"
    DUPLICATE_NAME = "DuplicateName"
    DUPLICATE_ORDER = "DuplicateOrder"
    UNKNOWN_BINDING = "UnknownBinding"
    DUPLICATE_BINDING = "DuplicateBinding"
    INVALID_MANIFEST = "InvalidManifest"
    LIMIT_EXCEEDS_MANIFEST = "LimitExceedsManifest"
    CONFIG_REJECTED = "ConfigRejected"
    SERVICE_UNREACHABLE = "ServiceUnreachable"
    TLS_VERIFICATION_FAILED = "TLSVerificationFailed"
    REFERENCE_NOT_FOUND = "ReferenceNotFound"
    CONFLICTED = "Conflicted"


RETRYABLE: frozenset[Reason] = frozenset({Reason.SERVICE_UNREACHABLE, Reason.TLS_VERIFICATION_FAILED})
"""Reasons that may go away without the author changing anything: GitOps tools retry."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Subject:
    """The object a violation is about."""

    kind: str
    namespace: str | None = None
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One problem: which object, which field path, what is allowed, what to do next.

    `message` names the limit and the allowed values in the platform's own words. `detail` is the only place
    for a service's words (`ValidateConfig`'s reason, at most 160 characters): the webhook and the CLI show it
    to the person who submitted the policy; status, logs and events never do.
    """

    subject: Subject
    path: str
    reason: Reason
    message: str
    hint: str = ""
    detail: str = ""

    @property
    def is_retryable(self) -> bool:
        """Whether trying again later may succeed without an edit."""
        return self.reason in RETRYABLE

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        if self.detail:
            text += f' (the service says: "{self.detail}")'
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Worth knowing, not wrong: admitted, and shown as an admission warning."""

    subject: Subject
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that validation has to say, sorted, so that the same inputs give the same text."""

    violations: tuple[Violation, ...] = ()
    warnings: tuple[Advice, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether nothing is wrong (warnings may remain)."""
        return not self.violations

    @property
    def is_retryable(self) -> bool:
        """Whether every violation may go away without an edit."""
        return bool(self.violations) and all(v.is_retryable for v in self.violations)


_NOTHING: Final = Report()


def report(violations: Iterable[Violation], warnings: Iterable[Advice] = ()) -> Report:
    """Sort and de-duplicate into a `Report`."""
    found = Report(
        violations=tuple(sorted(dict.fromkeys(violations), key=_violation_key)),
        warnings=tuple(sorted(dict.fromkeys(warnings), key=lambda w: (_subject_key(w.subject), w.path, w.message))),
    )
    # Of thousands of policies the same is said: nothing.
    return found if found.violations or found.warnings else _NOTHING


def merge(reports: Iterable[Report]) -> Report:
    """One report of many."""
    found = tuple(reports)
    return report((v for r in found for v in r.violations), (w for r in found for w in r.warnings))


def _subject_key(subject: Subject) -> tuple[str, str, str]:
    return (subject.kind, subject.namespace or "", subject.name)


def _violation_key(violation: Violation) -> tuple[tuple[str, str, str], str, str, str]:
    return (_subject_key(violation.subject), violation.path, violation.reason, violation.message)
