"""The generation of one sandbox out of accepted revisions. PURE; the other of the two central functions.

A sandbox's generation is a function of the revisions that select it, the accepted registrations and its labels.
One rule for an entry that cannot run: it stays as an unresolved stage, whose `FailClosed` hosts are denied and whose
`FailOpen` ones are bypassed and audited. Nothing a user declared ever vanishes silently.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.hosts import HostSelector, parse_patterns
from supervisor_middleware.model.limits import MAX_STAGES, TIMEOUT_DEFAULT
from supervisor_middleware.model.manifest import Binding
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.revision import Entry, Revision
from supervisor_middleware.model.revision import Unresolved as Why
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings, Unselected
from supervisor_middleware.model.violation import Reason, Report, Violation, report

MAX_MERGED_PATTERNS: Final = 8192
"""Two such stages and eight others fit the 8 MiB of an offer, and a request is still matched in milliseconds."""
EVERY_HOST: Final = "**"


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
    selecting = sorted((r for r in revisions if selects(r, sandbox)), key=_seniority)
    layered, violations = _layer(selecting)
    bound = [(item, None if item.entry.unresolved else bindings.find(item.entry.binding)) for item in layered]
    stages = tuple(_stage(item, found) for item, found in bound)
    if not selecting and settings.unselected is Unselected.DENY:
        stages = (_closed("unselected", Why.UNSELECTED),)
    generation = Generation(
        stages=stages,
        services=tuple(_services(found for _, found in bound if found is not None)),
        activation_deadline=min(_deadlines(bound), default=None),
    )
    return generation, report(violations)


def selects(revision: Revision, sandbox: Sandbox) -> bool:
    """Whether a policy applies to a sandbox: same namespace, labels match."""
    return revision.policy.namespace == sandbox.namespace and revision.selector.selects(sandbox.labels)


def _seniority(revision: Revision) -> tuple[bool, datetime, str, str]:
    """Older first; but a policy that was never accepted takes no place from one that was."""
    is_unresolved = any(e.unresolved for e in revision.entries)
    return is_unresolved, revision.created_at, revision.policy.namespace or "", revision.policy.name


def _layer(revisions: Iterable[Revision]) -> tuple[list[_Layered], list[Violation]]:
    standing: list[_Layered] = []
    conflicted: list[_Layered] = []
    violations: list[Violation] = []
    for revision in revisions:
        found = list(_conflicts(revision, standing))
        violations.extend(found)
        name = f"{revision.policy.namespace}/{revision.policy.name}"
        chosen = revision.as_unresolved(Why.CONFLICTED) if found else revision
        stands = not found and len(revision.entries) <= MAX_STAGES
        target = standing if stands else conflicted
        target.extend(_Layered(policy=name, entry=e, deadline=revision.activation_deadline) for e in chosen.entries)
    standing.sort(key=lambda i: (i.entry.order, i.entry.key))
    return [*standing, *_fit(conflicted, room=MAX_STAGES - len(standing))], violations


def _conflicts(revision: Revision, standing: list[_Layered]) -> Iterator[Violation]:
    orders = {i.entry.order: i.policy for i in standing}
    keys = {i.entry.key: i.policy for i in standing}
    for entry in revision.entries:
        path = ("spec", "networkMiddlewares", entry.key)
        if entry.key in keys:
            message = f"the key is already used for the same sandboxes by policy {keys[entry.key]}"
            yield _conflict(revision, path_of(path), message, "rename the key")
        if entry.order in orders and entry.unresolved is None:  # one that cannot run has no place to take
            message = f"order {entry.order} is already used for the same sandboxes by policy {orders[entry.order]}"
            yield _conflict(revision, path_of((*path, "order")), message, "choose another order")
    total = len(standing) + len(revision.entries)
    if standing and total > MAX_STAGES:
        message = (
            f"with other policies the same sandboxes would have {total} stages, at most {MAX_STAGES} are allowed"
        )
        yield _conflict(revision, "spec.networkMiddlewares", message, "remove configs here or there")


def _conflict(revision: Revision, path: str, message: str, hint: str) -> Violation:
    return Violation(subject=revision.policy, path=path, reason=Reason.CONFLICTED, message=message, hint=hint)


def _fit(conflicted: list[_Layered], *, room: int) -> list[_Layered]:
    """What does not stand, never in the place of what does.

    More than there is room for share a stage: one that closes, one that is bypassed. If nothing is left, the closing
    one is an eleventh stage, which denies as it must; a bypass needs no stage to let requests pass.
    """
    if len(conflicted) <= room:
        return [_renamed(i, i.entry.key) for i in conflicted]
    closed = [i for i in conflicted if i.entry.on_error is OnError.FAIL_CLOSED]
    bypassed = [i for i in conflicted if i.entry.on_error is OnError.FAIL_OPEN]
    shared = [_merged(closed)] if closed else []
    return [*shared, _merged(bypassed)] if bypassed and len(shared) < room else shared


def _merged(items: list[_Layered]) -> _Layered:
    """One stage for the hosts of several; for every host where they are too many to be sent and matched."""
    include = sorted({p for i in items for p in i.entry.include})
    exclude = sorted(set.intersection(*(set(i.entry.exclude) for i in items)))
    if len(include) > MAX_MERGED_PATTERNS:
        include = [EVERY_HOST]
    first = items[0]
    entry = replace(first.entry, include=tuple(include), exclude=tuple(exclude))
    return _renamed(replace(first, entry=entry), first.entry.on_error.value)


def _renamed(item: _Layered, key: str) -> _Layered:
    """A conflicted stage never shares a key with the one that stands: keys are identities."""
    return replace(item, entry=replace(item.entry, key=f"{item.policy}:{key}"))


def _deadlines(bound: Iterable[tuple[_Layered, Bound | None]]) -> Iterator[timedelta]:
    """Of the policies that need a service: another one's has no say in how long that is waited for."""
    for item, found in bound:
        if item.deadline is not None and found is not None and found.registration is not None:
            yield item.deadline


