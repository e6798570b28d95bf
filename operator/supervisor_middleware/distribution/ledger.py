"""Who runs what. PURE: a state machine per supervisor; the server feeds it events and sends what it returns.

The rules:
1.  An offer carries `(epoch, sequence)`, and the pair never goes back.
2.  A digest the supervisor already runs is not offered again, unless to end another offer that still waits.
3.  A digest that supervisor version rejected is never offered to it again; one it was not ready for, it retries.
4.  One offer is outstanding at a time; when it is answered the newest wish is offered, whatever came in between.
5.  A report about a digest that is not outstanding is ignored, but for `active`, which says what is served.
6.  What a supervisor says on connect is the truth about it; the ledger remembers nothing across connections.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from supervisor_middleware.errors import Bug


class State(StrEnum):
    """Where a connected supervisor stands with its newest offer."""

    IDLE = "idle"
    OFFERED = "offered"
    PREPARED = "prepared"
    WAITING = "waiting"
    REJECTED = "rejected"
    ACTIVE = "active"


class Event(StrEnum):
    """What happens to it."""

    OFFER = "offer"
    ACCEPTED = "accepted"
    NOT_READY = "not_ready"
    REJECTED = "rejected"
    ACTIVE = "active"


_ANSWERABLE: Final = (State.OFFERED, State.PREPARED, State.WAITING)
TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    **{(state, Event.OFFER): State.OFFERED for state in State if state is not State.OFFERED},
    **{(state, Event.ACCEPTED): State.PREPARED for state in _ANSWERABLE},
    **{(state, Event.NOT_READY): State.WAITING for state in _ANSWERABLE},
    **{(state, Event.REJECTED): State.REJECTED for state in _ANSWERABLE},
    **{(state, Event.ACTIVE): State.ACTIVE for state in _ANSWERABLE},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The order of offers: epoch first, then sequence."""

    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a supervisor should run."""

    digest: str
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One connected supervisor. `services` are the names of those it sees as not ready."""

    key: str
    version: str = ""
    state: State = State.IDLE
    offered: Wish | None = None
    active: str = ""
    rejected: frozenset[str] = frozenset()
    services: tuple[str, ...] = ()
    trust_bundle: str = ""

    def advance(self, event: Event) -> State:
        """The state after `event`.

        Raises:
            Bug: the event cannot happen in this state.
        """
        try:
            return TRANSITIONS[self.state, event]
        except KeyError:
            raise Bug(f"a supervisor that is {self.state} cannot see {event}") from None


@dataclass(slots=True)
class Ledger:
    """All supervisors: wishes by key, records of the connected ones."""

    wishes: dict[str, Wish] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    def connected(self, record: Record) -> Wish | None:
        """A supervisor said hello; what to offer it, if anything."""
        self.records[record.key] = record
        wish = self.wishes.get(record.key)
        if wish is not None and record.active == wish.digest:
            self.records[record.key] = replace(record, state=State.ACTIVE)
            return None
        return self._offer(record.key)

    def disconnected(self, key: str) -> None:
        """Its stream ended."""
        self.records.pop(key, None)

    def wish(self, wishes: Mapping[str, Wish]) -> Iterator[tuple[str, Wish]]:
        """Replace all wishes; yields the offers to send now."""
        self.wishes = dict(wishes)
        for key in list(self.records):
            offer = self._offer(key)
            if offer is not None:
                yield key, offer

    def reported(self, key: str, event: Event, *, digest: str, services: tuple[str, ...] = ()) -> Wish | None:
        """A supervisor answered; the next offer for it, if anything newer is wished."""
        record = self.records[key]
        if event is Event.ACTIVE:
            record = replace(record, active=digest, services=services)
        outstanding = record.offered is not None and record.offered.digest == digest
        if outstanding and (record.state, event) in TRANSITIONS:
            rejected = record.rejected | {digest} if event is Event.REJECTED else record.rejected
            record = replace(record, state=record.advance(event), rejected=rejected, services=services)
        self.records[key] = record
        return self._offer(key)

    def _offer(self, key: str) -> Wish | None:
        record, wish = self.records[key], self.wishes.get(key)
        if wish is None or wish.digest in record.rejected or record.state is State.OFFERED:
            return None
        if record.offered is not None and record.offered.digest == wish.digest and record.state is not State.IDLE:
            return None
        if record.offered is None and record.active == wish.digest:
            return None
        self.records[key] = replace(record, state=record.advance(Event.OFFER), offered=wish)
        return wish


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How one supervisor stands with what it should run now."""

    is_connected: bool
    state: State
    is_active: bool
    services: tuple[str, ...] = ()


def view(ledger: Ledger, key: str) -> View:
    """The supervisor of one sandbox, judged against its newest wish."""
    record, wish = ledger.records.get(key), ledger.wishes.get(key)
    if record is None:
        return View(is_connected=False, state=State.IDLE, is_active=False)
    is_active = wish is not None and record.active == wish.digest
    is_answer = wish is not None and record.offered is not None and record.offered.digest == wish.digest
    rejected = wish is not None and wish.digest in record.rejected
    state = State.ACTIVE if is_active else State.REJECTED if rejected else record.state if is_answer else State.IDLE
    return View(is_connected=True, state=state, is_active=is_active, services=record.services)
