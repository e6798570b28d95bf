"""A difference of generations in rows and as a value. PURE. Configs show as digests, never as what they hold."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from supervisor_middleware.compiler.differences import Changed, Difference, FieldChange, HostChange
from supervisor_middleware.compiler.inspection import WorstCase
from supervisor_middleware.compiler.skipped import UNDECIDED
from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.generation import Service, Stage


class Mark(StrEnum):
    """What happens, as in a diff."""

    ADDED = "+"
    REMOVED = "-"
    CHANGED = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line; without a mark it goes on with the one above. `is_loss`: something is protected less."""

    mark: Mark | None = None
    kind: str = ""
    name: str = ""
    text: str = ""
    is_loss: bool = False


def rows_of(difference: Difference) -> Iterator[Row]:
    """Stages first, then what they come to: hosts, services, time."""
    for stage in difference.removed:
        yield Row(mark=Mark.REMOVED, kind="stage", name=stage.key, text=_stage(stage))
    for stage in difference.added:
        yield Row(mark=Mark.ADDED, kind="stage", name=stage.key, text=_stage(stage))
    for changed in difference.changed:
        yield from _changed("stage", changed)
    if difference.order_after:
        yield Row(mark=Mark.CHANGED, kind="order", text=_arrow(difference.order_before, difference.order_after))
    yield from (_host(change, Mark.REMOVED) for change in difference.lost)
    yield from (_host(change, Mark.ADDED) for change in difference.gained)
    for service in difference.gone_services:
        text = f"receives content no longer, {service.connection.endpoint}"
        yield Row(mark=Mark.REMOVED, kind="service", name=service.name, text=text)
    for service in difference.new_services:
        text = f"receives content, {service.connection.endpoint}"
        yield Row(mark=Mark.ADDED, kind="service", name=service.name, text=text)
    for changed in difference.changed_services:
        yield from _changed("service", changed)
    before, after = difference.latency_before, difference.latency_after
    if before.time != after.time:
        yield Row(mark=Mark.CHANGED, kind="latency", text=f"at most {_latency(before)} -> {_latency(after)}")


def value_of(difference: Difference) -> JsonObject:
    """The same for machines."""
    return {
        "stagesAdded": [_stage_value(s) for s in difference.added],
        "stagesRemoved": [_stage_value(s) for s in difference.removed],
        "stagesChanged": [_changed_value(c) for c in difference.changed],
        "order": {"before": list(difference.order_before), "after": list(difference.order_after)}
        if difference.order_after
        else None,
        "hostsLost": [_host_value(c) for c in difference.lost],
        "hostsGained": [_host_value(c) for c in difference.gained],
        "servicesAdded": [_service_value(s) for s in difference.new_services],
        "servicesRemoved": [_service_value(s) for s in difference.gone_services],
        "servicesChanged": [_changed_value(c) for c in difference.changed_services],
        "worstCaseLatency": {
            "before": _latency_value(difference.latency_before),
            "after": _latency_value(difference.latency_after),
        },
    }


def _stage(stage: Stage) -> str:
    selector = stage.selector
    hosts = ", ".join(map(str, selector.include))
    but = f" but {', '.join(map(str, selector.exclude))}" if selector.exclude else ""
    why = f", cannot run: {stage.unresolved.value}" if stage.unresolved is not None else ""
    return f"{stage.binding}, {stage.on_error.value}, {format_duration(stage.timeout)}, for {hosts}{but}{why}"


def _changed(kind: str, changed: Changed) -> Iterator[Row]:
    width = max((len(c.field) for c in changed.fields), default=0)
    for number, change in enumerate(changed.fields):
        is_loss = changed.is_weakened and change.field == "onError"
        text = f"{change.field.ljust(width)}  {_sides(change)}{'  (weakened)' if is_loss else ''}"
        if number:
            yield Row(text=text, is_loss=is_loss)
        else:
            yield Row(mark=Mark.CHANGED, kind=kind, name=changed.name, text=text, is_loss=is_loss)


def _host(change: HostChange, mark: Mark) -> Row:
    is_loss = mark is Mark.REMOVED
    host = "a host" if change.host == UNDECIDED else change.host
    by = f"by {change.binding}" if change.binding else "by any stage"
    doubt = ", perhaps: not decided, use fewer wildcards" if change.host == UNDECIDED else ""
    text = f"no longer inspected {by}{doubt}" if is_loss else f"now inspected {by}{doubt}"
    return Row(mark=mark, kind="host", name=host, text=text, is_loss=is_loss)


def _latency(case: WorstCase) -> str:
    return format_duration(case.time) + (f" ({case.host})" if case.host else "")


def _sides(change: FieldChange) -> str:
    return f"{change.before} -> {change.after}"


def _arrow(before: Iterable[str], after: Iterable[str]) -> str:
    return f"{', '.join(before)} -> {', '.join(after)}"


def _stage_value(stage: Stage) -> JsonObject:
    return {
        "key": stage.key,
        "policy": stage.policy,
        "binding": stage.binding,
        "service": stage.service,
        "onError": stage.on_error.value,
        "include": [str(p) for p in stage.selector.include],
        "exclude": [str(p) for p in stage.selector.exclude],
        "timeout": format_duration(stage.timeout),
        "unresolved": None if stage.unresolved is None else stage.unresolved.value,
    }


def _changed_value(changed: Changed) -> JsonObject:
    return {
        "name": changed.name,
        "weakened": changed.is_weakened,
        "fields": [_field_value(c) for c in changed.fields],
    }


def _field_value(change: FieldChange) -> JsonObject:
    return {"field": change.field, "before": change.before, "after": change.after}


def _host_value(change: HostChange) -> JsonObject:
    return {"example": change.host or None, "decided": change.host != UNDECIDED, "binding": change.binding}


def _service_value(service: Service) -> JsonObject:
    return {"name": service.name, "endpoint": service.connection.endpoint}


def _latency_value(case: WorstCase) -> JsonValue:
    return {"time": format_duration(case.time), "example": case.host or None, "decided": case.host != UNDECIDED}
