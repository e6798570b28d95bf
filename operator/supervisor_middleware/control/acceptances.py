"""Which revision of each policy is accepted. PURE; `Acceptances` remembers its last answer.

Sources hand out the same tuples, and the same objects in them, while nothing changed: identity tells what need not be
looked at again. The webhook asks for every review, the reconciler for every pass; a replica has one for both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision

Revisions: TypeAlias = Mapping[str, tuple[StoredRevision, ...]]
"""Those there are by their policy's UID, oldest first."""
_Reference = tuple[int, str]
_Named = StoredRevision | _Reference | None
"""What a status names: a revision that is there, one that is not, or none."""


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The accepted revisions by the policy's UID, and all there are."""

    by_policy: Mapping[str, StoredRevision]
    revisions: Revisions

    @cached_property
    def bindings(self) -> frozenset[str]:
        """What their entries name."""
        return frozenset(e.binding for r in self.by_policy.values() for e in r.revision.entries)

    def of(self, uid: str) -> StoredRevision | None:
        """That of one policy."""
        return self.by_policy.get(uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The answer about one snapshot."""

    policies: tuple[Stored, ...] | None
    stored: tuple[StoredRevision, ...] | None
    named: Mapping[str, tuple[Stored, _Named]]
    acceptance: Acceptance


_NOTHING = _State(policies=None, stored=None, named={}, acceptance=Acceptance(by_policy={}, revisions={}))


class Acceptances:
    """The acceptance of one snapshot after another; any thread may ask."""

    def __init__(self) -> None:
        self._state = _NOTHING

    def of(self, snapshot: Snapshot) -> Acceptance:
        """The revision each policy's status names: a revision that no status names was never committed.

        Nor is one of a policy that is another by now: a file may move to another namespace and keep its UID.
        """
        before = self._state
        is_same = snapshot.revisions is before.stored
        if is_same and snapshot.policies is before.policies:
            return before.acceptance
        revisions = before.acceptance.revisions if is_same else revisions_by_policy(snapshot.revisions)
        named: dict[str, tuple[Stored, _Named]] = {}
        for policy in snapshot.policies:
            known = before.named.get(policy.uid)
            if known is None or known[0] is not policy:
                known = (policy, _find(accepted_reference(policy.status), revisions.get(policy.uid, ())))
            elif not is_same:
                known = _again(known, revisions.get(policy.uid, ()))
            named[policy.uid] = known
        accepted = {
            policy.uid: found
            for policy, found in named.values()
            if isinstance(found, StoredRevision) and found.revision.policy == policy.subject
        }
        self._state = _State(
            policies=snapshot.policies,
            stored=snapshot.revisions,
            named=named,
            acceptance=Acceptance(by_policy=accepted, revisions=revisions),
        )
        return self._state.acceptance


def acceptance_of(snapshot: Snapshot) -> Acceptance:
    """For whoever looks once."""
    return Acceptances().of(snapshot)


def revisions_by_policy(stored: Iterable[StoredRevision]) -> Revisions:
    """Every stored revision by its policy's UID, oldest first."""
    found: dict[str, tuple[StoredRevision, ...]] = {}
    for revision in stored:
        uid = revision.revision.uid
        others = found.get(uid)
        found[uid] = (revision,) if others is None else tuple(sorted((*others, revision), key=lambda r: r.number))
    return found


def accepted_reference(status: Mapping[str, Any]) -> _Reference | None:
    """Number and digest of the revision that a policy's status names."""
    accepted = status.get("accepted")
    if not isinstance(accepted, Mapping):
        return None
    number, digest = accepted.get("revision"), accepted.get("digest")
    return (number, digest) if isinstance(number, int) and isinstance(digest, str) else None


def _again(known: tuple[Stored, _Named], there: tuple[StoredRevision, ...]) -> tuple[Stored, _Named]:
    """What an unchanged status names among other revisions: reading it again is dear."""
    policy, named = known
    if named is None or any(named is revision for revision in there):
        return known
    reference = (named.number, named.digest) if isinstance(named, StoredRevision) else named
    return policy, _find(reference, there)


def _find(reference: _Reference | None, there: tuple[StoredRevision, ...]) -> _Named:
    found = (r for r in there if (r.number, r.digest) == reference)
    return next(found, reference)
