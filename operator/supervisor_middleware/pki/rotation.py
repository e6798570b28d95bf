"""How the root of identities gives way to the next. PURE: a state, a clock reading, what is known of others, a state.

    steady -> prepared -> activated -> tainted -> revoked -> steady

The rules:
1.  *prepared*: the next root is in every bundle, for services too, and issues nothing. *activated*: it issues, and
    the old one is still trusted. *tainted*: leaves of the old one should be replaced now. *revoked*: it is in no
    bundle any more.
2.  Exactly one root issues at any time.
3.  Nothing is issued by a root before the bundle with it is published; a root leaves the bundle only when nobody is
    known to need it, or no leaf of it can be valid any more.
4.  A stage ends at its deadline, which is more than the longest life of a leaf away, or before, if all it is for is
    known to be so; never within the overlap, so that every replica has taken it up.
5.  A supervisor that is away and may hold a good leaf is waited for until the deadline, when that leaf has ended and
    it must enrol again anyway. One that holds none gets the bundle when it enrols, and nobody waits for it.
6.  A service that takes the leaf of the root that issues and refuses that of the next one holds activation back, also
    beyond the deadline. One that answers neither says nothing about roots and is waited for until the deadline.
7.  A root that is about to end, and its leaves with it, waits for nobody's acknowledgement.
8.  Force ends the stage that it names, whatever that waits for but the bundle's publication.
9.  A root that somebody supplied gives way to one that is supplied, never to one of ours.

Times are wall-clock times of whichever replica leads: two of them may differ, and `SKEW` is room for that.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from supervisor_middleware.pki.authority import LEAF_LIFETIME, ROOT_LIFETIME
from supervisor_middleware.pki.profiles import CLOCK_SKEW, is_own_root
from supervisor_middleware.pki.rotation_requests import Request, Stage
from supervisor_middleware.pki.succession import Succession

SKEW: Final = 4 * CLOCK_SKEW
"""One replica issues the last leaf, one says when a stage began, one reads that, and a peer looks at the leaf."""
OVERLAP: Final = timedelta(seconds=60)


class Cause(StrEnum):
    """Why a stage began."""

    MADE = "made"
    REQUESTED = "requested"
    SCHEDULED = "scheduled"
    SUPPLIED = "supplied"
    ACKNOWLEDGED = "acknowledged"
    DEADLINE = "deadline"
    EXPIRING = "expiring"
    FORCED = "forced"


class Awaited(StrEnum):
    """What a stage waits for."""

    PUBLICATION = "publication"
    OVERLAP = "overlap"
    SERVICES_REFUSING = "services_refusing"
    SERVICES_SILENT = "services_silent"
    SUPERVISORS_UNKNOWN = "supervisors_unknown"
    SUPERVISORS_UNACKNOWLEDGED = "supervisors_unacknowledged"
    SUPERVISORS_ABSENT = "supervisors_absent"
    SUPERVISORS_OLD = "supervisors_old"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing that holds a stage; `until` None: until it is so, or forced."""

    awaited: Awaited
    count: int = 0
    names: tuple[str, ...] = ()
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of others now. Services are those that see our certificate at all, by name.

    `refusing` take the leaf of the issuing root and not the one in question; `silent` answer to neither, or were not
    asked yet. Supervisors are not `is_counted` before a leader has published: it knows of nobody then. `absent` may
    hold a good leaf and have no stream, `unacknowledged` have one and another bundle, `old` prove themselves by a
    leaf of a root that issues no more.
    """

    is_published: bool = False
    refusing: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    is_counted: bool = False
    absent: int = 0
    unacknowledged: int = 0
    old: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an administrator sets."""

    overlap: timedelta = OVERLAP
    root_lifetime: timedelta = ROOT_LIFETIME
    is_scheduled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The state. `longest` is the longest life that a leaf of these roots may have; `handled` the last request heard.

    `is_displaced`: where the issuing root is kept by those who supply one, another one (or nothing good) lies by now.
    """

    roots: Succession
    stage: Stage = Stage.STEADY
    since: datetime
    cause: Cause = Cause.MADE
    is_displaced: bool = False
    longest: timedelta = LEAF_LIFETIME
    handled: str = ""

    @property
    def deadline(self) -> datetime | None:
        """When the stage ends at the latest, whatever others say; None: nothing is under way."""
        return None if self.stage is Stage.STEADY else self.since + self.longest + SKEW

    @property
    def is_supplied(self) -> bool:
        """Whether somebody else made the root that issues, and will make the next one."""
        return self.is_displaced or not is_own_root(self.roots.current.certificate)

    def at(self, stage: Stage, *, now: datetime, cause: Cause) -> "Rotation":
        """The same, where `stage` begins."""
        return replace(self, stage=stage, since=now, cause=cause)


def waits(rotation: Rotation, facts: Facts, *, now: datetime, rules: Rules) -> tuple[Wait, ...]:
    """What the present stage waits for; nothing: it may end."""
    return tuple(_WAITS[rotation.stage](rotation, facts, now=now, rules=rules))


def next_stage(stage: Stage) -> Stage:
    """What comes after `stage`."""
    stages = tuple(Stage)
    return stages[(stages.index(stage) + 1) % len(stages)]


def advance(
    rotation: Rotation, facts: Facts, *, now: datetime, rules: Rules, request: Request | None = None
) -> Rotation | None:
    """The next state if there is reason for one, at most one stage on. A request that did nothing was heard too."""
    if request is not None and request.identifier != rotation.handled:
        if request.force is rotation.stage and _awaits_publication(rotation, facts):
            return None
        heard = replace(rotation, handled=request.identifier)
        return _answered(heard, request, now=now, rules=rules) or heard
    if rotation.stage is Stage.STEADY:
        is_due = rules.is_scheduled and rotation.roots.is_due(now)
        return _begun(rotation, now=now, rules=rules, cause=Cause.SCHEDULED) if is_due else None
    if waits(rotation, facts, now=now, rules=rules):
        return None
    return _stepped(rotation, now=now, cause=_cause(rotation, now=now))


def is_begun_by(rotation: Rotation, request: Request) -> bool:
    """Whether `request` begins a rotation: one that is under way goes on, and a supplied root is its supplier's."""
    is_free = rotation.stage in {Stage.STEADY, Stage.REVOKED}
    is_wanted = request.force is None or request.force is Stage.STEADY is rotation.stage
    return is_free and is_wanted and not rotation.is_supplied