def _stage(item: _Layered, bound: Bound | None) -> Stage:
    entry = item.entry
    why = entry.unresolved or (Why.REGISTRATION_MISSING if bound is None else None)
    return Stage(
        key=entry.key,
        label=entry.label,
        policy=item.policy,
        binding=entry.binding,
        service=bound.registration.name if bound is not None and bound.registration is not None else None,
        config=entry.config if bound is not None else {},
        on_error=entry.on_error,
        selector=HostSelector(include=parse_patterns(entry.include), exclude=parse_patterns(entry.exclude)),
        max_body_bytes=bound.max_body_bytes if bound is not None else 0,
        timeout=bound.timeout if bound is not None else TIMEOUT_DEFAULT,
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
        selector=HostSelector(include=parse_patterns((EVERY_HOST,))),
        max_body_bytes=0,
        timeout=TIMEOUT_DEFAULT,
        unresolved=why,
    )


def _services(bounds: Iterable[Bound]) -> Iterator[Service]:
    needed: dict[str, dict[str, Bound]] = {}
    registrations: dict[str, Registration] = {}
    for bound in bounds:
        if bound.registration is not None:
            registrations[bound.registration.name] = bound.registration
            needed.setdefault(bound.registration.name, {})[bound.binding.id] = bound
    for name in sorted(needed):
        yield _service(registrations[name], [needed[name][i] for i in sorted(needed[name])])


def _service(registration: Registration, bounds: Iterable[Bound]) -> Service:
    return Service(
        name=registration.name,
        connection=registration.connection,
        dialect=registration.manifest.dialect,
        needs=tuple(_need(b) for b in bounds),
    )


def _need(bound: Bound) -> Binding:
    """What must hold of the service, not what it happens to offer: the limit we will use, no timeout."""
    return replace(bound.binding, max_body_bytes=bound.max_body_bytes, timeout="")
