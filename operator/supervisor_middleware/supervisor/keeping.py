"""What a keeper works with: how candidates become runnable, where last-known-good goes, and all else it is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.supervisor.activation import Candidate
from supervisor_middleware.supervisor.announcements import Announcer
from supervisor_middleware.supervisor.pacing import Clock, Random, Watched
from supervisor_middleware.supervisor.record import Record
from supervisor_middleware.supervisor.runtime import Prepared, Runtime


class Preparation(Protocol):
    """How a candidate becomes runnable (`preparation.Preparer`)."""

    async def prepare(
        self,
        candidate: Candidate,
        *,
        credentials: Credentials | None,
        running: Prepared | None = None,
        attempt: Prepared | None = None,
    ) -> Prepared:
        """The candidate, connected as far as that goes."""


class Saving(Protocol):
    """Where last-known-good goes (`persistence.Persistence`)."""

    @property
    def is_saved(self) -> bool:
        """Whether a restart would find what was handed over last."""

    async def save(self, record: Record) -> None:
        """Keep it, now or as soon as the disk allows; never fails, never takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a keeper works with. `version` is the software's."""

    runtime: Runtime
    preparation: Preparation
    saving: Saving
    credentials: Watched[Credentials | None]
    trust_bundle_digest: Callable[[], str]
    announcer: Announcer
    clock: Clock
    random: Random
    version: str
