"""Whose a binding ID is, and which IDs a registration takes out of a manifest. PURE.

RFC 0009 "Registration and delivery": IDs are service-owned and no two services share one. `spec.bindings` lists the
IDs a registration takes; without it, those of the first accepted manifest are claimed and stay its own, so that a
service that is deployed anew, or compromised, cannot take another's ID, not even one that nobody holds now.

An accepted registration keeps its IDs, whoever comes; an older one that is not accepted yet keeps those it declares.
Of two that are new, declare nothing and offer one ID, the first that is described holds it. When the holder is
deleted, the other gets the ID by being judged again, never unseen.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from supervisor_middleware.model.identifiers import is_binding_id, some_of
from supervisor_middleware.model.manifest import Dialect, Manifest
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.violation import Advice

if TYPE_CHECKING:
    from supervisor_middleware.compiler.registration import RegistrationDraft

_MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The registrations around one: what was accepted of it before, of the others, and what others ask for."""

    previous: Registration | None
    accepted: tuple[Registration, ...]
    drafts: "tuple[RegistrationDraft, ...]"

    def owners(self, draft: "RegistrationDraft") -> Mapping[str, str]:
        """Registration names by the IDs that `draft` cannot have."""
        mine = frozenset(() if self.previous is None else self.previous.owned)
        found: dict[str, str] = {}
        for other in sorted(self.accepted, key=lambda r: (r.created_at, r.name)):
            is_older = (other.created_at, other.name) < (draft.created_at, draft.name)
            for identifier in other.owned:
                if is_older or identifier not in mine:
                    found.setdefault(identifier, other.name)
        for asking in sorted(self.drafts, key=lambda d: (d.created_at, d.name)):
            is_older = (asking.created_at, asking.name) < (draft.created_at, draft.name)
            for identifier in asking.declared_bindings:
                if is_older and identifier not in mine:
                    found.setdefault(identifier, asking.name)
        return found

    def beside(self, endpoint: str) -> frozenset[str]:
        """IDs that other registrations of the same endpoint take: one service may be registered in parts."""
        accepted = (i for r in self.accepted if r.connection.endpoint == endpoint for i in r.owned)
        asked = (i for d in self.drafts if d.is_of(endpoint) for i in d.declared_bindings)
        return frozenset((*accepted, *asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What a registration takes: `manifest` is narrowed to it, `claims` are the IDs that are its own from then on."""

    manifest: Manifest
    claims: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Offered, and taken by nobody."""
    missing: tuple[str, ...] = ()
    """Its own, and not offered."""


def neighbours_of(
    draft: "RegistrationDraft", *, others: Iterable[Registration], drafts: "Iterable[RegistrationDraft]" = ()
) -> Neighbours:
    """Everybody else, told apart from `draft` by UID."""
    known = {r.uid: r for r in others}
    return Neighbours(
        previous=known.pop(draft.uid, None),
        accepted=tuple(known.values()),
        drafts=tuple(d for d in drafts if d.uid != draft.uid),
    )


def expose(draft: "RegistrationDraft", manifest: Manifest, *, neighbours: Neighbours) -> Exposure:
    """What `draft` takes out of `manifest`: a released service whole, since its one ID is the registration's name."""
    claims = _claims(draft, manifest, neighbours.previous)
    if manifest.dialect is Dialect.RELEASED:
        return Exposure(manifest=manifest, claims=claims)
    offered = dict.fromkeys(b.id for b in manifest.bindings)
    elsewhere = neighbours.beside("" if draft.connection is None else draft.connection.endpoint)
    return Exposure(
        manifest=narrowed(manifest, claims),
        claims=claims,
        left_out=tuple(i for i in offered if i not in claims and i not in elsewhere),
        missing=tuple(i for i in claims if i not in offered),
    )


def narrowed(manifest: Manifest, identifiers: Iterable[str]) -> Manifest:
    """The manifest with the bindings of these IDs only."""
    kept = frozenset(identifiers)
    return replace(manifest, bindings=tuple(b for b in manifest.bindings if b.id in kept))


def deviations(draft: "RegistrationDraft", exposure: Exposure) -> Iterator[str]:
    """In words, how what the service offers differs from what the registration holds."""
    if left_out := _listed(exposure.left_out):
        why = (
            "spec.bindings does not list it"
            if draft.declared_bindings
            else "spec.bindings is absent and it came after acceptance"
        )
        yield f"the service also offers {left_out}, left out because {why}; list there all that is to be selectable"
    if missing := _listed(exposure.missing):
        yield f"the service does not offer {missing}, which stays reserved for this registration"


def claims_advice(draft: "RegistrationDraft", manifest: Manifest, exposure: Exposure) -> Iterator[Advice]:
    """Worth knowing of what is taken and what is not."""
    if manifest.dialect is Dialect.RELEASED and draft.declared_bindings:
        message = (
            "selects nothing of a released service, whose one ID is the registration's name; it reserves the IDs"
        )
        yield Advice(subject=draft.subject, path="spec.bindings", message=message)
    for message in deviations(draft, exposure):
        yield Advice(subject=draft.subject, path="spec.bindings", message=message)


def _claims(draft: "RegistrationDraft", manifest: Manifest, previous: Registration | None) -> tuple[str, ...]:
    if draft.declared_bindings:
        return draft.declared_bindings
    if previous is None:
        return tuple(dict.fromkeys(b.id for b in manifest.bindings))
    if previous.manifest.dialect is Dialect.RELEASED:  # its ID is its name, and follows it
        return tuple(draft.name if i == previous.name else i for i in previous.claims)
    return previous.claims


def _listed(identifiers: tuple[str, ...]) -> str:
    """Plain IDs only, and not all of many: they are the service's words."""
    return some_of([i for i in identifiers if is_binding_id(i)], limit=_MAX_NAMED)
