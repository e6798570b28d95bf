"""Who leads, by one Lease. PURE: what a replica saw of it, and what follows by that replica's own clock.

The rules:
1.  Clocks of machines are never compared. A holder is respected for the Lease's duration from when *we* saw the
    record change; `renewTime` is only another mark that differs after each renewal.
2.  Whoever leads counts from before it asked for the last renewal that succeeded, and gives up (`RENEW_DEADLINE`)
    before anybody else may take over (`LEASE_DURATION`).
3.  A Lease that is gone frees nobody: a holder that was seen is still respected for as long as it would have been.
4.  The epoch is written in the compare-and-swap that acquires. It is above every epoch that is known: of the Lease,
    of Leases that were deleted since, and of everything persisted. It is also at least the time in seconds, so that a
    new cluster, a deleted Lease and a restored etcd all move forward.
"""

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from supervisor_middleware.model.lease import LEASE_DURATION, Lease

RENEW_DEADLINE: Final = 7.0
RETRY: Final = 2.0
LONGEST_RESPECTED: Final = 60.0
"""A record may claim any duration; a stranger's must not keep everybody from leading for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Our own leading: good until `until`, by our clock."""

    epoch: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one replica knows. Until `busy_until` somebody else may lead."""

    identity: str
    lease: Lease | None = None
    busy_until: float = float("-inf")
    highest_epoch: int = 0
    term: Term | None = None


@dataclass(frozen=True, slots=True)
class Acquire:
    """Nobody leads: try to."""


@dataclass(frozen=True, slots=True)
class Renew:
    """We lead, and should say so again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class StepDown:
    """We led, and do not any more."""

    why: str


Decision: TypeAlias = Acquire | Renew | Wait | StepDown

NOT_RENEWED: Final = StepDown("the lease could not be renewed in time")
TAKEN: Final = StepDown("somebody else holds the lease")


def observe(view: View, lease: Lease | None, *, now: float) -> View:
    """Take in the record as it was read (None: there is none); `now` is when the answer was here."""
    if lease is None:
        return replace(view, lease=None)
    highest = max(view.highest_epoch, lease.epoch)
    if lease.holder in {"", view.identity}:
        return replace(view, lease=lease, highest_epoch=highest, busy_until=float("-inf"))
    if lease == view.lease:
        return view
    respected = min(max(lease.duration, LEASE_DURATION), LONGEST_RESPECTED)
    return replace(view, lease=lease, highest_epoch=highest, busy_until=now + respected)


def decide(view: View, *, now: float) -> Decision:
    """What to do now."""
    term = view.term
    if term is None:
        return Acquire() if now >= view.busy_until else Wait(view.busy_until)
    if now >= term.until:
        return NOT_RENEWED
    if view.lease is not None and not holds(view):
        return TAKEN
    due = term.until - RENEW_DEADLINE + RETRY
    return Renew() if now >= due or view.lease is None else Wait(due)


def holds(view: View) -> bool:
    """Whether the record names our term: nobody led since it was written."""
    lease, term = view.lease, view.term
    if lease is None or term is None:
        return False
    return (lease.holder, lease.epoch) == (view.identity, term.epoch)


def acquisition(view: View, *, mark: str, unix_seconds: int, highest_epoch: int) -> Lease:
    """The record that makes us leader; `highest_epoch` is the highest of everything persisted."""
    before = view.lease
    epoch = max(highest_epoch + 1, view.highest_epoch + 1, unix_seconds)
    transitions = 0 if before is None else before.transitions + (before.holder != view.identity)
    return Lease(holder=view.identity, renewed=mark, transitions=transitions, epoch=epoch)


def renewal(view: View, *, mark: str) -> Lease:
    """The record that keeps us leader. A Lease that was deleted is written again, with our epoch."""
    epoch = view.highest_epoch if view.term is None else view.term.epoch
    transitions = 0 if view.lease is None else view.lease.transitions
    return Lease(holder=view.identity, renewed=mark, transitions=transitions, epoch=epoch)


def release(view: View, *, mark: str) -> Lease:
    """The record that lets the next one lead at once."""
    return replace(renewal(view, mark=mark), holder="")


def written(view: View, lease: Lease, *, asked_at: float) -> View:
    """Take in that `lease`, ours, was written; the term counts from before we asked.

    A term that was over when the answer came stays over: see `decide`.
    """
    until = asked_at + RENEW_DEADLINE
    return replace(
        view,
        lease=lease,
        highest_epoch=max(view.highest_epoch, lease.epoch),
        busy_until=float("-inf"),
        term=Term(epoch=lease.epoch, until=until),
    )


def ended(view: View) -> View:
    """Our term is over."""
    return replace(view, term=None)
