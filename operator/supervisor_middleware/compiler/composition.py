"""The generation of one sandbox out of accepted revisions. PURE; the other of the two central functions.

A sandbox's generation is a function of the revisions that select it and the accepted registrations. `layers` decides
which of them stand.
One rule for an entry that cannot run: it stays as an unresolved stage, whose `FailClosed` hosts are denied and whose
`FailOpen` ones are bypassed and audited. Nothing a user declared ever vanishes silently.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.compiler.layers import EVERY_HOST, Layered, layer
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.hosts import HostSelector, parse_patterns
from supervisor_middleware.model.limits import TIMEOUT_DEFAULT
from supervisor_middleware.model.manifest import Binding
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.revision import Unresolved as Why
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings, Unselected
from supervisor_middleware.model.violation import Report, report


def compose(
    sandbox: Sandbox,
    revisions: Iterable[Revision],
    *,
    namespace_labels: Mapping[str, str],
    bindings: Bindings,
    settings: CompilerSettings,
) -> tuple[Generation, Report]:
    """What `sandbox` runs, and which policies conflict there.

    `revisions` may be of any policies; those that select the sandbox, or its namespace by `namespace_labels`, take
    part.
    """
    selecting = [r for r in revisions if selects(r, sandbox, namespace_labels=namespace_labels)]
    return compose_selected(selecting, bindings=bindings, settings=settings)


def compose_selected(
    selecting: Sequence[Revision], *, bindings: Bindings, settings: CompilerSettings
) -> tuple[Generation, Report]:
    """The same of those that are known to select the sandbox: nothing else of it counts."""
    layers = layer(selecting)
    bound = [(item, None if item.entry.unresolved else bindings.find(item.entry.binding)) for item in layers.entries]
    stages = tuple(_stage(item, found) for item, found in bound)
    if not selecting and settings.unselected is Unselected.DENY:
        stages = (_closed("unselected", Why.UNSELECTED),)
    generation = Generation(
        stages=stages,
        services=tuple(_services(bound)),
    )
    return generation, report(layers.violations)


def selects(revision: Revision, sandbox: Sandbox, *, namespace_labels: Mapping[str, str]) -> bool:
    """Whether a policy applies: a tenant's by the sandbox's labels, a baseline by its namespace's."""
    if revision.is_baseline:
        return revision.selector.selects(namespace_labels)
    return revision.policy.namespace == sandbox.namespace and revision.selector.selects(sandbox.labels)


def _stage(item: Layered, bound: Bound | None) -> Stage:
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


def _services(bounds: Iterable[tuple[Layered, Bound | None]]) -> Iterator[Service]:
    needed: dict[str, dict[str, Bound]] = {}
    registrations: dict[str, Registration] = {}
    deadlines: dict[str, list[timedelta]] = {}
    for item, bound in bounds:
        if bound is None or bound.registration is None:
            continue
        name = bound.registration.name
        registrations[name] = bound.registration
        needed.setdefault(name, {})[bound.binding.id] = bound
        if item.deadline is not None:
            deadlines.setdefault(name, []).append(item.deadline)
    for name in sorted(needed):
        bound_here = [needed[name][i] for i in sorted(needed[name])]
        yield _service(registrations[name], bound_here, deadline=min(deadlines.get(name, ()), default=None))


def _service(registration: Registration, bounds: Iterable[Bound], *, deadline: timedelta | None) -> Service:
    """`deadline` is the shortest of those policies that need this service: no other has a say in that wait."""
    return Service(
        name=registration.name,
        connection=registration.connection,
        dialect=registration.manifest.dialect,
        needs=tuple(_need(b) for b in bounds),
        activation_deadline=deadline,
    )


def _need(bound: Bound) -> Binding:
    """What must hold of the service, not what it happens to offer: the limit we will use, no timeout."""
    return replace(bound.binding, max_body_bytes=bound.max_body_bytes, timeout="")
