"""Who runs what, as an answer to people. PURE: sandboxes and standings in, messages out.

Names, digests, times and enumerations only: nothing of any policy's content can get in here. An answer is bounded in
rows and in bytes, however many supervisors there are and whatever they report.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Final, TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from supervisor_middleware.distribution.attendance import Standing
from supervisor_middleware.distribution.ledger import Record, State
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.limits import MIB
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.pki.spiffe import is_label, is_subdomain
from supervisor_middleware.wire.gen import distribution_pb2 as distribution
from supervisor_middleware.wire.gen import inspection_pb2 as pb

DEFAULT_ROWS: Final = 500
MAX_ROWS: Final = 2000
MAX_BYTES: Final = 4 * MIB
"""Of rows; half of what a stream's message may hold."""


class Stand(StrEnum):
    """Where a supervisor stands with the generation it should run: `SupervisorState` without its prefix."""

    NOT_CONNECTED = "NOT_CONNECTED"
    PENDING = "PENDING"
    OFFERED = "OFFERED"
    PREPARED = "PREPARED"
    WAITING = "WAITING"
    REJECTED = "REJECTED"
    ACTIVE = "ACTIVE"


_STANDS: Final[Mapping[State, Stand]] = {
    State.OFFERED: Stand.OFFERED,
    State.PREPARED: Stand.PREPARED,
    State.WAITING: Stand.WAITING,
    State.REJECTED: Stand.REJECTED,
}
_PREFIX: Final = "SUPERVISOR_STATE_"
_WIRE: Final = {stand: pb.SupervisorState.Value(f"{_PREFIX}{stand.value}") for stand in Stand}

