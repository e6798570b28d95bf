"""What a supervisor tells the operator, as plain values, and the line in which reports wait to be sent.

`messages` says how each looks on the wire; `wire/proto/distribution.proto` says what each means.
"""

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from supervisor_middleware.model.generation import Rank
from supervisor_middleware.supervisor.activation import RejectionReason
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.record import Defect


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """What is known of one service that a generation needs."""

    name: str
    state: ServiceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First on every stream: where this supervisor stands. `active_digest` empty: never configured.

    `defect` is why it started without last-known-good, until it has saved a generation again.
    """

    active_digest: str
    rank: Rank
    rejected_digests: tuple[str, ...]
    trust_bundle_digest: str
    version: str
    defect: Defect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The candidate could be prepared. Not said by whoever can say at once that it serves it."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Not run, and trying again is pointless. `digest` is the trust bundle's if that is what is wrong."""

    digest: str
    reason: RejectionReason


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """The candidate waits for a service; what runs is kept."""

    digest: str
    services: tuple[ServiceReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """The generation is served. Sent again when a service's state changes."""

    digest: str
    services: tuple[ServiceReport, ...]


StateReport: TypeAlias = Accepted | Rejected | NotReady | Active
Report: TypeAlias = Hello | StateReport


class Outbox:
    """Reports in the order they were made. A newer one of the same kind and digest takes the older one's place.

    Nothing needs to survive a lost stream: a new stream begins with the state of the world (`restart`).
    """

    def __init__(self) -> None:
        self._reports: dict[tuple[type[StateReport], str], StateReport] = {}
        self._filled = asyncio.Event()

    def put(self, report: StateReport) -> None:
        """Send `report` when there is a stream."""
        key = (type(report), report.digest)
        self._reports.pop(key, None)
        self._reports[key] = report
        self._filled.set()

    def restart(self, *state: StateReport) -> None:
        """Forget what was not sent; a new stream begins with `state`."""
        self._reports.clear()
        for report in state:
            self.put(report)

    async def take(self) -> StateReport:
        """The next report; waits for one."""
        while not self._reports:
            self._filled.clear()
            await self._filled.wait()
        return self._reports.pop(next(iter(self._reports)))
