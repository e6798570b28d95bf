"""Makes the statuses of a pass and has them written. Owns which of them need a look at all.

A status that said everything when it was last looked at still does while the object and its standing stay: most do,
and making one is dear.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from supervisor_middleware.control.batches import for_each
from supervisor_middleware.control.decisions import Decisions
from supervisor_middleware.control.judge import PolicyDecision
from supervisor_middleware.control.registration_status import registration_status
from supervisor_middleware.control.registrations import RegistrationDecision, Registry
from supervisor_middleware.control.rollout import Rollout
from supervisor_middleware.control.standings import (
    PolicyStanding,
    is_judged,
    policy_standing,
    registration_standing,
    users_of,
)
from supervisor_middleware.control.status import policy_status
from supervisor_middleware.control.status_writer import StatusWriter
from supervisor_middleware.distribution.ledger import View
from supervisor_middleware.model.snapshot import Stored, StoredRevision

Standings = Mapping[str, PolicyStanding]


class Viewer(Protocol):
    """Who knows how supervisors stand."""

    def view(self, key: str, digest: str) -> View:
        """How a supervisor stands with a generation."""


class Statuses:
    """One a reconciler."""

    def __init__(self, writer: StatusWriter, viewer: Viewer) -> None:
        self._writer, self._viewer = writer, viewer
        self._settled: dict[str, tuple[Stored, PolicyStanding]] = {}

    def standings(
        self,
        policies: Sequence[PolicyDecision],
        accepted: Mapping[str, StoredRevision],
        rollout: Rollout,
        *,
        registry: Registry,
    ) -> Standings:
        """How policies (by UID) stand if `accepted` is in force."""
        degraded, view = registry.degraded, self._viewer.view
        return {
            p.stored.uid: policy_standing(
                p, accepted.get(p.stored.uid), rollout, bindings=registry.bindings, degraded=degraded, view=view
            )
            for p in policies
        }

    async def write_policies(
        self, policies: Sequence[PolicyDecision], standings: Standings, *, now: datetime
    ) -> list[bool]:
        """For each policy whether its stored status says how it stands now."""
        return await for_each(policies, partial(self._write_policy, standings=standings, now=now))

    async def write_registrations(
        self, registrations: Sequence[RegistrationDecision], decisions: Decisions, *, now: datetime
    ) -> list[bool]:
        """The same for registrations."""
        users = users_of(decisions) if registrations else {}
        return await for_each(registrations, partial(self._write_registration, users=users, now=now))

    async def write_all(self, decisions: Decisions, standings: Standings, *, now: datetime) -> None:
        """Everything that may be news."""
        policies = decisions.policies
        unsettled = [p for p in policies if self._settled.get(p.stored.uid) != (p.stored, standings[p.stored.uid])]
        written = await self.write_policies(unsettled, standings, now=now)
        failed = {p.stored.uid for p, is_written in zip(unsettled, written, strict=True) if not is_written}
        self._settled = {
            p.stored.uid: (p.stored, standings[p.stored.uid]) for p in policies if p.stored.uid not in failed
        }
        await self.write_registrations(decisions.registry.registrations, decisions, now=now)

    async def _write_policy(self, policy: PolicyDecision, *, standings: Standings, now: datetime) -> bool:
        stored, standing = policy.stored, standings[policy.stored.uid]
        if standing.report is None and is_judged(stored):
            # Asking again, after a restart say, is no reason to doubt what is known.
            return False
        status = policy_status(stored, standing, now=now)
        return await self._writer.write(stored, status, standing.report, now=now)

    async def _write_registration(
        self, registration: RegistrationDecision, *, users: Mapping[str, int], now: datetime
    ) -> bool:
        stored, standing = registration.stored, registration_standing(registration, users)
        if standing.report is None and is_judged(stored):
            return False
        status = registration_status(stored, standing, now=now)
        return await self._writer.write(stored, status, standing.report, now=now)
