"""Which policies stand together in one sandbox, tier by tier. PURE.

Two tiers: the platform's baseline, which is laid alone and which no tenant can block or weaken, and the tenants'
policies on top of it. Inside a tier the older policy stands and the newer is `Conflicted` (creation time, then
namespace and name); a tenant's policy also gives way to the baseline, however old it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.compiler.skipped import Overlaps, for_example, selector_of
from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.identifiers import is_policy_key, plain_text
from supervisor_middleware.model.limits import MAX_BASELINE_CONFIGS, MAX_STAGES
from supervisor_middleware.model.revision import Entry, Position, Revision
from supervisor_middleware.model.revision import Unresolved as Why
from supervisor_middleware.model.violation import Reason, Violation

MAX_MERGED_PATTERNS: Final = 4096
"""Four such stages and ten others fit the 8 MiB of an offer, and a request is still matched in milliseconds."""
EVERY_HOST: Final = "**"
PLATFORM: Final = "platform"
"""Before the keys of a baseline: those of two tiers never collide, since no key has a colon."""

MAX_SHOWN_KEY: Final = 64
MAX_SHOWN_LABEL: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """An entry with the policy it comes from."""

    policy: str
    entry: Entry
    deadline: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """`entries` in running order; those of policies that conflict come last, where they deny or are bypassed."""

    entries: tuple[Layered, ...]
    violations: tuple[Violation, ...]


@dataclass(slots=True)
class _Tier:
    """One tier while it is laid: what stands, what does not, and what was said about it."""

    room: int
    overlaps: Overlaps
    beneath: Sequence[Revision] = ()
    standing: list[Revision] = field(default_factory=list)
    conflicted: list[Revision] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    @property
    def stages(self) -> int:
        return sum(len(r.entries) for r in self.standing)

    def lay(self, revision: Revision) -> None:
        found = list(_conflicts(revision, self))
        self.violations.extend(found)
        stands = not found and self.stages + len(revision.entries) <= self.room
        (self.standing if stands else self.conflicted).append(revision)


def layer(selecting: Iterable[Revision]) -> Layers:
    """Lay the policies that select one sandbox."""
    ordered = sorted(selecting, key=_seniority)
    overlaps = Overlaps()
    baseline = _Tier(room=MAX_BASELINE_CONFIGS, overlaps=overlaps)
    for revision in ordered:
        if revision.is_baseline:
            baseline.lay(revision)
    tenants = _Tier(room=MAX_STAGES - baseline.stages, overlaps=overlaps, beneath=baseline.standing)
    for revision in ordered:
        if not revision.is_baseline:
            tenants.lay(revision)
    standing = [*_placed(baseline, Position.FIRST), *_placed(tenants, None), *_placed(baseline, Position.LAST)]
    for tier in (baseline, tenants):
        standing.extend(_fit(_unresolved(tier.conflicted), room=MAX_STAGES - len(standing)))
    return Layers(entries=tuple(standing), violations=(*baseline.violations, *tenants.violations))


def _seniority(revision: Revision) -> tuple[bool, datetime, str, str]:
    """Older first; but a policy that was never accepted takes no place from one that was."""
    is_unresolved = any(e.unresolved for e in revision.entries)
    return is_unresolved, revision.created_at, revision.policy.namespace or "", revision.policy.name


def _placed(tier: _Tier, position: Position | None) -> list[Layered]:
    chosen = [r for r in tier.standing if position in {None, r.position}]
    return sorted((i for r in chosen for i in _layered(r)), key=lambda i: (i.entry.order, i.entry.key))


def _layered(revision: Revision) -> Iterator[Layered]:
    for place, entry in enumerate(revision.entries):
        shown = _shown(revision, entry, place=place)
        yield Layered(policy=_name(revision), entry=shown, deadline=revision.activation_deadline)


def _shown(revision: Revision, entry: Entry, *, place: int) -> Entry:
    """Under the key that it has in a chain: nothing that a tenant writes can pass for the platform's."""
    is_named = is_policy_key(entry.key)
    if is_named and not revision.is_baseline:
        return entry
    # One that was never accepted may have any key, of any length. What is cut off may have told two apart, and a
    # supervisor refuses a generation for good in which two stages have one key.
    key = entry.key if is_named else f"{_name(revision)}:{place}:{plain_text(entry.key, limit=MAX_SHOWN_KEY)}"
    shown = f"{PLATFORM}:{key}" if revision.is_baseline else key
    return replace(entry, key=shown, label=plain_text(entry.label, limit=MAX_SHOWN_LABEL))


def _name(revision: Revision) -> str:
    """`namespace/name` for audit; a baseline's has no namespace, and no slash."""
    namespace, name = revision.policy.namespace, revision.policy.name
    return f"{namespace}/{name}" if namespace else name


# ------------------------------------------------------------------------------------------------------- conflicts


