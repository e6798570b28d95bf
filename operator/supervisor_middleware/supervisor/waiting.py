"""Whether a candidate is run now or waits for a service, and how long at most. PURE.

The rules (design, section 6 "Generations and last-known-good"; decision 12; docs/decisions/0018):

1. Who runs none activates at once. Configs of missing services follow their `on_error`.
2. Who runs a generation keeps it whole while a *new* service is missing: one that the candidate reaches in another
   way than what runs does, or asks more of. A service that is needed as before never blocks, up or down: a
   policy-only change does not wait for it (RFC 0009 "Registration and delivery"; OS-DST-06).
3. A new service blocks until it is there, or until its own `activation_deadline` is over; no other service's counts.
4. A candidate is activated when nothing blocks it any more; what is missing then follows `on_error`. It waits at most
   for the longest of what its blocking services have left, and without end if one of them has no end.
5. The time of a service runs from the first receipt of a candidate in which it is new, on through every candidate
   that takes that one's place: no edit of anybody's begins it anew.
6. Tenants hold back no baseline. If the candidate changes the baseline, a service that is new to tenants' stages
   alone blocks for `PLATFORM_PATIENCE` at most, from the first receipt of it or of the changed baseline, whichever
   was first.
7. Nothing holds back what the platform takes away (a registration, a root a service is verified by): then every
   service blocks for `PLATFORM_PATIENCE` at most, from the first receipt.

What stays blocked without a deadline is therefore a tenant's change by a service that tenants newly need, which is
their own scope, and any change by a service that the baseline newly needs, which is the platform's word.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, TypeAlias

from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.model.limits import PLATFORM_PATIENCE
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.supervisor.capability import ServiceState, covers

NO_TIME: Final = timedelta()

_END_OF_ROOT: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """Run it now. Configs of `missing` services follow their `on_error`."""

    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Keep what runs and try again. `remaining` until the candidate activates anyway; None: no such moment."""

    blocking: tuple[str, ...]
    remaining: timedelta | None


Decision: TypeAlias = Activate | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Since when (monotonic seconds) what is new in a candidate has been waited for.

    `services` by how each is reached; `baseline` and `withdrawal` are None while the candidate changes none.
    """

    services: Mapping[Service, float] = field(default_factory=dict)
    baseline: float | None = None
    withdrawal: float | None = None

    def is_overdue(self, *, now: float) -> bool:
        """Whether the platform has waited for as long as it has to: what is at hand is to be activated first."""
        began = [moment for moment in (self.baseline, self.withdrawal) if moment is not None]
        return any(_since(moment, now=now) >= PLATFORM_PATIENCE for moment in began)


NOT_WAITING: Final = Waits()


def waits_of(candidate: Generation, *, running: Generation | None, before: Waits, now: float) -> Waits:
    """Rule 5: the clocks of a candidate received `now`; `before` are those of the one whose place it takes."""
    if running is None:
        return NOT_WAITING
    new = [_reach(s) for s in candidate.services if _is_new(s, running=running)]
    baseline = now if before.baseline is None else before.baseline
    withdrawal = now if before.withdrawal is None else before.withdrawal
    return Waits(
        services={reach: before.services.get(reach, now) for reach in new},
        baseline=baseline if _changes_baseline(candidate, running=running) else None,
        withdrawal=withdrawal if _withdraws(candidate, running=running) else None,
    )


def decide(
    *,
    running: Generation | None,
    candidate: Generation,
    states: Mapping[str, ServiceState],
    waits: Waits = NOT_WAITING,
    now: float = 0.0,
) -> Decision:
    """Rules 1 to 7. `states` by service name (absent: unreachable); `waits` are the candidate's."""
    missing = tuple(s for s in candidate.services if states.get(s.name) is not ServiceState.READY)
    blocking = dict[str, timedelta | None]()
    if running is not None:
        for service in missing:
            if _is_new(service, running=running):
                only_tenants = not _is_new_to_platform(service, candidate=candidate, running=running)
                left = min(_left(service, waits=waits, now=now, only_tenants=only_tenants), default=None)
                if left is None or left > NO_TIME:
                    blocking[service.name] = left
    if not blocking:
        return Activate(missing=tuple(s.name for s in missing))
    ends = [left for left in blocking.values() if left is not None]
    return Wait(blocking=tuple(blocking), remaining=max(ends) if len(ends) == len(blocking) else None)


