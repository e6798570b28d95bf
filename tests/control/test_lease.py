"""Who leads, by each replica's own clock: tables, and every interleaving of several replicas that hypothesis finds."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.control.lease import (
    LONGEST_RESPECTED,
    NOT_RENEWED,
    RENEW_DEADLINE,
    RETRY,
    TAKEN,
    Acquire,
    Decision,
    Renew,
    StepDown,
    View,
    Wait,
    acquisition,
    decide,
    ended,
    holds,
    observe,
    release,
    renewal,
    written,
)
from supervisor_middleware.model.lease import LEASE_DURATION, Lease

ME, OTHER = "me", "other"
FRESH = View(identity=ME)
LEADING = written(FRESH, Lease(holder=ME, renewed="0", epoch=5), asked_at=100.0)


def held_by(holder: str, *, renewed: str = "0", duration: float = LEASE_DURATION, epoch: int = 3) -> Lease:
    return Lease(holder=holder, renewed=renewed, duration=duration, transitions=4, epoch=epoch)


def seen(*records: tuple[float, Lease | None]) -> View:
    view = FRESH
    for at, lease in records:
        view = observe(view, lease, now=at)
    return view


@pytest.mark.parametrize(
    ("view", "now", "decision"),
    [
        (seen((0.0, None)), 0.0, Acquire()),
        (seen((0.0, held_by(""))), 0.0, Acquire()),
        (seen((0.0, held_by(ME))), 0.0, Acquire()),
        (seen((50.0, held_by(OTHER))), 50.0, Wait(60.0)),
        (seen((50.0, held_by(OTHER))), 59.9, Wait(60.0)),
        (seen((50.0, held_by(OTHER))), 60.0, Acquire()),
        (seen((50.0, held_by(OTHER)), (58.0, held_by(OTHER))), 60.0, Acquire()),
        (seen((50.0, held_by(OTHER)), (58.0, held_by(OTHER, renewed="1"))), 60.0, Wait(68.0)),
        (seen((50.0, held_by(OTHER)), (51.0, held_by(""))), 51.0, Acquire()),
        (seen((50.0, held_by(OTHER)), (51.0, None)), 51.0, Wait(60.0)),
        (seen((50.0, held_by(OTHER, duration=30.0))), 60.0, Wait(80.0)),
        (seen((50.0, held_by(OTHER, duration=0.0))), 51.0, Wait(60.0)),
        (seen((50.0, held_by(OTHER, duration=1e9))), 51.0, Wait(50.0 + LONGEST_RESPECTED)),
        (LEADING, 100.0, Wait(100.0 + RETRY)),
        (LEADING, 100.0 + RETRY, Renew()),
        (LEADING, 100.0 + RENEW_DEADLINE, NOT_RENEWED),
        (observe(LEADING, None, now=100.0), 100.0, Renew()),
        (observe(LEADING, held_by(OTHER), now=101.0), 101.0, TAKEN),
        (observe(LEADING, held_by(ME, epoch=4), now=101.0), 101.0, TAKEN),
        (observe(LEADING, held_by(""), now=101.0), 101.0, TAKEN),
        (ended(LEADING), 100.0, Acquire()),
    ],
    ids=[
        "no lease",
        "a clean exit",
        "our own, from before",
        "somebody's, just seen",
        "somebody's, almost expired",
        "somebody's, expired by our clock",
        "seen again unchanged",
        "renewed",
        "released",
        "deleted: the holder is respected all the same",
        "a longer duration is respected",
        "a shorter one gives nobody less time",
        "an absurd one does not lock everybody out",
        "we lead",
        "we lead and should renew",
        "we could not renew in time",
        "our lease was deleted",
        "somebody took it",
        "an older term of our own stands there",
        "somebody emptied it",
        "our term is over and nobody was there since",
    ],
)
def test_decisions(view: View, now: float, decision: Decision) -> None:
    assert decide(view, now=now) == decision


@pytest.mark.parametrize(
    ("lease", "highest", "unix", "epoch"),
    [
        (None, 0, 1_700_000_000, 1_700_000_000),
        (None, 1_800_000_000, 1_700_000_000, 1_800_000_001),
        (held_by("", epoch=1_900_000_000), 1_800_000_000, 1_700_000_000, 1_900_000_001),
        (held_by("", epoch=5), 1_800_000_000, 1_700_000_000, 1_800_000_001),
    ],
    ids=["a new cluster", "a reinstall: revisions, no lease", "the lease is ahead", "an old lease was restored"],
)
def test_an_epoch_is_above_everything_known(lease: Lease | None, highest: int, unix: int, epoch: int) -> None:
    view = observe(FRESH, lease, now=0.0)
    assert acquisition(view, mark="m", unix_seconds=unix, highest_epoch=highest).epoch == epoch


def test_the_epoch_of_a_deleted_lease_is_remembered() -> None:
    view = seen((0.0, held_by("", epoch=9)), (1.0, None))
    assert acquisition(view, mark="m", unix_seconds=0, highest_epoch=0).epoch == 10


def test_a_leader_steps_down_before_an_epoch_that_an_administrator_wrote_and_leads_again_above_it() -> None:
    raised = observe(LEADING, held_by(ME, epoch=2_000_000_000), now=101.0)
    assert decide(raised, now=101.0) == TAKEN
    again = ended(raised)
    assert decide(again, now=101.0) == Acquire()
    assert acquisition(again, mark="m", unix_seconds=1_700_000_000, highest_epoch=5).epoch == 2_000_000_001


def test_transitions_are_counted() -> None:
    for holder, transitions in ((OTHER, 5), ("", 5), (ME, 4)):
        view = observe(FRESH, held_by(holder), now=0.0)
        assert acquisition(view, mark="m", unix_seconds=0, highest_epoch=0).transitions == transitions
    assert acquisition(FRESH, mark="m", unix_seconds=0, highest_epoch=0).transitions == 0


def test_a_renewal_changes_the_mark_and_a_release_the_holder() -> None:
    assert LEADING.lease is not None
    again = renewal(LEADING, mark="1")
    assert again == replace(LEADING.lease, renewed="1")
    assert release(LEADING, mark="1") == replace(again, holder="")
    assert renewal(observe(LEADING, None, now=101.0), mark="1") == again
    assert not holds(FRESH)


# ---------------------------------------------------------------------------------------------------- interleavings


@dataclass(slots=True)
class Replica:
    """One replica with a clock of its own, that may be stopped at any point, also between asking and doing."""

    view: View
    offset: float
    version: int = -1
    prepared: tuple[Lease, float, int] | None = None
    epochs: list[int] = field(default_factory=list)

    def leads(self, now: float) -> bool:
        return self.view.term is not None and now + self.offset < self.view.term.until


@dataclass(slots=True)
class Cluster:
    """The Lease, true time, and the replicas."""

    replicas: list[Replica]
    now: float = 0.0
    lease: Lease | None = None
    version: int = 0
    epochs: list[int] = field(default_factory=list)
    marks: int = 0

    def read(self, replica: Replica) -> None:
        replica.view = observe(replica.view, self.lease, now=self.now + replica.offset)
        replica.version = self.version

    def ask(self, replica: Replica) -> None:
        """Decide and make the request; it reaches the API server by `land`, perhaps much later."""
        clock, self.marks = self.now + replica.offset, self.marks + 1
        match decide(replica.view, now=clock):
            case Acquire():
                lease = acquisition(replica.view, mark=str(self.marks), unix_seconds=0, highest_epoch=0)
            case Renew():
                lease = renewal(replica.view, mark=str(self.marks))
            case StepDown():
                replica.view = ended(replica.view)
                return
            case Wait():
                return
        replica.prepared = (lease, clock, replica.version)

    def release(self, replica: Replica) -> None:
        if replica.leads(self.now):
            self.marks += 1
            replica.prepared = (release(replica.view, mark=str(self.marks)), 0.0, replica.version)
            replica.view = ended(replica.view)

    def land(self, replica: Replica, *, is_answer_lost: bool) -> None:
        if replica.prepared is None:
            return
        (lease, asked_at, version), replica.prepared = replica.prepared, None
        if version != self.version:
            return
        is_new = self.lease is None or lease.epoch != self.lease.epoch
        self.lease, self.version = lease, self.version + 1
        if is_new:
            self.epochs.append(lease.epoch)
        if is_answer_lost or not lease.holder:
            return
        replica.version = self.version
        # As the election does: a term that was over when the answer came stays over.
        if replica.view.term is None or replica.leads(self.now):
            replica.view = written(replica.view, lease, asked_at=asked_at)


_ACTIONS = st.tuples(
    st.integers(0, 2),
    st.sampled_from(("read", "ask", "land", "lost", "release")),
    st.floats(0.0, 4.0),
)


@given(
    offsets=st.tuples(*(st.floats(-1e6, 1e6) for _ in range(3))),
    actions=st.lists(_ACTIONS, max_size=120),
)
def test_there_are_never_two_leaders_and_every_term_has_a_higher_epoch(
    offsets: tuple[float, ...], actions: list[tuple[int, str, float]]
) -> None:
    cluster = Cluster([Replica(View(identity=str(n)), offset) for n, offset in enumerate(offsets)])
    for who, action, passing in actions:
        replica = cluster.replicas[who]
        match action:
            case "read":
                cluster.read(replica)
            case "ask":
                cluster.ask(replica)
            case "release":
                cluster.release(replica)
            case _:
                cluster.land(replica, is_answer_lost=action == "lost")
        assert sum(r.leads(cluster.now) for r in cluster.replicas) <= 1
        cluster.now += passing
        assert sum(r.leads(cluster.now) for r in cluster.replicas) <= 1
    assert cluster.epochs == sorted(set(cluster.epochs))
