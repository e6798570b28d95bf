"""A policy as far as it can be read. PURE: typed, and lenient where something is wrong (that is in the report)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from supervisor_middleware.compiler.configs import NOTHING, Measure, measure
from supervisor_middleware.compiler.endpoints import EndpointDraft, draft_endpoints
from supervisor_middleware.compiler.structure import parse, path_of
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.compact import expanded
from supervisor_middleware.model.durations import parse_deadline
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.policy_resources import ClusterSandboxPolicySpec, PolicySpec, SandboxPolicySpec
from supervisor_middleware.model.revision import BASELINE_KIND, Entry, Position, Revision, Skip, Unresolved
from supervisor_middleware.model.selectors import Operator, Requirement, Selector
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.violation import Subject, Violation

EVERYTHING: Final = ("**",)
"""Hosts of an entry whose selector cannot be read: closed for all of them, since it may have meant any."""

_FORMS: Final[Mapping[str, tuple[type[PolicySpec], str]]] = {
    "SandboxPolicy": (SandboxPolicySpec, "sandboxSelector"),
    BASELINE_KIND: (ClusterSandboxPolicySpec, "namespaceSelector"),
}
"""By kind: how a policy is written, and which field selects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDraft:
    """One config; None where the field is missing or wrong."""

    key: str
    label: str
    middleware: str | None
    order: int | None
    config: JsonObject | None = field(repr=False)
    measure: Measure
    on_error: OnError
    include: tuple[str, ...] | None
    exclude: tuple[str, ...]

    @property
    def askable_digest(self) -> str | None:
        """Digest of the config if a service can be asked about it."""
        return self.measure.digest if self.config is not None and self.measure.is_askable else None

    def path(self, *fields: str | int) -> str:
        """Where the entry, or a field of it, stands."""
        return path_of(("spec", "networkMiddlewares", self.key, *fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDraft:
    """A policy of either kind; `selector` (of sandboxes, a baseline's of namespaces) None where it cannot be read."""

    subject: Subject
    uid: str
    generation: int
    created_at: datetime
    selector: Selector | None
    activation_deadline: timedelta | None
    entries: tuple[EntryDraft, ...]
    position: Position = Position.FIRST
    endpoints: tuple[EndpointDraft, ...] = ()

    @property
    def is_baseline(self) -> bool:
        """Whether it is the platform's."""
        return self.subject.kind == BASELINE_KIND

    @property
    def skips(self) -> tuple[Skip, ...]:
        """The hosts nobody can look into, in an order that does not depend on how the policy is written."""
        found = (Skip(path=e.path, host=str(e.host)) for e in self.endpoints if e.is_skipped and e.host is not None)
        return tuple(sorted(found, key=lambda s: s.path))

    def as_unresolved(self) -> Revision | None:
        """What sandboxes run of a policy that was never accepted: its hosts follow `onError`, nothing vanishes.

        None if not even the selector can be read: then its scope is unknown and empty.
        """
        if self.selector is None:
            return None
        return Revision(
            policy=self.subject,
            uid=self.uid,
            generation=self.generation,
            created_at=self.created_at,
            selector=self.selector,
            entries=tuple(sorted(map(_unresolved, self.entries), key=lambda e: (e.order, e.key))),
            position=self.position,
        )


def draft_policy(stored: Stored) -> tuple[PolicyDraft, list[Violation]]:
    """Read a policy as far as possible, with every structural violation."""
    model, selector = _FORMS[stored.subject.kind]
    written = expanded(stored.spec)
    violations, wrong = parse(model, written, subject=stored.subject)
    spec: Mapping[str, Any] = written if isinstance(written, Mapping) else {}
    endpoints, doubtful = draft_endpoints(spec, subject=stored.subject)
    violations.extend(doubtful)
    raw_entries = spec.get("networkMiddlewares")
    entries = raw_entries.items() if isinstance(raw_entries, Mapping) else ()
    deadline = spec.get("activationDeadline")
    draft = PolicyDraft(
        subject=stored.subject,
        uid=stored.uid,
        generation=stored.generation,
        created_at=stored.created_at,
        selector=None if _is_wrong(wrong, selector) else _selector(spec[selector]),
        activation_deadline=(
            None if deadline is None or _is_wrong(wrong, "activationDeadline") else parse_deadline(deadline)
        ),
        entries=tuple(_entry(_unicode(key), raw, wrong=wrong) for key, raw in entries if isinstance(key, str)),
        position=Position.FIRST if _is_wrong(wrong, "position") else Position(spec.get("position") or Position.FIRST),
        endpoints=endpoints,
    )
    return draft, violations


def _unicode(key: str) -> str:
    """A key as validation reports it; one that is not Unicode could not be written into a generation."""
    return key.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _is_wrong(wrong: frozenset[tuple[str | int, ...]], *location: str) -> bool:
    """Whether anything at or under `location`, or anything that contains it whole, is wrong."""
    return any(w[: len(location)] == location[: len(w)] for w in wrong)


def _entry(key: str, raw: object, *, wrong: frozenset[tuple[str | int, ...]]) -> EntryDraft:
    fields: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}

    def right(name: str) -> Any:
        return None if _is_wrong(wrong, "networkMiddlewares", key, name) else fields.get(name)

    endpoints: Mapping[str, Any] = right("endpoints") or {}
    on_error, order, config = right("onError"), right("order"), right("config")
    if fields.get("config") is None and fields:
        config = {}  # null is absent: the API server drops it
    return EntryDraft(
        key=key,
        label=right("name") or key,
        middleware=right("middleware"),
        order=order if order is not None else (0 if "order" not in fields and fields else None),
        config=config,
        measure=NOTHING if config is None else measure(config),
        on_error=OnError(on_error) if on_error else OnError.FAIL_CLOSED,
        include=tuple(p.lower() for p in endpoints["include"]) if endpoints else None,
        exclude=tuple(p.lower() for p in endpoints.get("exclude") or ()),
    )


def _selector(raw: Mapping[str, Any]) -> Selector:
    equal = (Requirement(key=k, operator=Operator.IN, values=(v,)) for k, v in (raw.get("matchLabels") or {}).items())
    expressions = (
        Requirement(key=e["key"], operator=Operator(e["operator"]), values=tuple(sorted(e.get("values") or ())))
        for e in raw.get("matchExpressions") or ()
    )
    ordered = sorted((*equal, *expressions), key=lambda r: (r.key, r.operator, r.values))
    return Selector(requirements=tuple(ordered))


def _unresolved(entry: EntryDraft) -> Entry:
    return Entry(
        key=entry.key,
        label=entry.label,
        binding=entry.middleware or "",
        order=entry.order or 0,
        on_error=entry.on_error,
        include=entry.include or EVERYTHING,
        exclude=entry.exclude if entry.include else (),
        unresolved=Unresolved.NEVER_ACCEPTED,
    )