def asks_no_more(service: Service, *, of: Service | None) -> bool:
    """Whether whoever has `of` connected has this one too: reached as it is, and nothing needed that is not there."""
    if of is None or _reach(service) != _reach(of):
        return False
    return all(any(covers(known, need) for known in of.needs) for need in service.needs)


def _left(service: Service, *, waits: Waits, now: float, only_tenants: bool) -> Iterator[timedelta]:
    """What each rule leaves of the wait for a new service; nothing: there is no end."""
    waited = _since(waits.services.get(_reach(service), now), now=now)
    if service.activation_deadline is not None:
        yield service.activation_deadline - waited
    if waits.baseline is not None and only_tenants:
        yield PLATFORM_PATIENCE - max(waited, _since(waits.baseline, now=now))
    if waits.withdrawal is not None:
        yield PLATFORM_PATIENCE - _since(waits.withdrawal, now=now)


def _since(moment: float, *, now: float) -> timedelta:
    return timedelta(seconds=now - moment)


def _is_new(service: Service, *, running: Generation) -> bool:
    return not asks_no_more(service, of=running.service(service.name))


def _is_new_to_platform(service: Service, *, candidate: Generation, running: Generation) -> bool:
    bindings = {s.binding for s in _stages_on(service, candidate) if s.is_platforms}
    theirs = replace(service, needs=tuple(n for n in service.needs if n.id in bindings))
    return bool(theirs.needs) and _is_new(theirs, running=running)


def _stages_on(service: Service, generation: Generation) -> Iterator[Stage]:
    return (s for s in generation.stages if s.service == service.name)


def _reach(service: Service) -> Service:
    """How it is reached and spoken with, as a value: not what is needed of it, nor how long a call may take."""
    connection = replace(service.connection, timeout=NO_TIME)
    return replace(service, connection=connection, needs=(), activation_deadline=None)


# -------------------------------------------------------------------------------------------- what the platform does


def _changes_baseline(candidate: Generation, *, running: Generation) -> bool:
    if _platforms(candidate) != _platforms(running):
        return True
    places = {_place_of_tenants(g) for g in (candidate, running)} - {None}
    return len(places) > 1


def _platforms(generation: Generation) -> tuple[tuple[Stage, ...], frozenset[Service]]:
    stages = tuple(s for s in generation.stages if s.is_platforms)
    names = {s.service for s in stages}
    return stages, frozenset(_reach(s) for s in generation.services if s.name in names)


def _place_of_tenants(generation: Generation) -> int | None:
    """How many stages of the baseline stand before those of tenants; None: there are none that run."""
    before = 0
    for stage in generation.stages:
        if not stage.is_platforms and stage.unresolved is None:
            return before
        before += stage.is_platforms
    return None


def _withdraws(candidate: Generation, *, running: Generation) -> bool:
    ran = {s.key for s in running.stages if s.unresolved is None}
    if any(s.key in ran and s.unresolved is Unresolved.REGISTRATION_MISSING for s in candidate.stages):
        return True
    pairs = ((running.service(s.name), s) for s in candidate.services)
    return any(before is not None and _roots(before) - _roots(after) for before, after in pairs)


def _roots(service: Service) -> frozenset[str]:
    """The roots it is verified by; one that stands for the platform's roots if it names none."""
    blocks = service.connection.ca_bundle_pem.split(_END_OF_ROOT)
    return frozenset(b.strip() for b in blocks[:-1]) or frozenset({""})