def _answered(rotation: Rotation, request: Request, *, now: datetime, rules: Rules) -> Rotation | None:
    if is_begun_by(rotation, request):
        return _begun(rotation, now=now, rules=rules, cause=Cause.REQUESTED)
    if request.force is not rotation.stage or rotation.stage is Stage.STEADY:
        return None
    return _stepped(rotation, now=now, cause=Cause.FORCED)


def _begun(rotation: Rotation, *, now: datetime, rules: Rules, cause: Cause) -> Rotation | None:
    if rotation.is_supplied:
        return None
    roots = rotation.roots.with_successor(now=now, lifetime=rules.root_lifetime)
    return replace(rotation, roots=roots).at(Stage.PREPARED, now=now, cause=cause)


def _stepped(rotation: Rotation, *, now: datetime, cause: Cause) -> Rotation:
    stage = next_stage(rotation.stage)
    stepped = rotation.at(stage, now=now, cause=cause)
    match stage:
        case Stage.ACTIVATED:
            return replace(stepped, roots=rotation.roots.promoted(), is_displaced=False)
        case Stage.REVOKED:
            return replace(stepped, roots=replace(rotation.roots, retired=()))
        case _:
            return stepped


def _cause(rotation: Rotation, *, now: datetime) -> Cause:
    if _is_pressing(rotation, now=now):
        return Cause.EXPIRING
    return Cause.DEADLINE if _is_over(rotation, now=now) else Cause.ACKNOWLEDGED


def _is_over(rotation: Rotation, *, now: datetime) -> bool:
    return rotation.deadline is not None and now >= rotation.deadline


