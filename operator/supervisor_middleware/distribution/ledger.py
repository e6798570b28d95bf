"""Who runs what. PURE: a state machine per supervisor; the server feeds it events and sends what it returns.

The rules:
1.  An offer carries `(epoch, sequence)`; the pair never goes back, and another digest always has a higher one.
2.  A digest the supervisor already runs is not offered again, unless to end another offer that is not settled yet.
3.  A digest that supervisor version rejected is never offered to it again, also not on another stream; one it was not
    ready for, it retries by itself.
4.  One offer is outstanding at a time; when it is answered the newest wish is offered, whatever came in between.
5.  A report about a digest that is not outstanding is ignored, but for `active`, which says what is served.
6.  What a supervisor says on connect is the truth about it. Of what was before, only its refusals are remembered, for
    as long as its sandbox lives and its version stays.
7.  One change costs what it concerns, however many supervisors there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from supervisor_middleware.errors import Bug
from supervisor_middleware.model.generation import Rank

MAX_REFUSALS: Final = 64
"""Of one supervisor; the newest are kept."""


class State(StrEnum):
    """Where a supervisor stands with its newest offer."""

    IDLE = "idle"
    OFFERED = "offered"
    PREPARED = "prepared"
    WAITING = "waiting"
    REJECTED = "rejected"
    ACTIVE = "active"
    GONE = "gone"


class Event(StrEnum):
    """What happens to it."""

    HELLO = "hello"
    OFFER = "offer"
    ACCEPTED = "accepted"
    NOT_READY = "not_ready"
    REJECTED = "rejected"
    ACTIVE = "active"
    LEFT = "left"


_UNSETTLED: Final = (State.OFFERED, State.PREPARED, State.WAITING)
"""An offer is under way: answered or not, it is neither served nor refused."""

TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    **{(state, Event.HELLO): State.IDLE for state in State},
    **{(state, Event.LEFT): State.GONE for state in State if state is not State.GONE},
    **{(state, Event.OFFER): State.OFFERED for state in State if state not in {State.OFFERED, State.GONE}},
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
    """One supervisor. `services` are the names of those it sees as not ready.

    `incapable` are those of them that answer, and lack something, `refusing` those that do not let it call; `reasons`
    are why it rejected what it was offered last; `defect` is what was wrong with its last-known-good when it started,
    until it has saved another; `since` is when the state was reached. Of one that is gone only its refusals are
    known.
    """

    key: str
    version: str = ""
    state: State = State.IDLE
    offered: Wish | None = None
    active: str = ""
    rejected: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    incapable: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    trust_bundle: str = ""
    defect: str = ""
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

    def is_offered(self, digest: str) -> bool:
        """Whether its newest offer is this one, answered or not."""
        return self.offered is not None and self.offered.digest == digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A report about a generation; `services` are those not ready, `reasons` why it was rejected.

    `incapable` are those of the services that answer, and lack something, `refusing` those that do not let it call.
    """

    event: Event
    digest: str
    services: tuple[str, ...] = ()
    incapable: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How one supervisor stands with a generation. `services` are those it sees as not ready."""

    is_connected: bool
    state: State
    is_active: bool
    services: tuple[str, ...] = ()


NOT_CONNECTED: Final = View(is_connected=False, state=State.GONE, is_active=False)
_SERVED: Final = View(is_connected=True, state=State.ACTIVE, is_active=True)
"""What nearly all views are: one object, since each pass looks at every supervisor."""


class Ledger:
    """All supervisors of one term of leading, by key."""

    def __init__(self, *, epoch: int) -> None:
        """Every offer is of `epoch`."""
        self._epoch, self._sequence = epoch, 0
        self._wanted: dict[str, str] = {}
        self._users: Counter[str] = Counter()
        self._wishes: dict[str, Wish] = {}
        self._records: dict[str, Record] = {}

    # -------------------------------------------------------------------------------------------------- what happens

    def publish(
        self, changes: Mapping[str, str | None], *, at: datetime | None = None
    ) -> tuple[tuple[str, Wish], ...]:
        """The digests that some supervisors should run from now on, None for one whose sandbox is no more.

        The offers to send now. `at` is the time.
        """
        fresh = {digest for key, digest in changes.items() if digest is not None and self._wanted.get(key) != digest}
        for key, digest in changes.items():
            self._want(key, digest)
        if fresh:
            # Whoever newly gets a digest may have held a higher rank than those who have it. A rank that moves is no
            # news to them.
            self._sequence += 1
            rank = Rank(epoch=self._epoch, sequence=self._sequence)
            self._wishes.update((digest, Wish(digest=digest, rank=rank)) for digest in fresh)
        return tuple(self._offers(changes, at=at))

    def connected(self, record: Record) -> Wish | None:
        """A supervisor said hello; what to offer it, if anything."""
        known = self._records.get(record.key, record)
        refusals = (*known.rejected, *record.rejected) if known.version == record.version else record.rejected
        self._records[record.key] = replace(record, state=known.advance(Event.HELLO), rejected=_newest(refusals))
        return self._offer(record.key, at=record.connected_since)

    def disconnected(self, key: str) -> None:
        """Its stream ended; of one that nothing is wished of nothing is kept."""
        record = self.record(key)
        if record is None:
            return
        del self._records[key]
        if key in self._wanted:
            state = record.advance(Event.LEFT)
            self._records[key] = Record(key=key, version=record.version, state=state, rejected=record.rejected)

    def reported(self, key: str, answer: Answer, *, at: datetime | None = None) -> Wish | None:
        """A connected supervisor answered; the next offer for it, if anything newer is wished. `at` is the time."""
        record, event, digest = self._records[key], answer.event, answer.digest
        is_answer = record.is_offered(digest) and (record.state, event) in TRANSITIONS
        active = digest if event is Event.ACTIVE else record.active
        if is_answer:
            state = record.advance(event)
            record = replace(
                record,
                state=state,
                active=active,
                rejected=_newest((*record.rejected, digest)) if event is Event.REJECTED else record.rejected,
                services=answer.services,
                incapable=answer.incapable,
                refusing=answer.refusing,
                reasons=answer.reasons,
                since=record.since if state is record.state else at,
            )
        elif event is Event.ACTIVE and record.state not in _UNSETTLED:
            record = replace(
                record,
                active=active,
                services=answer.services,
                incapable=answer.incapable,
                refusing=answer.refusing,
            )
        elif event is Event.ACTIVE:
            record = replace(record, active=active)
        self._records[key] = record
        return self._offer(key, at=at)

    # ------------------------------------------------------------------------------------------------- what is known

    @property
    def keys(self) -> Iterable[str]:
        """Every supervisor that something is wished of."""
        return self._wanted.keys()

    def wish(self, key: str) -> Wish | None:
        """What a supervisor should run."""
        digest = self._wanted.get(key)
        return None if digest is None else self._wishes[digest]

    def is_wished(self, digest: str) -> bool:
        """Whether anybody should run it."""
        return digest in self._wishes

    def record(self, key: str) -> Record | None:
        """A connected supervisor."""
        record = self._records.get(key)
        return None if record is None or record.state is State.GONE else record

    def view(self, key: str, digest: str) -> View:
        """How the supervisor of one sandbox stands with the generation `digest`."""
        record = self.record(key)
        if record is None:
            return NOT_CONNECTED
        if record.active == digest:
            if not record.services:
                return _SERVED
            state = State.ACTIVE
        elif digest in record.rejected:
            state = State.REJECTED
        else:
            state = record.state if record.is_offered(digest) else State.IDLE
        return View(is_connected=True, state=state, is_active=state is State.ACTIVE, services=record.services)

    # -------------------------------------------------------------------------------------------------------- inside

    def _want(self, key: str, digest: str | None) -> None:
        before = self._wanted.pop(key, None)
        if digest is not None:
            self._wanted[key] = digest
            self._users[digest] += 1
        else:
            self._records.pop(key, None)
        if before is not None:
            self._users[before] -= 1
            if not self._users[before]:
                del self._users[before], self._wishes[before]

    def _offers(self, keys: Iterable[str], *, at: datetime | None) -> Iterator[tuple[str, Wish]]:
        for key in keys:
            if self.record(key) is not None and (wish := self._offer(key, at=at)) is not None:
                yield key, wish

    def _offer(self, key: str, *, at: datetime | None) -> Wish | None:
        record, wish = self._records[key], self.wish(key)
        if wish is None or wish.digest in record.rejected or record.state is State.OFFERED:
            return None
        is_unsettled = record.state in _UNSETTLED
        heading_for = record.offered.digest if record.offered is not None and is_unsettled else record.active
        if heading_for == wish.digest:
            return None
        self._records[key] = replace(record, state=record.advance(Event.OFFER), offered=wish, since=at)
        return wish


def _newest(digests: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(digests))[-MAX_REFUSALS:]
