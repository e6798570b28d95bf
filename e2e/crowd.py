"""A fleet in a namespace of its own, in groups of which policies differ, and how it gets from one leader to the next."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from e2e.fleet import Fleet, a_fleet, certified, most_within
from e2e.objects import Document, a_policy, an_entry
from e2e.replicas import HOSTS, Replicas
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.supervisor.pacing import BACKOFF_MIN
from supervisor_middleware.supervisor.subscriber import TAKEOVER_PAUSE

QUIET, RACING, UNSEEN = "quiet", "racing", "unseen"
CHANGED: Final = (RACING, UNSEEN)
"""Groups with a policy of their own, of the same name, beside the one of all."""
GROUPS: Final = (QUIET, *CHANGED)
FAILOVER_SECONDS: Final = 15.0

_GROUP_SIZE: Final = 16
_FIRST_ROUNDS: Final = 4
_SHORTEST_ROUND: Final = (BACKOFF_MIN * (len(HOSTS) - 1) + TAKEOVER_PAUSE) / 2
"""Seconds in which a supervisor tries every replica, when it has tried for a while; its first rounds are faster."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Crowd:
    """The fleet, connected, and its policies."""

    replicas: Replicas
    namespace: str
    fleet: Fleet

    def accepted(self) -> Mapping[str, Document]:
        """What is accepted of each policy."""
        return {name: status["accepted"] for name, status in self._statuses().items()}

    def edit(self, policy: str) -> None:
        """Change it."""
        self.replicas.installation.apply(_policy_of(policy, namespace=self.namespace, host="after.example.org"))

    def await_programmed(self) -> None:
        """Until every policy is in force in all of the fleet."""
        self.replicas.wait("all are programmed", lambda: all(map(_is_programmed, self._statuses().values())))

    def await_moved(self, *, since: float) -> None:
        """All hear whoever leads now, soon; nobody has dialled without a pause, and they did not come together."""
        fleet, epoch = self.fleet, self.replicas.epoch()
        self.replicas.wait("all heard it", lambda: len(fleet.moved(epoch)) == len(fleet.members))
        moved = fleet.moved(epoch)
        attempts = fleet.attempts(since=since)
        most = max(sum(at < heard for at in attempts[name]) for name, heard in moved.items())
        came = most_within(
            0.1, (max(at for at in fleet.members[n].plans if at < heard) for n, heard in moved.items())
        )
        took = max(moved.values()) - since
        _log.info("%d moved within %.2f s, by at most %d attempts; %d came together", len(moved), took, most, came)
        assert took <= FAILOVER_SECONDS
        assert most <= len(HOSTS) * (_FIRST_ROUNDS + took / _SHORTEST_ROUND)
        assert came < len(moved) / 2
        assert not any(member.refusals for member in fleet.members.values())

    def _statuses(self) -> Mapping[str, Document]:
        found = self.replicas.installation.plane.kubectl("get", "sbp", "-n", self.namespace, "-o", "json").stdout
        return {policy["metadata"]["name"]: policy["status"] for policy in json.loads(found)["items"]}


@dataclass(frozen=True, slots=True)
class Grounds:
    """Its namespace, and its certificates, while nobody is connected."""

    replicas: Replicas
    namespace: str
    certificates: Mapping[str, Credentials]

    @contextmanager
    def crowd(self) -> Iterator[Crowd]:
        """Everybody is connected to whoever leads, until the end of the block."""
        with a_fleet(self.replicas.installation, self.certificates, operators=HOSTS) as fleet:
            crowd = Crowd(self.replicas, self.namespace, fleet)
            crowd.await_programmed()
            yield crowd


def grounds(replicas: Replicas) -> Grounds:
    """Make the namespace, with Pods and policies."""
    installation = replicas.installation
    namespace = installation.plane.create_namespace("crowd")
    installation.apply(
        a_policy("all", namespace=namespace, redact=an_entry(order=1)),
        *(_policy_of(group, namespace=namespace) for group in CHANGED),
    )
    sandboxes = {name: {"group": group} for group in GROUPS for name in members_of(group)}
    return Grounds(replicas, namespace, certified(installation, sandboxes, namespace=namespace))


def members_of(group: str) -> list[str]:
    """The sandboxes of a group."""
    return [f"{group}-{number}" for number in range(_GROUP_SIZE)]


def _policy_of(group: str, *, namespace: str, host: str = "before.example.org") -> Document:
    return a_policy(group, namespace=namespace, selector={"group": group}, extra=an_entry(order=2, include=[host]))


def _is_programmed(status: Document) -> bool:
    conditions = status.get("conditions", ())
    programmed: Document = next((c for c in conditions if c["type"] == "Programmed"), {})
    return bool(
        programmed.get("status") == "True" and programmed["observedGeneration"] == status["observedGeneration"]
    )
