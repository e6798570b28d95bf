"""Who runs what. PURE: a state machine per supervisor; the server feeds it events and sends what it returns.

The rules:
1.  An offer carries `(epoch, sequence)`; the pair never goes back, and another digest always has a higher one.
2.  A digest the supervisor already runs is not offered again, unless to end another offer that is not settled yet.
3.  A digest that supervisor version rejected is never offered to it again; one it was not ready for, it retries by
    itself.
4.  One offer is outstanding at a time; when it is answered the newest wish is offered, whatever came in between.
5.  A report about a digest that is not outstanding is ignored, but for `active`, which says what is served.
6.  What a supervisor says on connect is the truth about it; the ledger remembers nothing across connections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from supervisor_middleware.errors import Bug
from supervisor_middleware.model.generation import Rank


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


_UNSETTLED: Final = (State.OFFERED, State.PREPARED, State.WAITING)
"""An offer is under way: answered or not, it is neither served nor refused."""

TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    **{(state, Event.OFFER): State.OFFERED for state in State if state is not State.OFFERED},
    **{(state, Event.ACCEPTED): State.PREPARED for state in _UNSETTLED},
    **{(state, Event.NOT_READY): State.WAITING for state in _UNSETTLED},
    **{(state, Event.REJECTED): State.REJECTED for state in _UNSETTLED},
    **{(state, Event.ACTIVE): State.ACTIVE for state in _UNSETTLED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a supervisor should run."""

    digest: str
    rank: Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One connected supervisor. `services` are the names of those it sees as not ready.

    `incapable` are those of them that answer, and lack something; `reasons` are why it rejected what it was offered
    last; `since` is when the state was reached.
    """

    key: str
    version: str = ""
    state: State = State.IDLE
    offered: Wish | None = None
    active: str = ""
    rejected: frozenset[str] = frozenset()
    services: tuple[str, ...] = ()
    incapable: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    trust_bundle: str = ""
    connected_since: datetime | None = None
    since: datetime | None = None

    def advance(self, event: Event) -> State:
        """The state after `event`.

        Raises:
            Bug: the event cannot happen in this state.
        """
        try:
            return TRANSITIONS[self.state, event]
        except KeyError:
            raise Bug(f"a supervisor that is {self.state} cannot see {event}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How one supervisor stands with a generation. `services` are those it sees as not ready."""

    is_connected: bool
    state: State
    is_active: bool
    services: tuple[str, ...] = ()


NOT_CONNECTED: Final = View(is_connected=False, state=State.IDLE, is_active=False)


@dataclass(slots=True)
class Ledger:
    """All supervisors: wishes by key, records of the connected ones."""

    wishes: dict[str, Wish] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    def connected(self, record: Record) -> Wish | None:
        """A supervisor said hello; what to offer it, if anything."""
        self.records[record.key] = record
        return self._offer(record.key, at=record.connected_since)

    def disconnected(self, key: str) -> None:
        """Its stream ended."""
        self.records.pop(key, None)

    def wish(self, wishes: Mapping[str, Wish], *, at: datetime | None = None) -> tuple[tuple[str, Wish], ...]:
        """Replace all wishes; the offers to send now. `at` is the time.

        Raises:
            Bug: a wish breaks rule 1.
        """
        if any(_goes_back(self.wishes[key], wish) for key, wish in wishes.items() if key in self.wishes):
            raise Bug("a rank went back, or two generations share one")
        self.wishes = dict(wishes)
        offers = ((key, self._offer(key, at=at)) for key in self.records)
        return tuple((key, offer) for key, offer in offers if offer is not None)

    def reported(
        self,
        key: str,
        event: Event,
        *,
        digest: str,
        services: tuple[str, ...] = (),
        incapable: tuple[str, ...] = (),
        reasons: tuple[str, ...] = (),
        at: datetime | None = None,
    ) -> Wish | None:
        """A connected supervisor answered; the next offer for it, if anything newer is wished. `at` is the time."""
        record = self.records[key]
        is_answer = record.offered is not None and record.offered.digest == digest
        if event is Event.ACTIVE:
            record = replace(record, active=digest)
        if is_answer and (record.state, event) in TRANSITIONS:
            rejected = record.rejected | {digest} if event is Event.REJECTED else record.rejected
            state = record.advance(event)
            record = replace(
                record,
                state=state,
                rejected=rejected,
                services=services,
                incapable=incapable,
                reasons=reasons,
                since=record.since if state is record.state else at,
            )
        elif event is Event.ACTIVE and record.state not in _UNSETTLED:
            record = replace(record, services=services, incapable=incapable)
        self.records[key] = record
        return self._offer(key, at=at)

    def view(self, key: str, *, digest: str) -> View:
        """How the supervisor of one sandbox stands with the generation `digest`."""
        record = self.records.get(key)
        if record is None:
            return NOT_CONNECTED
        is_offered = record.offered is not None and record.offered.digest == digest
        if record.active == digest:
            state = State.ACTIVE
        elif digest in record.rejected:
            state = State.REJECTED
        else:
            state = record.state if is_offered else State.IDLE
        return View(is_connected=True, state=state, is_active=state is State.ACTIVE, services=record.services)

    def _offer(self, key: str, *, at: datetime | None) -> Wish | None:
        record, wish = self.records[key], self.wishes.get(key)
        if wish is None or wish.digest in record.rejected or record.state is State.OFFERED:
            return None
        is_unsettled = record.state in _UNSETTLED
        heading_for = record.offered.digest if record.offered is not None and is_unsettled else record.active
        if heading_for == wish.digest:
            return None
        self.records[key] = replace(record, state=record.advance(Event.OFFER), offered=wish, since=at)
        return wish


def _goes_back(old: Wish, new: Wish) -> bool:
    return new.rank < old.rank if new.digest == old.digest else new.rank <= old.rank
