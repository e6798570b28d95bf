"""The generation of one sandbox out of accepted revisions. PURE; the other of the two central functions.

A sandbox's generation is a function of the revisions that select it, the accepted registrations and its labels.
One rule for an entry that cannot run: it stays as an unresolved stage, whose `FailClosed` hosts are denied and whose
`FailOpen` ones are bypassed and audited. Nothing a user declared ever vanishes silently.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.hosts import HostSelector, parse_patterns
from supervisor_middleware.model.limits import MAX_STAGES, TIMEOUT_DEFAULT
from supervisor_middleware.model.manifest import Binding
from supervisor_middleware.model.revision import Entry, Revision
from supervisor_middleware.model.revision import Unresolved as Why
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings, Unselected
from supervisor_middleware.model.violation import Reason, Report, Violation, report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layered:
    """An entry with the policy it comes from."""

    policy: str
    entry: Entry
    deadline: timedelta | None


def compose(
    sandbox: Sandbox, revisions: Iterable[Revision], *, bindings: Bindings, settings: CompilerSettings
) -> tuple[Generation, Report]:
    """What `sandbox` runs, and which policies conflict there.

    `revisions` may be of any policies; those that select the sandbox take part. Of two that conflict the older
    stands (creation time, then namespace and name).
    """
    selecting = sorted(
        (r for r in revisions if selects(r, sandbox)),
        key=lambda r: (r.created_at, r.policy.namespace or "", r.policy.name),
    )
    layered, violations = _layer(selecting)
    stages = tuple(_stage(item, bindings.find(item.entry.binding)) for item in layered)
    if not selecting and settings.unselected is Unselected.DENY:
        stages = (_closed("unselected", Why.UNSELECTED),)
    deadlines = [i.deadline for i in layered if i.deadline is not None]
    generation = Generation(
        stages=stages,
        services=tuple(_services(stages, bindings)),
        activation_deadline=min(deadlines, default=None),
    )
    return generation, report(violations)


def selects(revision: Revision, sandbox: Sandbox) -> bool:
    """Whether a policy applies to a sandbox: same namespace, labels match."""
    return revision.policy.namespace == sandbox.namespace and revision.selector.selects(sandbox.labels)


def _layer(revisions: Iterable[Revision]) -> tuple[list[_Layered], list[Violation]]:
    standing: list[_Layered] = []
    conflicted: list[_Layered] = []
    violations: list[Violation] = []
    for revision in revisions:
        found = list(_conflicts(revision, standing))
        violations.extend(found)
        name = f"{revision.policy.namespace}/{revision.policy.name}"
        chosen = revision.as_unresolved(Why.CONFLICTED) if found else revision
        target = conflicted if found else standing
        target.extend(_Layered(policy=name, entry=e, deadline=revision.activation_deadline) for e in chosen.entries)
    standing.sort(key=lambda i: (i.entry.order, i.entry.key))
    return _fit([*standing, *(_renamed(i) for i in conflicted)]), violations


def _conflicts(revision: Revision, standing: list[_Layered]) -> Iterator[Violation]:
    orders = {i.entry.order: i.policy for i in standing}
    keys = {i.entry.key: i.policy for i in standing}
    for entry in revision.entries:
        path = f"spec.networkMiddlewares.{entry.key}"
        if entry.key in keys:
            message = f"the key is used by the older policy {keys[entry.key]} for the same sandboxes"
            yield _conflict(revision, path, message, "rename the key")
        if entry.order in orders:
            message = f"order {entry.order} is used by the older policy {orders[entry.order]} for the same sandboxes"
            yield _conflict(revision, f"{path}.order", message, "choose another order")
    total = len(standing) + len(revision.entries)
    if total > MAX_STAGES:
        message = (
            f"with older policies the same sandboxes would have {total} stages, at most {MAX_STAGES} are allowed"
        )
        yield _conflict(revision, "spec.networkMiddlewares", message, "remove configs here or there")


def _conflict(revision: Revision, path: str, message: str, hint: str) -> Violation:
    return Violation(subject=revision.policy, path=path, reason=Reason.CONFLICTED, message=message, hint=hint)


def _renamed(item: _Layered) -> _Layered:
    """A conflicted stage never shares a key with the one that stands: keys are identities."""
    return replace(item, entry=replace(item.entry, key=f"{item.policy}:{item.entry.key}"))


def _fit(layered: list[_Layered]) -> list[_Layered]:
    """At most ten stages: conflicted ones that do not fit close their hosts in one last stage."""
    if len(layered) <= MAX_STAGES:
        return layered
    kept, rest = layered[: MAX_STAGES - 1], layered[MAX_STAGES - 1 :]
    closed = [i for i in rest if i.entry.on_error is OnError.FAIL_CLOSED] or rest
    include = tuple(sorted({p for i in closed for p in i.entry.include}))
    first = closed[0]
    overflow = replace(first.entry, key="conflicted", include=include, exclude=(), unresolved=Why.CONFLICTED)
    return [*kept, replace(first, entry=overflow)]


def _stage(item: _Layered, bound: Bound | None) -> Stage:
    entry = item.entry
    why = entry.unresolved or (Why.REGISTRATION_MISSING if bound is None else None)
    resolved = bound if why is None else None
    return Stage(
        key=entry.key,
        label=entry.label,
        policy=item.policy,
        binding=entry.binding,
        service=resolved.registration.name if resolved is not None and resolved.registration is not None else None,
        config=entry.config if resolved is not None else {},
        on_error=entry.on_error,
        selector=HostSelector(include=parse_patterns(entry.include), exclude=parse_patterns(entry.exclude)),
        max_body_bytes=resolved.max_body_bytes if resolved is not None else 0,
        timeout=resolved.timeout if resolved is not None else TIMEOUT_DEFAULT,
        unresolved=why,
    )


def _closed(key: str, why: Why) -> Stage:
    return Stage(
        key=key,
        label=key,
        policy="",
        binding="",
        service=None,
        config={},
        on_error=OnError.FAIL_CLOSED,
        selector=HostSelector(include=parse_patterns(("**",))),
        max_body_bytes=0,
        timeout=TIMEOUT_DEFAULT,
        unresolved=why,
    )


def _services(stages: Iterable[Stage], bindings: Bindings) -> Iterator[Service]:
    needed: dict[str, dict[str, Bound]] = {}
    for stage in stages:
        if stage.service is not None and (bound := bindings.find(stage.binding)) is not None:
            needed.setdefault(stage.service, {})[stage.binding] = bound
    for name, bounds in sorted(needed.items()):
        registration = next(iter(bounds.values())).registration
        if registration is not None:
            yield Service(
                name=name,
                connection=registration.connection,
                dialect=registration.manifest.dialect,
                needs=tuple(_need(b) for _, b in sorted(bounds.items())),
            )


def _need(bound: Bound) -> Binding:
    """What must hold of the service, not what it happens to offer: the limit we will use, no timeout."""
    return replace(bound.binding, max_body_bytes=bound.max_body_bytes, timeout="")
