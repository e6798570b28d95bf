"""What a change of one policy would bring about, before it is one. PURE; for the webhook.

Only sandboxes are looked at that the policy selects, or did, and nothing is composed or serialized for them: who
stands and who conflicts follows from the revisions alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from supervisor_middleware.compiler.composition import selects
from supervisor_middleware.compiler.layers import layer
from supervisor_middleware.control.selection import Selection
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.violation import Report, Subject, Violation, report


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What the changed policy itself would be told, who else would conflict that does not now, and whom it meets."""

    own: Report
    broken: tuple[Subject, ...]
    met: tuple[Subject, ...]


def foresee(
    revision: Revision, *, before: Revision | None, others: Iterable[Revision], snapshot: Snapshot
) -> Foresight:
    """What follows if `revision` takes the place of `before` among `others`."""
    changed = [revision] if before is None or before.selector == revision.selector else [revision, before]
    concerned = [
        s
        for s in snapshot.sandboxes
        if (labels := snapshot.namespaces.get(s.namespace)) is not None
        and any(selects(r, s, namespace_labels=labels) for r in changed)
    ]
    if not concerned:
        return Foresight(own=Report(), broken=(), met=())
    reach = {s.namespace for s in concerned}
    near = [r for r in others if r.is_baseline or r.policy.namespace in reach]
    old = () if before is None else (before,)
    labels_in_reach = {name: snapshot.namespaces[name] for name in reach}
    selection = Selection()
    selection.update(concerned, (*near, *old), labels_in_reach)
    earlier = _told(_gatherings(selection, [s.key for s in concerned]))
    selection.update(concerned, (*near, revision), labels_in_reach)
    gatherings = tuple(_gatherings(selection, selection.selected(revision.uid)))
    later = _told(gatherings)
    met = sorted({r.policy for g in gatherings for r in g} - {revision.policy}, key=str)
    broken = sorted(later.keys() - earlier.keys() - {revision.policy}, key=str)
    return Foresight(own=report(later.get(revision.policy, ())), broken=tuple(broken), met=tuple(met))


def _gatherings(selection: Selection, keys: Iterable[str]) -> Iterator[tuple[Revision, ...]]:
    """The policies that meet for some sandbox, each company once however many sandboxes have it."""
    found = {frozenset(r.uid for r in selecting): selecting for k in keys if (selecting := selection.selecting(k))}
    yield from found.values()


def _told(gatherings: Iterable[tuple[Revision, ...]]) -> Mapping[Subject, list[Violation]]:
    told: dict[Subject, list[Violation]] = {}
    for violation in chain.from_iterable(layer(g).violations for g in gatherings):
        told.setdefault(violation.subject, []).append(violation)
    return told