def _conflicts(revision: Revision, tier: _Tier) -> Iterator[Violation]:
    standing = [(r, e) for r in tier.standing for e in r.entries]
    orders = {e.order: _name(r) for r, e in standing}
    keys = {e.key: _name(r) for r, e in standing}
    scope = "namespaces" if revision.is_baseline else "sandboxes"
    for entry in revision.entries:
        path = ("spec", "networkMiddlewares", entry.key)
        if entry.key in keys:
            message = f"the key is already used for the same {scope} by policy {keys[entry.key]}"
            yield _conflict(revision, path_of(path), message, "rename the key")
        if entry.order in orders and entry.unresolved is None:  # one that cannot run has no place to take
            message = f"order {entry.order} is already used for the same {scope} by policy {orders[entry.order]}"
            yield _conflict(revision, path_of((*path, "order")), message, "choose another order")
    yield from _crowding(revision, tier)
    yield from _blindness(revision, (*tier.beneath, *tier.standing), tier.overlaps)


def _crowding(revision: Revision, tier: _Tier) -> Iterator[Violation]:
    total, taken = tier.stages + len(revision.entries), MAX_STAGES - tier.room
    if total <= tier.room or not (tier.standing or tier.beneath):
        return  # one that is too long by itself is told so when it is compiled
    if revision.is_baseline:
        message = f"with other baselines the same namespaces would have {total} baseline stages, {tier.room} at most"
        hint = "remove configs here or there"
    elif taken:
        message = (
            f"the same sandboxes would have {total} stages beside {taken} of the platform's baseline, "
            f"at most {MAX_STAGES} in all are allowed"
        )
        hint = f"keep to {tier.room} for these sandboxes"
    else:
        message = (
            f"with other policies the same sandboxes would have {total} stages, {MAX_STAGES} at most are allowed"
        )
        hint = "remove configs here or there"
    yield _conflict(revision, "spec.networkMiddlewares", message, hint)


def _blindness(revision: Revision, others: Iterable[Revision], overlaps: Overlaps) -> Iterator[Violation]:
    """Nobody looks into a `tls: skip` host, so no chain of the same sandbox may select it, whosever it is."""
    for other in others:
        for entry in other.entries:
            for skip, host in overlaps.hits(selector_of(entry.include, entry.exclude), revision.skips):
                key = plain_text(entry.key, limit=MAX_SHOWN_KEY)
                message = (
                    f"with tls: skip no middleware may select the host, but {key} of policy {_name(other)} does for "
                    f"the same sandboxes{for_example(host)}"
                )
                yield _conflict(revision, f"{skip.path}.host", message, "remove tls: skip, or have it excluded there")
        for entry in revision.entries:
            for _, host in overlaps.hits(selector_of(entry.include, entry.exclude), other.skips):
                path = path_of(("spec", "networkMiddlewares", entry.key, "endpoints"))
                message = f"selects a host with tls: skip of policy {_name(other)}{for_example(host)}"
                yield _conflict(revision, path, message, "add it to exclude")


def _conflict(revision: Revision, path: str, message: str, hint: str) -> Violation:
    return Violation(subject=revision.policy, path=path, reason=Reason.CONFLICTED, message=message, hint=hint)


# ---------------------------------------------------------------------------------------------- what does not stand


def _unresolved(revisions: Iterable[Revision]) -> list[Layered]:
    """A conflicted stage never shares a key with the one that stands: keys are identities."""
    found = [_renamed(item, item.entry.key) for revision in revisions for item in _layered(revision)]
    return [replace(i, entry=replace(i.entry, unresolved=i.entry.unresolved or Why.CONFLICTED)) for i in found]


def _fit(conflicted: list[Layered], *, room: int) -> list[Layered]:
    """What does not stand, never in the place of what does.

    More than there is room for share two stages beside the ten: one that closes its hosts, and one whose bypass is
    audited. Neither is ever asked, so a chain may have them besides.
    """
    if len(conflicted) <= room:
        return conflicted
    closed = [i for i in conflicted if i.entry.on_error is OnError.FAIL_CLOSED]
    bypassed = [i for i in conflicted if i.entry.on_error is OnError.FAIL_OPEN]
    return [_merged(items) for items in (closed, bypassed) if items]


def _merged(items: list[Layered]) -> Layered:
    """One stage for the hosts of several; for every host where they are too many to be sent and matched."""
    include = sorted({p for i in items for p in i.entry.include})
    exclude = sorted(set.intersection(*(set(i.entry.exclude) for i in items)))
    if len(include) > MAX_MERGED_PATTERNS:
        include = [EVERY_HOST]
    first = items[0]
    entry = replace(first.entry, include=tuple(include), exclude=tuple(exclude))
    return _renamed(replace(first, entry=entry), first.entry.on_error.value)


def _renamed(item: Layered, key: str) -> Layered:
    return replace(item, entry=replace(item.entry, key=f"{item.policy}:{key}"))
