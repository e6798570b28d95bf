"""What is known of services and how fresh it is. PURE: time is an argument.

Keeps descriptions by what was dialled and verdicts by what was asked, so that an unchanged world asks nobody
anything. A yes stands; a no is asked again at leisure, since a mended service must not need an edit of the policy;
an outage is asked again soon, takes nobody's answer away, and accepted revisions stand on the verdict they hold.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import Accepted, Described, Description, Unreachable, Verdict, VerdictKey

DESCRIBE_INTERVAL: Final = timedelta(seconds=60)
JITTER: Final = 0.1
"""How much earlier, at most: services that were described together, or failed together, must not stay in step."""
LOSS_INTERVAL: Final = timedelta(seconds=5)
"""Between descriptions of a service whose connections keep ending: a redeployment is seen soon, a habit is cheap."""
RETRY_FIRST: Final = timedelta(seconds=1)
RETRY_LAST: Final = timedelta(seconds=30)
VERDICT_RETRY: Final = timedelta(seconds=5)
REJECTION_RETRY: Final = timedelta(seconds=60)
MAX_SPARE_VERDICTS: Final = 1000
"""Of reviews whose object was never stored: a replica that only reviews forgets the oldest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The latest description of a connection; `failures` counts outages in a row, `pace` shortens every wait.

    `lost_at` is when the connection it came over ended.
    """

    description: Description
    at: datetime
    failures: int = 0
    pace: float = 1.0
    lost_at: datetime | None = None

    @property
    def due(self) -> datetime:
        """When to describe again: soon after a failure, backing off, or a lost connection; else at leisure."""
        if not isinstance(self.description, Described):
            return self.at + self.pace * min(RETRY_FIRST * (1 << min(self.failures, 10)), RETRY_LAST)
        at_leisure = self.at + self.pace * DESCRIBE_INTERVAL
        if self.lost_at is None:
            return at_leisure
        return min(at_leisure, max(self.lost_at + self.pace * RETRY_FIRST, self.at + self.pace * LOSS_INTERVAL))


class Catalog:
    """Descriptions and verdicts, in memory: everything in it can be asked again."""

    def __init__(self) -> None:
        self._descriptions: dict[tuple[Connection, str], Known] = {}
        self._verdicts: dict[VerdictKey, Verdict] = {}
        self._asked: dict[VerdictKey, datetime] = {}
        self._wanted: frozenset[VerdictKey] = frozenset()
        self._spare: deque[VerdictKey] = deque()
        self.version = 0
        """Grows with every verdict, and with a no that is forgotten: what was judged at it is still judged so."""

    def description(self, connection: Connection, name: str) -> Known | None:
        """What is known of a service under this registration name."""
        return self._descriptions.get((connection, name))

    def described(self, connection: Connection, name: str, *, description: Description, now: datetime) -> None:
        """Take in an answer to Describe."""
        before = self._descriptions.get((connection, name))
        failed = not isinstance(description, Described)
        failures = (before.failures if before else 0) + 1 if failed else 0
        self._descriptions[connection, name] = Known(
            description=description, at=now, failures=failures, pace=_pace(name)
        )

    def lost(self, connection: Connection, *, now: datetime) -> None:
        """A connection ended on which a service had answered: another version of it may come up."""
        for key, known in self._descriptions.items():
            if key[0] == connection and known.lost_at is None:
                self._descriptions[key] = replace(known, lost_at=now)

    def is_due(self, connection: Connection, name: str, *, now: datetime) -> bool:
        """Whether a service should be described (again)."""
        known = self._descriptions.get((connection, name))
        return known is None or known.due <= now

    def due(self) -> Iterator[tuple[tuple[Connection, str], datetime]]:
        """When each service wants describing again."""
        return ((key, known.due) for key, known in self._descriptions.items())

    @property
    def verdicts(self) -> Mapping[VerdictKey, Verdict]:
        """What services said of configs."""
        return self._verdicts

    def decided(self, key: VerdictKey, verdict: Verdict, *, now: datetime) -> None:
        """Take in an answer to ValidateConfig."""
        self._asked[key] = now
        if isinstance(verdict, Unreachable) and not isinstance(self._verdicts.get(key, verdict), Unreachable):
            return
        if key not in self._verdicts and key not in self._wanted:
            self._spare.append(key)
            self._limit_spare()
        if self._verdicts.get(key) != verdict:
            self._verdicts[key] = verdict
            self.version += 1

    def is_unasked(self, key: VerdictKey) -> bool:
        """Whether nobody has answered, not even with an outage."""
        return key not in self._verdicts

    def is_askable(self, key: VerdictKey, *, now: datetime) -> bool:
        """Whether to ask (again): never asked, or an answer that has had time to change."""
        verdict = self._verdicts.get(key)
        return verdict is None or (not isinstance(verdict, Accepted) and self._due(key, verdict) <= now)

    def verdicts_due(self) -> Iterator[tuple[VerdictKey, datetime]]:
        """When each question that was not answered with yes is to be asked again."""
        return ((k, self._due(k, v)) for k, v in self._verdicts.items() if not isinstance(v, Accepted))

    def keep(self, connections: frozenset[tuple[Connection, str]], verdicts: frozenset[VerdictKey]) -> None:
        """Forget what nothing refers to any more, so that memory follows the cluster, not its history."""
        self._descriptions = {k: v for k, v in self._descriptions.items() if k in connections}
        # Whoever holds a yes from before was told of this no by another's question.
        self.version += any(not isinstance(v, Accepted) for k, v in self._verdicts.items() if k not in verdicts)
        self._verdicts = {k: v for k, v in self._verdicts.items() if k in verdicts}
        self._asked = {k: v for k, v in self._asked.items() if k in verdicts}
        self._wanted = verdicts
        self._spare.clear()

    def _due(self, key: VerdictKey, verdict: Verdict) -> datetime:
        return self._asked[key] + (VERDICT_RETRY if isinstance(verdict, Unreachable) else REJECTION_RETRY)

    def _limit_spare(self) -> None:
        while len(self._spare) > MAX_SPARE_VERDICTS:
            forgotten = self._spare.popleft()
            self._verdicts.pop(forgotten, None)
            self._asked.pop(forgotten, None)


def _pace(name: str) -> float:
    """Between 1 - `JITTER` and 1, the same for a name in every process: nothing here draws lots."""
    return 1 - JITTER * int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
