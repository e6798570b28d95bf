"""The rules at the top of `ledger.py`, each as a test; then random interleavings of everything that can happen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor_middleware.distribution.ledger import (
    MAX_REFUSALS,
    NOT_CONNECTED,
    TRANSITIONS,
    Answer,
    Event,
    Ledger,
    Record,
    State,
    Wish,
)
from supervisor_middleware.errors import Bug
from supervisor_middleware.model.generation import Rank

A, B, C = "sha256:a", "sha256:b", "sha256:c"
KEY, OTHER = "pod-1", "pod-2"


def a_wish(digest: str, sequence: int = 1, *, epoch: int = 1) -> Wish:
    return Wish(digest=digest, rank=Rank(epoch=epoch, sequence=sequence))


def a_ledger(digest: str | None, **hello: object) -> Ledger:
    """One connected supervisor that should run `digest`."""
    ledger = Ledger(epoch=1)
    ledger.publish({KEY: digest})
    ledger.connected(Record(key=KEY, **hello))  # type: ignore[arg-type]
    return ledger


def report(ledger: Ledger, event: Event, digest: str, *services: str) -> Wish | None:
    return ledger.reported(KEY, Answer(event=event, digest=digest, services=services))


def state_of(ledger: Ledger) -> State:
    return record_of(ledger).state


def record_of(ledger: Ledger) -> Record:
    record = ledger.record(KEY)
    assert record is not None
    return record


# ------------------------------------------------------------------------------------------------------------- rule 1


def test_each_publication_of_something_fresh_has_the_next_rank() -> None:
    ledger = a_ledger(A)
    assert ledger.wish(KEY) == a_wish(A, 1)
    assert ledger.publish({OTHER: B}) == ()
    report(ledger, Event.ACTIVE, A)
    assert ledger.publish({KEY: C}) == ((KEY, a_wish(C, 3)),)


def test_who_newly_gets_a_known_digest_gets_it_with_a_higher_rank_than_all_it_had() -> None:
    ledger = a_ledger(A)
    ledger.publish({OTHER: B})
    report(ledger, Event.ACTIVE, A)
    ledger.publish({KEY: C})
    report(ledger, Event.ACTIVE, C)
    assert ledger.publish({KEY: B}) == ((KEY, a_wish(B, 4)),)
    assert ledger.wish(OTHER) == a_wish(B, 4)


def test_what_is_published_again_changes_nothing() -> None:
    ledger = a_ledger(A)
    assert ledger.publish({KEY: A}) == ()
    assert ledger.wish(KEY) == a_wish(A, 1)


def test_the_same_digest_may_get_a_higher_rank_and_is_not_sent_again() -> None:
    ledger = a_ledger(A)
    report(ledger, Event.ACTIVE, A)
    assert ledger.publish({KEY: A}) == ()


# ------------------------------------------------------------------------------------------------------------- rule 2


def test_an_equal_digest_on_connect_sends_nothing() -> None:
    ledger = Ledger(epoch=1)
    ledger.publish({KEY: A})
    assert ledger.connected(Record(key=KEY, active=A)) is None
    assert ledger.view(KEY, digest=A).is_active


def test_what_runs_is_offered_again_only_to_end_an_offer_that_waits() -> None:
    ledger = a_ledger(A, active=A)
    ledger.publish({KEY: B})
    report(ledger, Event.NOT_READY, B, "acme")
    assert ledger.publish({KEY: A}) == ((KEY, a_wish(A, 3)),)


def test_what_runs_is_not_offered_again_after_another_was_rejected() -> None:
    ledger = a_ledger(A, active=A)
    ledger.publish({KEY: B})
    report(ledger, Event.REJECTED, B)
    assert ledger.publish({KEY: A}) == ()


# ------------------------------------------------------------------------------------------------------------- rule 3


def test_a_rejected_digest_is_never_offered_again() -> None:
    ledger = a_ledger(A)
    assert report(ledger, Event.REJECTED, A) is None
    assert ledger.publish({KEY: A}) == ()
    assert ledger.publish({KEY: B}) == ((KEY, a_wish(B, 2)),)
    report(ledger, Event.ACTIVE, B)
    assert ledger.publish({KEY: A}) == ()


def test_what_a_supervisor_says_it_rejected_is_not_offered() -> None:
    ledger = Ledger(epoch=1)
    ledger.publish({KEY: A})
    assert ledger.connected(Record(key=KEY, rejected=(A,))) is None
    assert ledger.view(KEY, digest=A).state is State.REJECTED


def test_another_version_is_offered_what_the_last_one_rejected() -> None:
    ledger = a_ledger(A, version="1")
    report(ledger, Event.REJECTED, A)
    ledger.disconnected(KEY)
    assert ledger.connected(Record(key=KEY, version="2")) == a_wish(A)


@pytest.mark.parametrize("is_cut_first", [True, False])
def test_the_same_version_is_not_even_on_another_stream(*, is_cut_first: bool) -> None:
    ledger = a_ledger(A, version="1")
    report(ledger, Event.REJECTED, A)
    if is_cut_first:
        ledger.disconnected(KEY)
    assert ledger.connected(Record(key=KEY, version="1", rejected=(B,))) is None
    assert record_of(ledger).rejected == (A, B)
    assert ledger.view(KEY, digest=A).state is State.REJECTED
    assert ledger.publish({KEY: B}) == ()
    assert ledger.publish({KEY: C}) == ((KEY, a_wish(C, 3)),)


def test_a_sandbox_that_is_gone_takes_its_refusals_with_it() -> None:
    ledger = a_ledger(A)
    report(ledger, Event.REJECTED, A)
    ledger.publish({KEY: None})
    ledger.publish({KEY: A})
    assert ledger.connected(Record(key=KEY)) == a_wish(A, 2)


def test_of_many_refusals_the_newest_are_remembered() -> None:
    ledger = a_ledger("sha256:0")
    for number in range(MAX_REFUSALS + 2):
        report(ledger, Event.REJECTED, f"sha256:{number}")
        ledger.publish({KEY: f"sha256:{number + 1}"})
    rejected = record_of(ledger).rejected
    assert (len(rejected), rejected[0], rejected[-1]) == (MAX_REFUSALS, "sha256:2", f"sha256:{MAX_REFUSALS + 1}")


def test_one_that_was_not_ready_is_not_sent_again_since_the_supervisor_retries_by_itself() -> None:
    ledger = a_ledger(A)
    assert report(ledger, Event.NOT_READY, A, "acme") is None
    assert ledger.publish({KEY: A}) == ()
    view = ledger.view(KEY, digest=A)
    assert (view.state, view.services) == (State.WAITING, ("acme",))
    report(ledger, Event.ACCEPTED, A)
    report(ledger, Event.ACTIVE, A)
    assert ledger.view(KEY, digest=A).is_active


# ------------------------------------------------------------------------------------------------------------- rule 4


def test_while_an_offer_is_unanswered_nothing_else_is_sent_and_then_the_newest() -> None:
    ledger = a_ledger(A)
    assert ledger.publish({KEY: B}) == ()
    assert ledger.publish({KEY: C}) == ()
    assert report(ledger, Event.ACCEPTED, A) == a_wish(C, 3)


@pytest.mark.parametrize("answer", [Event.ACCEPTED, Event.NOT_READY, Event.REJECTED, Event.ACTIVE])
def test_every_answer_frees_the_line(answer: Event) -> None:
    ledger = a_ledger(A)
    ledger.publish({KEY: B})
    assert report(ledger, answer, A) == a_wish(B, 2)


# ------------------------------------------------------------------------------------------------------------- rule 5


@pytest.mark.parametrize("event", [Event.ACCEPTED, Event.NOT_READY, Event.REJECTED])
def test_a_report_about_another_digest_is_ignored(event: Event) -> None:
    ledger = a_ledger(A)
    before = record_of(ledger)
    assert report(ledger, event, B, "acme") is None
    assert record_of(ledger) == before


def test_active_says_what_is_served_whatever_is_outstanding() -> None:
    ledger = a_ledger(A)
    assert report(ledger, Event.ACTIVE, B) is None
    assert record_of(ledger).active == B
    assert state_of(ledger) is State.OFFERED


def test_what_runs_does_not_hide_what_an_offer_waits_for() -> None:
    ledger = a_ledger(A, active=A)
    ledger.publish({KEY: B})
    report(ledger, Event.NOT_READY, B, "acme")
    report(ledger, Event.ACTIVE, A)
    assert ledger.view(KEY, digest=B).services == ("acme",)


def test_a_supervisor_that_serves_something_else_is_offered_its_generation_again() -> None:
    ledger = a_ledger(A)
    report(ledger, Event.ACTIVE, A)
    assert report(ledger, Event.ACTIVE, B, "acme") == a_wish(A)


def test_a_service_that_goes_down_later_is_seen() -> None:
    ledger = a_ledger(A, active=A)
    assert report(ledger, Event.ACTIVE, A, "acme") is None
    assert ledger.view(KEY, digest=A).services == ("acme",)


def test_a_late_rejection_of_what_is_active_changes_nothing() -> None:
    ledger = a_ledger(A)
    report(ledger, Event.ACTIVE, A)
    assert report(ledger, Event.REJECTED, A) is None
    assert ledger.view(KEY, digest=A).is_active


# ------------------------------------------------------------------------------------------------------------- rule 6


def test_a_new_connection_begins_with_what_the_supervisor_says() -> None:
    ledger = a_ledger(A)
    report(ledger, Event.ACTIVE, A)
    ledger.disconnected(KEY)
    assert ledger.view(KEY, digest=A) == NOT_CONNECTED
    assert ledger.connected(Record(key=KEY)) == a_wish(A)


def test_a_supervisor_nobody_wishes_anything_of_is_offered_nothing() -> None:
    ledger = a_ledger(None)
    assert ledger.publish({KEY: A}) == ((KEY, a_wish(A)),)


def test_disconnecting_twice_is_fine() -> None:
    ledger = a_ledger(None)
    ledger.disconnected(KEY)
    ledger.disconnected(KEY)
    assert ledger.record(KEY) is None


def test_of_a_sandbox_that_is_gone_nothing_is_known() -> None:
    ledger = a_ledger(A)
    ledger.publish({KEY: None})
    ledger.disconnected(KEY)
    assert (ledger.record(KEY), ledger.wish(KEY), list(ledger.keys)) == (None, None, [])
    assert not ledger.is_wished(A)
    assert ledger._records == {}


# ------------------------------------------------------------------------------------------------------------- rule 7


def test_a_change_looks_at_nobody_else() -> None:
    """Measured in what is touched: the ledger of thousands answers for one by one."""

    class Counting(dict[str, Record]):
        touched = 0

        def get(self, key: str, default: object = None) -> Record | None:  # type: ignore[override]
            self.touched += 1
            return super().get(key)

        def __getitem__(self, key: str) -> Record:
            self.touched += 1
            return super().__getitem__(key)

        def __iter__(self) -> NoReturn:
            raise AssertionError("everybody was looked at")

    ledger = Ledger(epoch=1)
    ledger.publish({f"pod-{n}": A for n in range(1000)})
    for number in range(1000):
        ledger.connected(Record(key=f"pod-{number}"))
    ledger._records = counting = Counting(ledger._records)
    ledger.publish({"pod-7": B, "pod-8": None})
    assert counting.touched < 10


def test_a_view_of_something_never_offered_is_idle() -> None:
    ledger = a_ledger(A)
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


KEYS: Final = ("pod-1", "pod-2", "pod-3")
keys = st.sampled_from(KEYS)
digests = st.sampled_from((A, B, C))
answers = st.sampled_from([Event.ACCEPTED, Event.NOT_READY, Event.REJECTED, Event.ACTIVE])


@dataclass(slots=True)
class Supervisor:
    """A real one, and what was said on the way: what it runs and refused, what it was sent and has not said yet."""

    version: str = "1"
    active: str = ""
    refused: dict[str, set[str]] = field(default_factory=lambda: {"1": set(), "2": set()})
    held: Rank = field(default_factory=lambda: Rank(epoch=0, sequence=0))
    ranks: dict[Rank, str] = field(default_factory=dict)
    is_connected: bool = False
    candidate: str | None = None
    said: list[Answer] = field(default_factory=list)
    # What the operator has heard.
    outstanding: str | None = None
    unsettled: str | None = None
    told_active: str = ""
    told_refused: dict[str, set[str]] = field(default_factory=lambda: {"1": set(), "2": set()})

    def cut(self) -> None:
        self.is_connected, self.candidate, self.said = False, None, []
        self.outstanding, self.unsettled, self.told_active = None, None, ""


class Interleavings(RuleBasedStateMachine):
    """Publications, streams, answers that take their time, and nonsense, in any order; every offer is held to the rules.

    Supervisors lose their memory, come as another version, and are taken over by other leaders.
    """

    @initialize()
    def begin(self) -> None:
        self.epoch = 1
        self.ledger = Ledger(epoch=self.epoch)
        self.supervisors = {key: Supervisor() for key in KEYS}
        self.wanted: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------------- the operator

    @rule(changes=st.dictionaries(keys, digests | st.none(), min_size=1))
    def publish(self, changes: Mapping[str, str | None]) -> None:
        for key, digest in changes.items():
            if digest is None:
                self.wanted.pop(key, None)
                self.supervisors[key] = Supervisor()
            else:
                self.wanted[key] = digest
        for key, offer in self.ledger.publish(changes):
            self._receive(key, offer)

    @rule()
    def another_leads(self) -> None:
        self.epoch += 1
        self.ledger = Ledger(epoch=self.epoch)
        for supervisor in self.supervisors.values():
            supervisor.cut()
            supervisor.told_refused = {"1": set(), "2": set()}
        assert self.ledger.publish(self.wanted) == ()

    # -------------------------------------------------------------------------------------------------- supervisors

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), version=st.sampled_from(["1", "1", "2"]), keeps_memory=st.booleans())
    def hello(self, *, data: st.DataObject, version: str, keeps_memory: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.wanted)))
        supervisor = self.supervisors[key]
        supervisor.cut()
        if not keeps_memory:
            supervisor.active, supervisor.refused = "", {"1": set(), "2": set()}
        supervisor.version, supervisor.is_connected, supervisor.told_active = version, True, supervisor.active
        refused = supervisor.refused[version]
        supervisor.told_refused[version] |= refused
        record = Record(key=key, version=version, active=supervisor.active, rejected=tuple(refused))
        offer = self.ledger.connected(record)
        if self.wanted[key] == supervisor.active:
            assert offer is None, "an equal digest on reconnect sends nothing"
        if offer is not None:
            self._receive(key, offer)

    @rule(key=keys)
    def cut(self, key: str) -> None:
        self.supervisors[key].cut()
        self.ledger.disconnected(key)

    @rule(key=keys, event=answers)
    def answer(self, key: str, event: Event) -> None:
        supervisor = self.supervisors[key]
        if (digest := supervisor.candidate) is None:
            return
        supervisor.said.append(Answer(event=event, digest=digest))
        if event is Event.ACTIVE:
            supervisor.active = digest
        if event is Event.REJECTED:
            supervisor.refused[supervisor.version].add(digest)
        if event in {Event.ACTIVE, Event.REJECTED}:
            supervisor.candidate = None

    @rule(key=keys, position=st.integers(0, 2), is_kept=st.booleans())
    def hear(self, *, key: str, position: int, is_kept: bool) -> None:
        """In order or out of it, once or again and again."""
        supervisor = self.supervisors[key]
        if supervisor.is_connected and len(supervisor.said) > position:
            said = supervisor.said[position]
            if not is_kept:
                del supervisor.said[position]
            self._hear(key, said)

    @rule(key=keys, event=st.sampled_from([Event.ACCEPTED, Event.NOT_READY, Event.REJECTED]), digest=digests)
    def nonsense(self, key: str, event: Event, digest: str) -> None:
        supervisor = self.supervisors[key]
        if not supervisor.is_connected or digest == supervisor.unsettled:
            return
        before = self.ledger.record(key)
        self._hear(key, Answer(event=event, digest=digest, services=("made-up",)))
        assert self.ledger.record(key) == before, "a report about another digest is ignored"

    # ---------------------------------------------------------------------------------------------------- the rules

    @invariant()
    def everybody_is_on_the_way_to_the_newest_wish(self) -> None:
        for key, supervisor in self.supervisors.items():
            wanted = self.wanted.get(key)
            if not supervisor.is_connected or supervisor.outstanding or wanted is None:
                continue
            is_refused = wanted in supervisor.told_refused[supervisor.version]
            assert is_refused or (supervisor.unsettled or supervisor.told_active) == wanted

    @invariant()
    def programmed_are_those_that_said_so_of_this_digest(self) -> None:
        for key, supervisor in self.supervisors.items():
            for digest in (A, B, C):
                view = self.ledger.view(key, digest=digest)
                assert view.is_active == (supervisor.is_connected and supervisor.told_active == digest)
                assert view.is_connected == supervisor.is_connected
        everybody = all(self.ledger.view(k, digest=d).is_active for k, d in self.wanted.items())
        assert everybody == all(
            self.supervisors[k].is_connected and self.supervisors[k].told_active == d for k, d in self.wanted.items()
        )

    @invariant()
    def nothing_is_kept_of_who_is_gone(self) -> None:
        assert self.ledger._records.keys() <= self.wanted.keys()
        assert self.ledger._wishes.keys() == set(self.wanted.values())

    def teardown(self) -> None:
        """Left alone, everybody arrives, unless it refuses."""
        for key, supervisor in self.supervisors.items():
            wanted = self.wanted.get(key)
            for _ in range(8):
                for said in supervisor.said:
                    self._hear(key, said)
                supervisor.said = []
                self.answer(key, Event.ACTIVE)
            if supervisor.is_connected and wanted not in supervisor.told_refused[supervisor.version]:
                assert wanted is None or self.ledger.view(key, digest=wanted).is_active

    # ------------------------------------------------------------------------------------------------------- inside

    def _hear(self, key: str, said: Answer) -> None:
        supervisor = self.supervisors[key]
        if said.digest == supervisor.unsettled:
            supervisor.outstanding = None
            if said.event is Event.REJECTED:
                supervisor.told_refused[supervisor.version].add(said.digest)
            if said.event in {Event.REJECTED, Event.ACTIVE}:
                supervisor.unsettled = None
        if said.event is Event.ACTIVE:
            supervisor.told_active = said.digest
        offer = self.ledger.reported(key, said)
        if offer is not None:
            self._receive(key, offer)

    def _receive(self, key: str, offer: Wish) -> None:
        supervisor = self.supervisors[key]
        assert supervisor.is_connected
        assert supervisor.outstanding is None, "one offer is outstanding at a time"
        assert offer.digest == self.wanted[key], "only the newest wish is offered"
        assert offer.rank.epoch == self.epoch
        assert offer.rank >= supervisor.held, "a rank never goes back"
        assert supervisor.ranks.setdefault(offer.rank, offer.digest) == offer.digest, (
            "another digest has another rank"
        )
        assert offer.digest not in supervisor.told_refused[supervisor.version], "a rejected digest comes never again"
        assert offer.digest != supervisor.told_active or supervisor.unsettled not in {None, offer.digest}
        supervisor.outstanding = supervisor.unsettled = supervisor.candidate = offer.digest
        supervisor.held = offer.rank


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
