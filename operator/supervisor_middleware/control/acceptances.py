"""Which revision of each policy is accepted. PURE; `Acceptances` remembers its last answer.

Sources hand out the same tuples, and the same objects in them, while nothing changed: identity tells what need not be
looked at again. The webhook asks for every review, the reconciler for every pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision

_Reference = tuple[int, str]


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The accepted revisions by the policy's UID."""

    by_policy: Mapping[str, StoredRevision]

    @cached_property
    def bindings(self) -> frozenset[str]:
        """What their entries name."""
        return frozenset(e.binding for r in self.by_policy.values() for e in r.revision.entries)

    def of(self, uid: str) -> StoredRevision | None:
        """That of one policy."""
        return self.by_policy.get(uid)


class Acceptances:
    """The acceptance of one snapshot after another."""

    def __init__(self) -> None:
        self._policies: tuple[Stored, ...] | None = None
        self._revisions: tuple[StoredRevision, ...] | None = None
        self._kept: dict[tuple[str, int, str], StoredRevision] = {}
        self._named: dict[str, tuple[Stored, _Reference | None]] = {}
        self._last = Acceptance(by_policy={})

    def of(self, snapshot: Snapshot) -> Acceptance:
        """The revision each policy's status names: a revision that no status names was never committed.

        Nor is one of a policy that is another by now: a file may move to another namespace and keep its UID.
        """
        if snapshot.policies is self._policies and snapshot.revisions is self._revisions:
            return self._last
        if snapshot.revisions is not self._revisions:
            self._kept = {(r.revision.uid, r.number, r.digest): r for r in snapshot.revisions}
        self._named = {p.uid: (p, self._reference(p)) for p in snapshot.policies}
        found = (
            (policy, self._kept.get((uid, *reference)))
            for uid, (policy, reference) in self._named.items()
            if reference is not None
        )
        accepted = {p.uid: r for p, r in found if r is not None and r.revision.policy == p.subject}
        self._policies, self._revisions = snapshot.policies, snapshot.revisions
        self._last = Acceptance(by_policy=accepted)
        return self._last

    def _reference(self, policy: Stored) -> _Reference | None:
        known = self._named.get(policy.uid)
        return known[1] if known is not None and known[0] is policy else accepted_reference(policy.status)


def acceptance_of(snapshot: Snapshot) -> Acceptance:
    """For whoever looks once."""
    return Acceptances().of(snapshot)


def accepted_reference(status: Mapping[str, Any]) -> _Reference | None:
    """Number and digest of the revision that a policy's status names."""
    accepted = status.get("accepted")
    if not isinstance(accepted, Mapping):
        return None
    number, digest = accepted.get("revision"), accepted.get("digest")
    return (number, digest) if isinstance(number, int) and isinstance(digest, str) else None
