"""A rotation of identities' roots as it is kept: parts as any `Succession` has, and notes. PURE.

The notes are the stage, since when, and the digests of the root that issues and of the one that follows. By the first
one a root that somebody put into the place of the issuing one (`tls.*`) is told from it: then `held.*` keeps the one
that issues still, until the supplied one does. The roots are the truth; notes that do not fit them count for nothing.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.durations import format_duration, read_duration
from supervisor_middleware.pki.authority import ROOT_LIFETIME, Authority
from supervisor_middleware.pki.bundles import bundle_digest, parse_bundle
from supervisor_middleware.pki.profiles import CLOCK_SKEW, root_problems
from supervisor_middleware.pki.root_parts import (
    CURRENT,
    RETIRED,
    SUCCESSOR,
    Parts,
    authority_from,
    pair_of,
    parts_of,
    successor_from,
)
from supervisor_middleware.pki.rotation import Cause, Rotation
from supervisor_middleware.pki.rotation_requests import Request, Stage
from supervisor_middleware.pki.spiffe import SpiffeId
from supervisor_middleware.pki.succession import Succession, split_roots

HELD: Final = "held"

ISSUER: Final = "issuer"
FOLLOWS: Final = "follows"
STAGE: Final = "stage"
SINCE: Final = "since"
CAUSE: Final = "cause"
LONGEST: Final = "longest-leaf"
HANDLED: Final = "handled"
NOTES: Final = (ISSUER, FOLLOWS, STAGE, SINCE, CAUSE, LONGEST, HANDLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What lies there."""

    parts: Parts = field(repr=False)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to lie there; a part that is None goes, one that is not named stays."""

    parts: Mapping[str, bytes | None] = field(repr=False)
    notes: Mapping[str, str]

    def over(self, kept: Kept) -> "Changes":
        """Those that are news to `kept`."""
        parts = {name: value for name, value in self.parts.items() if kept.parts.get(name) != value}
        notes = {name: value for name, value in self.notes.items() if kept.notes.get(name) != value}
        return Changes(parts=parts, notes=notes)

    def __bool__(self) -> bool:
        return bool(self.parts or self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known besides: by this process, and by everybody (`published`, the roots of the trust bundle)."""

    trust_domain: str
    now: datetime
    longest: timedelta
    rotation: Rotation | None = None
    published: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read; `problem` says why the root that somebody supplied is not taken."""

    rotation: Rotation
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRotation:
    """What a store holds; `version` is replaced by the next write, `changes` are what it lacks.

    `request` is the last one that somebody left there.
    """

    rotation: Rotation
    version: str = ""
    problem: str = ""
    changes: Changes
    request: Request | None = None


def stored_rotation(
    kept: Kept, knowledge: Knowledge, *, version: str = "", request: Request | None = None
) -> StoredRotation:
    """What lies there, and what of it is not as it should be.

    Raises:
        InvalidInput: there is no root that could issue; says why.
    """
    reading = read(kept, knowledge)
    changes = changes_to(reading.rotation).over(kept)
    return StoredRotation(
        rotation=reading.rotation, version=version, problem=reading.problem, changes=changes, request=request
    )


def changes_to(rotation: Rotation) -> Changes:
    """How `rotation` is kept."""
    roots = rotation.roots
    parts = {**parts_of(roots), **pair_of(HELD, None)}
    if rotation.is_supplied:
        # Whoever supplies a root writes it, and would write it again.
        del parts[f"{CURRENT}.crt"], parts[f"{CURRENT}.key"]
    if rotation.is_displaced:
        parts |= {**pair_of(SUCCESSOR, None), **pair_of(HELD, roots.current)}
    notes = {
        ISSUER: _digest(roots.current),
        FOLLOWS: _digest(roots.successor),
        STAGE: rotation.stage.value,
        SINCE: rotation.since.isoformat(),
        CAUSE: rotation.cause.value,
        LONGEST: format_duration(rotation.longest),
        HANDLED: rotation.handled,
    }
    return Changes(parts=parts, notes=notes)


def read(kept: Kept, knowledge: Knowledge) -> Reading:
    """What lies there, in the light of what is known.

    A root that was put in the place of the issuing one follows it, in stages. If the issuing one is to be had nowhere
    any more, the new one issues at once, and what was trusted stays so.

    Raises:
        InvalidInput: there is no root that could issue; says why.
    """
    supplied, problem = _supplied(kept.parts, knowledge)
    stored = _stored(kept, knowledge, found=supplied)
    if stored is None:
        if supplied is None:
            raise InvalidInput(problem)
        return Reading(rotation=_replaced(kept, knowledge, by=supplied))
    issuer = stored.roots.current
    if supplied is None and knowledge.now >= issuer.expires_at:
        return Reading(rotation=stored, problem=problem)
    if supplied is not None and supplied.certificate == issuer.certificate:
        return Reading(rotation=_in_place(stored, knowledge.now))
    return Reading(rotation=_displaced(stored, by=supplied, now=knowledge.now), problem=problem)


def _stored(kept: Kept, knowledge: Knowledge, *, found: Authority | None) -> Rotation | None:
    """As it was left, without a look at who may have put another root there; None: the issuing root is gone."""
    known, noted = knowledge.rotation, kept.notes.get(ISSUER)
    if noted is None and known is not None:
        # Somebody wrote all of it anew.
        return replace(known, longest=max(knowledge.longest, known.longest))
    issuer = _issuer(kept, knowledge, found=found)
    if issuer is None:
        return None
    now, is_displaced = knowledge.now, f"{HELD}.crt" in kept.parts
    successor = found if is_displaced else _prepared(kept.parts, knowledge)
    if successor is not None and successor.certificate == issuer.certificate:
        successor = None
    roots = Succession(current=issuer, successor=successor, retired=_retired(kept.parts, now=now))
    noted_longest = read_duration(kept.notes.get(LONGEST, "")) or timedelta()
    if noted_longest > ROOT_LIFETIME:
        # No setting allows that, and no calendar some of what could stand there.
        noted_longest = timedelta()
    rotation = Rotation(
        roots=roots,
        since=now,
        is_displaced=is_displaced,
        longest=max(knowledge.longest, noted_longest),
        handled=kept.notes.get(HANDLED, ""),
    )
    return _staged(rotation, kept.notes)


def _issuer(kept: Kept, knowledge: Knowledge, *, found: Authority | None) -> Authority | None:
    known, noted = knowledge.rotation, kept.notes.get(ISSUER)
    if f"{HELD}.crt" in kept.parts:
        return authority_from(kept.parts, HELD, trust_domain=knowledge.trust_domain, now=knowledge.now)
    if found is not None and _is_as_left(found, noted=noted, published=knowledge.published):
        return found
    if known is not None and _digest(known.roots.current) == noted:
        return known.roots.current
    return None


def _is_as_left(found: Authority, *, noted: str | None, published: tuple[bytes, ...]) -> bool:
    if noted is not None:
        return _digest(found) == noted
    # Kept by a version that noted nothing, or wholly written anew: what was published tells.
    return not published or found.certificate_pem in published


def _staged(rotation: Rotation, notes: Mapping[str, str]) -> Rotation:
    """The stage that is noted, if it fits the roots that are there: those are the truth."""
    possible = _possible_stages(rotation.roots)
    try:
        stage, cause = Stage(notes.get(STAGE, "")), Cause(notes.get(CAUSE, ""))
        since = datetime.fromisoformat(notes.get(SINCE, ""))
        is_usable = stage in possible and since.tzinfo is not None and since <= rotation.since + CLOCK_SKEW
        is_usable &= notes.get(FOLLOWS, "") == _digest(rotation.roots.successor)
    except ValueError:
        is_usable = False
    return rotation.at(stage, now=since, cause=cause) if is_usable else replace(rotation, stage=possible[0])


def _possible_stages(roots: Succession) -> tuple[Stage, ...]:
    if roots.successor is not None:
        return (Stage.PREPARED,)
    return (Stage.ACTIVATED, Stage.TAINTED) if roots.retired else (Stage.STEADY, Stage.REVOKED)


def _in_place(stored: Rotation, now: datetime) -> Rotation:
    """The issuing root lies where it should; if another one lay there, somebody thought better of it."""
    if not stored.is_displaced:
        return stored
    roots = replace(stored.roots, successor=None)
    restored = replace(stored, roots=roots, is_displaced=False)
    return restored.at(_possible_stages(roots)[0], now=now, cause=Cause.SUPPLIED)


def _displaced(stored: Rotation, *, by: Authority | None, now: datetime) -> Rotation:
    known = stored.roots.successor if stored.is_displaced else None
    if stored.is_displaced and (by and by.certificate) == (known and known.certificate):
        return stored
    roots = replace(stored.roots, successor=by)
    displaced = replace(stored, roots=roots, is_displaced=True)
    if by is None and stored.stage in _possible_stages(roots):
        return displaced
    return displaced.at(_possible_stages(roots)[0], now=now, cause=Cause.SUPPLIED)


def _replaced(kept: Kept, knowledge: Knowledge, *, by: Authority) -> Rotation:
    """Nobody has the key of the root before: the new one issues, and nobody is locked out who can hear of it."""
    domain = SpiffeId(trust_domain=knowledge.trust_domain)
    candidates = dict.fromkeys((*_retired(kept.parts, now=knowledge.now), *knowledge.published))
    retired = tuple(r for r in candidates if r != by.certificate_pem and _is_live_root(r, domain, knowledge.now))
    rotation = Rotation(
        roots=Succession(current=by, retired=retired),
        since=knowledge.now,
        longest=knowledge.longest,
        cause=Cause.SUPPLIED,
        handled=kept.notes.get(HANDLED, ""),
    )
    return replace(rotation, stage=_possible_stages(rotation.roots)[0])


def _supplied(parts: Parts, knowledge: Knowledge) -> tuple[Authority | None, str]:
    try:
        return authority_from(parts, CURRENT, trust_domain=knowledge.trust_domain, now=knowledge.now), ""
    except InvalidInput as error:
        return None, str(error)


def _prepared(parts: Parts, knowledge: Knowledge) -> Authority | None:
    """It issued nothing yet: one that is damaged is as good as none."""
    with suppress(InvalidInput):
        return successor_from(parts, trust_domain=knowledge.trust_domain, now=knowledge.now)
    return None


def _retired(parts: Parts, *, now: datetime) -> tuple[bytes, ...]:
    return tuple(root for root in split_roots(parts.get(RETIRED, b"")) if _ends_after(root, now))


def _ends_after(root: bytes, now: datetime) -> bool:
    try:
        return all(now < certificate.not_valid_after_utc for certificate in parse_bundle(root))
    except InvalidInput:
        return False


def _digest(authority: Authority | None) -> str:
    return "" if authority is None else bundle_digest(authority.certificate_pem)


def _is_live_root(pem: bytes, domain: SpiffeId, now: datetime) -> bool:
    return _ends_after(pem, now) and not any(
        problem for certificate in parse_bundle(pem) for problem in root_problems(certificate, spiffe_id=domain)
    )