def _is_pressing(rotation: Rotation, *, now: datetime) -> bool:
    is_prepared = rotation.stage is Stage.PREPARED
    return is_prepared and now >= rotation.roots.current.expires_at - rotation.longest


def _awaits_publication(rotation: Rotation, facts: Facts) -> bool:
    return rotation.stage in {Stage.PREPARED, Stage.REVOKED} and not facts.is_published


def _none(_rotation: Rotation, _facts: Facts, *, now: datetime, rules: Rules) -> Iterator[Wait]:  # noqa: ARG001
    yield from ()


def _prepared(rotation: Rotation, facts: Facts, *, now: datetime, rules: Rules) -> Iterator[Wait]:
    yield from _publication(facts)
    yield from _overlap(rotation, now=now, rules=rules)
    if _is_pressing(rotation, now=now):
        return
    if facts.refusing:
        yield Wait(awaited=Awaited.SERVICES_REFUSING, count=len(facts.refusing), names=facts.refusing)
    if not _is_over(rotation, now=now):
        yield from _services(rotation, facts)
        yield from _unknown(rotation, facts)
        yield from _some(Awaited.SUPERVISORS_UNACKNOWLEDGED, facts.unacknowledged, until=rotation.deadline)
        yield from _some(Awaited.SUPERVISORS_ABSENT, facts.absent, until=rotation.deadline)


def _activated(rotation: Rotation, facts: Facts, *, now: datetime, rules: Rules) -> Iterator[Wait]:
    yield from _overlap(rotation, now=now, rules=rules)
    if not _is_over(rotation, now=now):
        if facts.refusing:
            until, names = rotation.deadline, facts.refusing
            yield Wait(awaited=Awaited.SERVICES_REFUSING, count=len(names), names=names, until=until)
        yield from _services(rotation, facts)


def _tainted(rotation: Rotation, facts: Facts, *, now: datetime, rules: Rules) -> Iterator[Wait]:
    yield from _overlap(rotation, now=now, rules=rules)
    if not _is_over(rotation, now=now):
        yield from _unknown(rotation, facts)
        yield from _some(Awaited.SUPERVISORS_OLD, facts.old, until=rotation.deadline)
        yield from _some(Awaited.SUPERVISORS_ABSENT, facts.absent, until=rotation.deadline)


def _revoked(rotation: Rotation, facts: Facts, *, now: datetime, rules: Rules) -> Iterator[Wait]:
    yield from _publication(facts)
    yield from _overlap(rotation, now=now, rules=rules)
    if not _is_over(rotation, now=now):
        yield from _unknown(rotation, facts)
        yield from _some(Awaited.SUPERVISORS_UNACKNOWLEDGED, facts.unacknowledged, until=rotation.deadline)


def _publication(facts: Facts) -> Iterator[Wait]:
    if not facts.is_published:
        yield Wait(awaited=Awaited.PUBLICATION)


def _overlap(rotation: Rotation, *, now: datetime, rules: Rules) -> Iterator[Wait]:
    if now < rotation.since + rules.overlap:
        yield Wait(awaited=Awaited.OVERLAP, until=rotation.since + rules.overlap)


def _services(rotation: Rotation, facts: Facts) -> Iterator[Wait]:
    if facts.silent:
        until, names = rotation.deadline, facts.silent
        yield Wait(awaited=Awaited.SERVICES_SILENT, count=len(names), names=names, until=until)


def _unknown(rotation: Rotation, facts: Facts) -> Iterator[Wait]:
    if not facts.is_counted:
        yield Wait(awaited=Awaited.SUPERVISORS_UNKNOWN, until=rotation.deadline)


def _some(awaited: Awaited, count: int, *, until: datetime | None) -> Iterator[Wait]:
    if count:
        yield Wait(awaited=awaited, count=count, until=until)


_WAITS: Final[Mapping[Stage, Callable[..., Iterator[Wait]]]] = {
    Stage.STEADY: _none,
    Stage.PREPARED: _prepared,
    Stage.ACTIVATED: _activated,
    Stage.TAINTED: _tainted,
    Stage.REVOKED: _revoked,
}
