"""The rules at the top of `ledger.py`, each as a test; then random interleavings of everything that can happen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor_middleware.distribution.ledger import (
    NOT_CONNECTED,
    TRANSITIONS,
    Event,
    Ledger,
    Record,
    State,
    Wish,
)
from supervisor_middleware.errors import Bug
from supervisor_middleware.model.generation import Rank

A, B, C = "sha256:a", "sha256:b", "sha256:c"
KEY = "pod-1"


def a_wish(digest: str, sequence: int = 1, *, epoch: int = 1) -> Wish:
    return Wish(digest=digest, rank=Rank(epoch=epoch, sequence=sequence))


def a_ledger(wish: Wish | None, **hello: object) -> Ledger:
    """One connected supervisor that should run `wish`."""
    ledger = Ledger()
    ledger.wish({} if wish is None else {KEY: wish})
    ledger.connected(Record(key=KEY, **hello))  # type: ignore[arg-type]
    return ledger


def report(ledger: Ledger, event: Event, digest: str, *services: str) -> Wish | None:
    return ledger.reported(KEY, event, digest=digest, services=services)


def state_of(ledger: Ledger) -> State:
    return ledger.records[KEY].state


# ------------------------------------------------------------------------------------------------------------- rule 1


@pytest.mark.parametrize(
    "newer",
    [a_wish(B, 4), a_wish(B, 5), a_wish(A, 4), a_wish(B, 9, epoch=0)],
    ids=["lower", "equal for another digest", "lower for the same digest", "a lower epoch"],
)
def test_a_rank_that_goes_back_is_a_bug(newer: Wish) -> None:
    ledger = a_ledger(a_wish(A, 5))
    with pytest.raises(Bug):
        ledger.wish({KEY: newer})
    assert ledger.wishes == {KEY: a_wish(A, 5)}


def test_the_same_digest_may_get_a_higher_rank_and_is_not_sent_again() -> None:
    ledger = a_ledger(a_wish(A, 1))
    report(ledger, Event.ACTIVE, A)
    assert ledger.wish({KEY: a_wish(A, 2)}) == ()


# ------------------------------------------------------------------------------------------------------------- rule 2


def test_an_equal_digest_on_connect_sends_nothing() -> None:
    ledger = Ledger()
    ledger.wish({KEY: a_wish(A)})
    assert ledger.connected(Record(key=KEY, active=A)) is None
    assert ledger.view(KEY, digest=A).is_active


def test_what_runs_is_offered_again_only_to_end_an_offer_that_waits() -> None:
    ledger = a_ledger(a_wish(A), active=A)
    ledger.wish({KEY: a_wish(B, 2)})
    report(ledger, Event.NOT_READY, B, "acme")
    assert ledger.wish({KEY: a_wish(A, 3)}) == ((KEY, a_wish(A, 3)),)


def test_what_runs_is_not_offered_again_after_another_was_rejected() -> None:
    ledger = a_ledger(a_wish(A), active=A)
    ledger.wish({KEY: a_wish(B, 2)})
    report(ledger, Event.REJECTED, B)
    assert ledger.wish({KEY: a_wish(A, 3)}) == ()


# ------------------------------------------------------------------------------------------------------------- rule 3


def test_a_rejected_digest_is_never_offered_again() -> None:
    ledger = a_ledger(a_wish(A))
    assert report(ledger, Event.REJECTED, A) is None
    assert ledger.wish({KEY: a_wish(A, 2)}) == ()
    assert ledger.wish({KEY: a_wish(B, 3)}) == ((KEY, a_wish(B, 3)),)
    report(ledger, Event.ACTIVE, B)
    assert ledger.wish({KEY: a_wish(A, 4)}) == ()


def test_what_a_supervisor_says_it_rejected_is_not_offered() -> None:
    ledger = Ledger()
    ledger.wish({KEY: a_wish(A)})
    assert ledger.connected(Record(key=KEY, rejected=frozenset({A}))) is None
    assert ledger.view(KEY, digest=A).state is State.REJECTED


def test_another_version_is_offered_what_the_last_one_rejected() -> None:
    ledger = a_ledger(a_wish(A), version="1")
    report(ledger, Event.REJECTED, A)
    ledger.disconnected(KEY)
    assert ledger.connected(Record(key=KEY, version="2")) == a_wish(A)


def test_one_that_was_not_ready_is_not_sent_again_since_the_supervisor_retries_by_itself() -> None:
    ledger = a_ledger(a_wish(A))
    assert report(ledger, Event.NOT_READY, A, "acme") is None
    assert ledger.wish({KEY: a_wish(A)}) == ()
    view = ledger.view(KEY, digest=A)
    assert (view.state, view.services) == (State.WAITING, ("acme",))
    report(ledger, Event.ACCEPTED, A)
    report(ledger, Event.ACTIVE, A)
    assert ledger.view(KEY, digest=A).is_active


# ------------------------------------------------------------------------------------------------------------- rule 4


def test_while_an_offer_is_unanswered_nothing_else_is_sent_and_then_the_newest() -> None:
    ledger = a_ledger(a_wish(A))
    assert ledger.wish({KEY: a_wish(B, 2)}) == ()
    assert ledger.wish({KEY: a_wish(C, 3)}) == ()
    assert report(ledger, Event.ACCEPTED, A) == a_wish(C, 3)


@pytest.mark.parametrize("answer", [Event.ACCEPTED, Event.NOT_READY, Event.REJECTED, Event.ACTIVE])
def test_every_answer_frees_the_line(answer: Event) -> None:
    ledger = a_ledger(a_wish(A))
    ledger.wish({KEY: a_wish(B, 2)})
    assert report(ledger, answer, A) == a_wish(B, 2)


# ------------------------------------------------------------------------------------------------------------- rule 5


@pytest.mark.parametrize("event", [Event.ACCEPTED, Event.NOT_READY, Event.REJECTED])
def test_a_report_about_another_digest_is_ignored(event: Event) -> None:
    ledger = a_ledger(a_wish(A))
    before = ledger.records[KEY]
    assert report(ledger, event, B, "acme") is None
    assert ledger.records[KEY] == before


def test_active_says_what_is_served_whatever_is_outstanding() -> None:
    ledger = a_ledger(a_wish(A))
    assert report(ledger, Event.ACTIVE, B) is None
    assert ledger.records[KEY].active == B
    assert state_of(ledger) is State.OFFERED


def test_what_runs_does_not_hide_what_an_offer_waits_for() -> None:
    ledger = a_ledger(a_wish(A), active=A)
    ledger.wish({KEY: a_wish(B, 2)})
    report(ledger, Event.NOT_READY, B, "acme")
    report(ledger, Event.ACTIVE, A)
    assert ledger.view(KEY, digest=B).services == ("acme",)


def test_a_supervisor_that_serves_something_else_is_offered_its_generation_again() -> None:
    ledger = a_ledger(a_wish(A))
    report(ledger, Event.ACTIVE, A)
    assert report(ledger, Event.ACTIVE, B, "acme") == a_wish(A)


def test_a_service_that_goes_down_later_is_seen() -> None:
    ledger = a_ledger(a_wish(A), active=A)
    assert report(ledger, Event.ACTIVE, A, "acme") is None
    assert ledger.view(KEY, digest=A).services == ("acme",)


def test_a_late_rejection_of_what_is_active_changes_nothing() -> None:
    ledger = a_ledger(a_wish(A))
    report(ledger, Event.ACTIVE, A)
    assert report(ledger, Event.REJECTED, A) is None
    assert ledger.view(KEY, digest=A).is_active


# ------------------------------------------------------------------------------------------------------------- rule 6


def test_a_new_connection_begins_with_what_the_supervisor_says() -> None:
    ledger = a_ledger(a_wish(A))
    report(ledger, Event.ACTIVE, A)
    ledger.disconnected(KEY)
    assert ledger.view(KEY, digest=A) == NOT_CONNECTED
    assert ledger.connected(Record(key=KEY)) == a_wish(A)


def test_a_supervisor_nobody_wishes_anything_of_is_offered_nothing() -> None:
    ledger = a_ledger(None)
    assert ledger.wish({KEY: a_wish(A)}) == ((KEY, a_wish(A)),)


def test_disconnecting_twice_is_fine() -> None:
    ledger = a_ledger(None)
    ledger.disconnected(KEY)
    ledger.disconnected(KEY)
    assert not ledger.records


def test_a_view_of_something_never_offered_is_idle() -> None:
    ledger = a_ledger(a_wish(A))
    assert ledger.view(KEY, digest=B).state is State.IDLE
    assert ledger.view(KEY, digest=A).state is State.OFFERED


# -------------------------------------------------------------------------------------------------------- the machine


def test_the_table_is_complete_and_what_is_not_in_it_is_a_bug() -> None:
    for state in State:
        for event in Event:
            record = Record(key=KEY, state=state)
            if (state, event) in TRANSITIONS:
                assert record.advance(event) is TRANSITIONS[state, event]
            else:
                with pytest.raises(Bug):
                    record.advance(event)


@dataclass(slots=True)
class Supervisor:
    """What a real one would hold: what it runs, what it refused, and the highest rank it took."""

    active: str = ""
    rejected: set[str] = field(default_factory=set)
    held: Rank = field(default_factory=lambda: Rank(epoch=0, sequence=0))
    unanswered: Wish | None = None
    unsettled: str | None = None
    is_connected: bool = False


KEYS: Final = ("pod-1", "pod-2")
DIGESTS: Final = (A, B, C)
keys = st.sampled_from(KEYS)
digests = st.sampled_from(DIGESTS)


class Interleavings(RuleBasedStateMachine):
    """Publishes, connects, answers and cuts in any order; the rules are checked at each offer."""

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger()
        self.supervisors = {key: Supervisor() for key in KEYS}
        self.wishes: dict[str, Wish] = {}
        self.sequence = 0

    @rule(wanted=st.dictionaries(keys, digests))
    def publish(self, wanted: Mapping[str, str]) -> None:
        self.sequence += 1
        rank = Rank(epoch=1, sequence=self.sequence)
        kept = {k: w for k, w in self.wishes.items() if wanted.get(k) == w.digest}
        self.wishes = {k: kept.get(k) or Wish(digest=d, rank=rank) for k, d in wanted.items()}
        for key, offer in self.ledger.wish(self.wishes):
            self._receive(key, offer)

    @rule(key=keys)
    def hello(self, key: str) -> None:
        supervisor = self.supervisors[key]
        supervisor.is_connected, supervisor.unanswered, supervisor.unsettled = True, None, None
        record = Record(key=key, active=supervisor.active, rejected=frozenset(supervisor.rejected))
        offer = self.ledger.connected(record)
        if key in self.wishes and self.wishes[key].digest == supervisor.active:
            assert offer is None, "an equal digest on reconnect sends nothing"
        if offer is not None:
            self._receive(key, offer)

    @rule(key=keys)
    def disconnect(self, key: str) -> None:
        self.supervisors[key].is_connected = False
        self.ledger.disconnected(key)

    @rule(key=keys, event=st.sampled_from([Event.ACCEPTED, Event.NOT_READY, Event.REJECTED, Event.ACTIVE]))
    def answer(self, key: str, event: Event) -> None:
        supervisor = self.supervisors[key]
        if supervisor.is_connected and supervisor.unsettled is not None:
            self._answer(key, event, supervisor.unsettled)

    @precondition(lambda self: any(s.is_connected for s in self.supervisors.values()))
    @rule(key=keys, event=st.sampled_from([Event.ACCEPTED, Event.NOT_READY, Event.REJECTED]), digest=digests)
    def stale_report(self, key: str, event: Event, digest: str) -> None:
        supervisor = self.supervisors[key]
        if not supervisor.is_connected or digest == supervisor.unsettled:
            return
        before = self.ledger.records[key]
        assert self.ledger.reported(key, event, digest=digest) is None
        assert self.ledger.records[key] == before

    @invariant()
    def everybody_is_on_the_way_to_the_newest_wish(self) -> None:
        for key, supervisor in self.supervisors.items():
            wish = self.wishes.get(key)
            if not supervisor.is_connected or supervisor.unanswered or wish is None:
                continue
            heading_for = supervisor.unsettled or supervisor.active
            assert heading_for == wish.digest or wish.digest in supervisor.rejected

    def teardown(self) -> None:
        for key, supervisor in self.supervisors.items():
            while supervisor.is_connected and supervisor.unsettled is not None:
                self._answer(key, Event.ACTIVE, supervisor.unsettled)
            wish = self.wishes.get(key)
            if supervisor.is_connected and wish is not None and wish.digest not in supervisor.rejected:
                assert self.ledger.view(key, digest=wish.digest).is_active

    def _answer(self, key: str, event: Event, digest: str) -> None:
        supervisor = self.supervisors[key]
        supervisor.unanswered = None
        if event is Event.REJECTED:
            supervisor.rejected.add(digest)
        if event is Event.ACTIVE:
            supervisor.active = digest
        if event in {Event.REJECTED, Event.ACTIVE}:
            supervisor.unsettled = None
        offer = self.ledger.reported(key, event, digest=digest)
        if offer is not None:
            self._receive(key, offer)

    def _receive(self, key: str, offer: Wish) -> None:
        supervisor = self.supervisors[key]
        assert supervisor.is_connected
        assert supervisor.unanswered is None, "one offer is outstanding at a time"
        assert offer == self.wishes[key], "only the newest wish is offered"
        assert offer.rank >= supervisor.held, "a rank never goes back"
        assert offer.digest not in supervisor.rejected, "a rejected digest is never offered again"
        assert offer.digest != supervisor.active or supervisor.unsettled not in {None, offer.digest}
        supervisor.unanswered, supervisor.unsettled, supervisor.held = offer, offer.digest, offer.rank


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