Place: TypeAlias = tuple[str, str, str]
"""Namespace, sandbox and Pod UID: what rows are sorted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which rows are wanted; empty is any. `sandbox` needs a namespace."""

    namespace: str = ""
    sandbox: str = ""
    stands: frozenset[Stand] = frozenset()

    def admits(self, sandbox: Sandbox) -> bool:
        """Whether the sandbox is in scope, in whatever state."""
        return self.namespace in {"", sandbox.namespace} and self.sandbox in {"", sandbox.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One supervisor at one moment."""

    sandbox: Sandbox
    standing: Standing
    stand: Stand

    @property
    def place(self) -> Place:
        """Where it stands in a list."""
        return place_of(self.sandbox)


def filter_of(asked: pb.Filter) -> Filter:
    """What a request wants.

    Raises:
        InvalidInput: a name is none, or a sandbox is named without its namespace.
    """
    if asked.namespace and not is_label(asked.namespace):
        raise InvalidInput("filter.namespace: must be a lower-case DNS label of at most 63 characters")
    if asked.sandbox and not is_subdomain(asked.sandbox):
        raise InvalidInput("filter.sandbox: must be a lower-case DNS name")
    if asked.sandbox and not asked.namespace:
        raise InvalidInput("filter.namespace: is needed with filter.sandbox")
    names = {
        pb.SupervisorState.Name(s).removeprefix(_PREFIX) for s in asked.states if s in pb.SupervisorState.values()
    }
    stands = frozenset(stand for stand in Stand if stand.value in names)
    if len(stands) < len(set(asked.states)):
        raise InvalidInput("filter.states: holds one that there is not")
    return Filter(namespace=asked.namespace, sandbox=asked.sandbox, stands=stands)


def place_of(sandbox: Sandbox) -> Place:
    """Where the rows of a sandbox stand in a list."""
    return sandbox.namespace, sandbox.name, sandbox.uid


def stand_of(standing: Standing) -> Stand:
    """Where a supervisor stands with what it should run."""
    record, desired = standing.record, standing.desired
    if record is None:
        return Stand.NOT_CONNECTED
    if desired is None:
        return Stand.PENDING
    if record.active == desired.digest:
        return Stand.ACTIVE
    if desired.digest in record.rejected:
        return Stand.REJECTED
    if record.offered is not None and record.offered.digest == desired.digest:
        return _STANDS.get(record.state, Stand.PENDING)
    return Stand.PENDING


def rows_of(sandboxes: Iterable[Sandbox], standing: Callable[[str], Standing], *, wanted: Filter) -> tuple[Row, ...]:
    """All rows in scope, in any state, sorted by place."""
    found = ((s, standing(s.key)) for s in sorted(filter(wanted.admits, sandboxes), key=place_of))
    return tuple(Row(sandbox=s, standing=standing, stand=stand_of(standing)) for s, standing in found)


def in_states(rows: Iterable[Row], wanted: Filter) -> list[Row]:
    """Those in a state that is wanted."""
    return [row for row in rows if not wanted.stands or row.stand in wanted.stands]


def troubled_first(rows: Iterable[Row]) -> list[Row]:
    """Those first that do not serve what they should: of many, these are worth a look."""
    return sorted(rows, key=lambda row: row.stand is Stand.ACTIVE)


def totals_of(rows: Sequence[Row]) -> pb.Totals:
    """How many are in which state."""
    stands = Counter(row.stand for row in rows)
    return pb.Totals(
        sandboxes=len(rows),
        connected=len(rows) - stands[Stand.NOT_CONNECTED],
        on_desired=stands[Stand.ACTIVE],
        states=[pb.StateCount(state=_state(s), count=stands[s]) for s in Stand if stands[s]],
    )


def page_of(rows: Iterable[Row], *, limit: int, trust_bundle: str) -> Iterator[pb.Supervisor]:
    """As many rows as one answer may hold; `trust_bundle` is the digest of the current one."""
    room = MAX_BYTES
    for row in islice(rows, min(limit, MAX_ROWS) or DEFAULT_ROWS):
        message = message_of(row, trust_bundle=trust_bundle)
        room -= message.ByteSize()
        if room < 0:
            return
        yield message


def message_of(row: Row, *, trust_bundle: str) -> pb.Supervisor:
    """One row, as it is sent."""
    sandbox, standing, record = row.sandbox, row.standing, row.standing.record
    message = pb.Supervisor(
        namespace=sandbox.namespace,
        sandbox=sandbox.name,
        pod=sandbox.pod,
        pod_uid=sandbox.uid,
        state=_state(row.stand),
        since=_stamp(_since(row)),
    )
    if (desired := standing.desired) is not None:
        message.desired.digest = desired.digest
        message.desired.epoch, message.desired.sequence = desired.rank.epoch, desired.rank.sequence
    if (visits := standing.visits) is not None:
        message.reconnects, message.certificate_issuer = visits.reconnects, visits.leaf.issuer
        message.certificate_expires_at.seconds = int(visits.leaf.expires_at.timestamp())
    if record is not None:
        message.MergeFrom(_connected(record, stand=row.stand, trust_bundle=trust_bundle))
    return message


def token_of(place: Place) -> str:
    """What the next page begins after."""
    return "/".join(place)


def after(rows: Sequence[Row], token: str) -> Sequence[Row]:
    """The rows after a page.

    Raises:
        InvalidInput: `token` is none of ours.
    """
    if not token:
        return rows
    match token.split("/"):
        case [namespace, sandbox, uid]:
            place = namespace, sandbox, uid
            return [row for row in rows if row.place > place]
        case _:
            raise InvalidInput("page_token: is not what an answer held")


def _connected(record: Record, *, stand: Stand, trust_bundle: str) -> pb.Supervisor:
    offered = record.offered
    is_preparing = offered is not None and record.state is State.PREPARED
    is_current = record.trust_bundle == trust_bundle
    is_rejected = stand is Stand.REJECTED
    return pb.Supervisor(
        prepared_digest=offered.digest if offered is not None and is_preparing else "",
        active_digest=record.active,
        rejection_reasons=map(_reason, record.reasons) if is_rejected else (),
        services=(_service(name, record) for name in record.services),
        connected_since=_stamp(record.connected_since),
        version=record.version,
        state_defect=distribution.StateDefect.Value(f"STATE_DEFECT_{(record.defect or 'unspecified').upper()}"),
        trust_bundle=pb.TRUST_BUNDLE_STATE_CURRENT if is_current else pb.TRUST_BUNDLE_STATE_OUTDATED,
    )


def _since(row: Row) -> datetime | None:
    record, visits = row.standing.record, row.standing.visits
    if record is not None:
        return record.since
    return None if visits is None else visits.left_at


def _service(name: str, record: Record) -> distribution.ServiceStatus:
    state = distribution.SERVICE_STATE_UNREACHABLE
    if name in record.incapable:
        state = distribution.SERVICE_STATE_INCAPABLE
    elif name in record.refusing:
        state = distribution.SERVICE_STATE_REFUSING
    return distribution.ServiceStatus(name=name, state=state)


def _state(stand: Stand) -> "pb.SupervisorState.ValueType":
    return _WIRE[stand]


def _reason(name: str) -> "distribution.RejectionReason.ValueType":
    return distribution.RejectionReason.Value(f"REJECTION_REASON_{name.upper()}")


def _stamp(time: datetime | None) -> Timestamp | None:
    # To the second: `FromDatetime` costs more than all the rest of a row.
    return None if time is None else Timestamp(seconds=int(time.timestamp()))
