"""Which revisions are made, and which are dropped. PURE; the reconciler writes and deletes them.

A revision counts from the moment its policy's status names it. Numbers are never used twice, also not those of
revisions that were never committed or cannot be read.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from supervisor_middleware.control.acceptances import Revisions, accepted_reference, revisions_by_policy
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision

KEPT_REVISIONS: Final = 2
"""The current one and the one before it."""


def orphans(snapshot: Snapshot) -> Mapping[str, Revision]:
    """The newest revision of each policy (by UID) that is gone: what applied before this operator led.

    Whether it was ever committed only the policy's status told. If it was not, it would have been in a moment.
    """
    there = {p.uid for p in snapshot.policies}
    newest = {uid: stored[-1].revision for uid, stored in revisions_by_policy(snapshot.revisions).items()}
    return {uid: revision for uid, revision in newest.items() if uid not in there}


def revision_to_store(
    fresh: Revision, *, policy: Stored, stored: tuple[StoredRevision, ...], epoch: int
) -> StoredRevision:
    """`fresh` as it is to be saved; `stored` are the revisions there are of its policy, oldest first."""
    digest, latest = fresh.digest, stored[-1] if stored else None
    if latest and (latest.digest, latest.epoch, latest.revision.policy) == (digest, epoch, fresh.policy):
        # Saved by a pass of ours whose status write was lost: the same content is the same revision.
        return latest
    named = accepted_reference(policy.status)
    number = 1 + max(latest.number if latest else 0, named[0] if named else 0)
    return StoredRevision(number=number, epoch=epoch, digest=digest, revision=fresh)


def surplus(
    by_policy: Revisions,
    *,
    accepted: Mapping[str, StoredRevision],
    needed: frozenset[str],
) -> Iterator[StoredRevision]:
    """Revisions nobody needs: older than the previous one, or of policies that are gone.

    `needed` are policies (by UID) that are there or still leaving: without a revision in force, nothing is known of
    theirs, so they keep all.
    """
    for uid, stored in by_policy.items():
        current = accepted.get(uid)
        if current is not None:
            older = [r for r in stored if r.number < current.number]
            yield from older[: 1 - KEPT_REVISIONS]
        elif uid not in needed:
            yield from stored
