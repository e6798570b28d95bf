"""How what a service offers differs from what was accepted of it. PURE: a part of `control.registrations`.

What a service offers beyond or short of what its registration holds is drift: said, never taken over. Says binding
IDs and numbers only: a manifest is the service's own text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.compiler.claims import Neighbours, deviations, expose, narrowed
from supervisor_middleware.compiler.registration import RegistrationDraft
from supervisor_middleware.model.durations import format_duration, parse_timeout
from supervisor_middleware.model.manifest import Binding, Manifest
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.violation import Report

LOST: Final = "the service no longer offers what was accepted"
_UNACCEPTABLE: Final = "the service describes itself in a way that cannot be accepted; status.violations says how"
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Empty if there is none. `offered` is the digest of all that the service offers now."""

    text: str = ""
    offered: str = ""
    lost: frozenset[str] = frozenset()
    """Accepted bindings that the service no longer offers as they were accepted: what runs on them is degraded."""

    def __bool__(self) -> bool:
        return bool(self.text)


def drift_of(
    draft: RegistrationDraft,
    described: Manifest,
    found: Report,
    *,
    committed: Registration | None,
    neighbours: Neighbours,
) -> Drift:
    """What is new or gone at the service; nothing if it is only the registration that changed."""
    if found.is_valid:
        text = "; ".join(deviations(draft, expose(draft, described, neighbours=neighbours)))
        return Drift(text=text, offered=described.digest) if text else Drift()
    if committed is None or committed.connection != draft.connection or committed.name != draft.name:
        return Drift()
    identifiers = frozenset(b.id for b in committed.manifest.bindings)
    changes = dict(_changes(committed.manifest, narrowed(described, identifiers)))
    is_broken = any(v.path == "status.manifest" for v in found.violations)
    if not changes and not is_broken:
        return Drift()
    needed, offered = _limits(committed, committed.manifest), _limits(committed, described)
    lost = frozenset(i for (i, *hook), limit in needed.items() if offered.get((i, *hook), 0) < limit)
    if is_broken and not lost:
        # It claims what it must not, say: then its other bindings are not trusted either.
        lost = identifiers
    text = f"{LOST}: {_first(changes.values())}" if changes else _UNACCEPTABLE
    return Drift(text=text, offered=described.digest, lost=lost)


def _changes(accepted: Manifest, offered: Manifest) -> Iterator[tuple[str, str]]:
    """For each accepted binding that is another now, or gone, what is."""
    for identifier in sorted({b.id for b in accepted.bindings}):
        before = [b for b in accepted.bindings if b.id == identifier]
        after = [b for b in offered.bindings if b.id == identifier]
        if not after:
            yield identifier, f"binding {identifier} is gone"
        elif len(before) != len(after):
            yield identifier, f"binding {identifier} is offered {len(after)} times, not {len(before)}"
        elif words := [w for b, a in zip(_ordered(before), _ordered(after), strict=True) for w in _differences(b, a)]:
            yield identifier, f"binding {identifier} {' and '.join(words)}"
    if accepted.dialect is not offered.dialect:
        yield from ((b.id, f"binding {b.id} is of another dialect") for b in accepted.bindings)


def _differences(before: Binding, after: Binding) -> Iterator[str]:
    if (before.operation, before.phase) != (after.operation, after.phase):
        yield "is for another hook"
    if before.max_body_bytes != after.max_body_bytes:
        yield f"takes {after.max_body_bytes} body bytes, not {before.max_body_bytes}"
    if before.timeout != after.timeout:
        yield f"has {_timeout(after.timeout)}, not {_timeout(before.timeout)}"


def _timeout(text: str) -> str:
    if not text:
        return "no timeout"
    try:
        return f"a timeout of {format_duration(parse_timeout(text))}"
    except ValueError:
        return "a timeout that is none"


def _limits(committed: Registration, manifest: Manifest) -> dict[tuple[str, ...], int]:
    """By ID and hook, as far as the registration makes use of them."""
    return {(b.id, b.operation, b.phase): min(b.max_body_bytes, committed.max_body_bytes) for b in manifest.bindings}


def _ordered(bindings: Iterable[Binding]) -> list[Binding]:
    return sorted(bindings, key=lambda b: (b.operation, b.phase))


def _first(texts: Iterable[str]) -> str:
    every = list(texts)
    more = f", and {len(every) - _MAX_NAMED} more" if len(every) > _MAX_NAMED else ""
    return ", ".join(every[:_MAX_NAMED]) + more
