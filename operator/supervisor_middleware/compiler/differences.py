"""What becomes different for a sandbox between two generations. PURE.

Stages are known by their keys. Hosts that gain or lose inspection are decided exactly, over the chain as a whole and
for each binding, with a host as the example. A config is a digest here: its values go nowhere.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from supervisor_middleware.compiler.inspection import WorstCase, guarding, worst_case
from supervisor_middleware.compiler.skipped import UNDECIDED
from supervisor_middleware.model.canonical import JsonValue, canonical, digest, short
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.host_sets import Budget, TooComplex, lost_host
from supervisor_middleware.model.hosts import HostSelector

NONE: Final = "none"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field of a stage or a service, before and after."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A stage or a service (by `name`) that stays and is not the same."""

    name: str
    fields: tuple[FieldChange, ...]

    @property
    def is_weakened(self) -> bool:
        """Whether a failure that refused requests lets them pass now."""
        closed, opened = OnError.FAIL_CLOSED.value, OnError.FAIL_OPEN.value
        return any(c.field == "onError" and (c.before, c.after) == (closed, opened) for c in self.fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChange:
    """A host, one of perhaps many, that `binding` (None: any stage at all) begins or ceases to see.

    `UNDECIDED` for a host: it could not be decided whether there is one.
    """

    host: str
    binding: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Everything that changes. `order_*` are the keys that stay, where their order does not."""

    added: tuple[Stage, ...] = ()
    removed: tuple[Stage, ...] = ()
    changed: tuple[Changed, ...] = ()
    order_before: tuple[str, ...] = ()
    order_after: tuple[str, ...] = ()
    gained: tuple[HostChange, ...] = ()
    lost: tuple[HostChange, ...] = ()
    new_services: tuple[Service, ...] = ()
    gone_services: tuple[Service, ...] = ()
    changed_services: tuple[Changed, ...] = ()
    latency_before: WorstCase
    latency_after: WorstCase

    @property
    def is_loss(self) -> bool:
        """Whether something is protected less: a host loses inspection, or a failure lets requests pass."""
        return bool(self.lost) or any(c.is_weakened for c in self.changed)


def difference(before: Generation, after: Generation) -> Difference | None:
    """What changes from one to the other; None if nothing does."""
    if before == after:
        return None
    was, now = ({s.key: s for s in g.stages} for g in (before, after))
    was_services, now_services = ({s.name: s for s in g.services} for g in (before, after))
    order = tuple(k for k in was if k in now), tuple(k for k in now if k in was)
    is_reordered = order[0] != order[1]
    budget = Budget()
    return Difference(
        added=tuple(s for k, s in now.items() if k not in was),
        removed=tuple(s for k, s in was.items() if k not in now),
        changed=tuple(_changed(was, now, _stage_fields)),
        order_before=order[0] if is_reordered else (),
        order_after=order[1] if is_reordered else (),
        gained=tuple(_host_changes(after, before, budget)),
        lost=tuple(_host_changes(before, after, budget)),
        new_services=tuple(s for n, s in now_services.items() if n not in was_services),
        gone_services=tuple(s for n, s in was_services.items() if n not in now_services),
        changed_services=tuple(_changed(was_services, now_services, _service_fields)),
        latency_before=worst_case(before.stages),
        latency_after=worst_case(after.stages),
    )


def _changed(
    was: Mapping[str, T], now: Mapping[str, T], fields_of: Callable[[T], Mapping[str, str]]
) -> Iterator[Changed]:
    """What is there before and after, and differs."""
    for name, before in was.items():
        after = now.get(name, before)
        if before != after:
            pairs = zip(fields_of(before).items(), fields_of(after).values(), strict=True)
            fields = tuple(FieldChange(field=f, before=old, after=new) for (f, old), new in pairs if old != new)
            yield Changed(name=name, fields=fields)


def _stage_fields(stage: Stage) -> Mapping[str, str]:
    return {
        "policy": stage.policy,
        "name": stage.label,
        "middleware": stage.binding,
        "service": stage.service or NONE,
        "onError": stage.on_error.value,
        "include": _listed(map(str, stage.selector.include)),
        "exclude": _listed(map(str, stage.selector.exclude)),
        "config": _digested(stage.config),
        "maxBodyBytes": str(stage.max_body_bytes),
        "timeout": format_duration(stage.timeout),
        "unresolved": stage.unresolved.value if stage.unresolved is not None else NONE,
    }


def _service_fields(service: Service) -> Mapping[str, str]:
    connection, deadline = service.connection, service.activation_deadline
    return {
        "endpoint": connection.endpoint,
        "timeout": format_duration(connection.timeout),
        "caBundle": _digested(connection.ca_bundle_pem) if connection.ca_bundle_pem else NONE,
        "serverName": connection.server_name or NONE,
        "clientAuthentication": connection.client_authentication.value,
        "dialect": service.dialect.value,
        "needs": _listed(f"{b.id} ({b.max_body_bytes} bytes)" for b in service.needs),
        "activationDeadline": NONE if deadline is None else format_duration(deadline),
    }


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or NONE


def _digested(value: JsonValue) -> str:
    return short(digest(canonical(value)))


def _host_changes(left: Generation, right: Generation, budget: Budget) -> Iterator[HostChange]:
    """Hosts that `left` looks at and `right` does not: of the chain, then of each binding."""
    if (host := _lost(guarding(left.stages), guarding(right.stages), budget)) is not None:
        yield HostChange(host=host)
    for binding in sorted({s.binding for s in left.stages if s.binding}):
        before, after = (guarding(s for s in g.stages if s.binding == binding) for g in (left, right))
        if (host := _lost(before, after, budget)) is not None:
            yield HostChange(host=host, binding=binding)


def _lost(before: Sequence[HostSelector], after: Sequence[HostSelector], budget: Budget) -> str | None:
    try:
        return lost_host(before=before, after=after, budget=budget)
    except TooComplex:
        return UNDECIDED
