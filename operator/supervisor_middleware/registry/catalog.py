"""What is known of services and how fresh it is. PURE: time is an argument.

Keeps descriptions by what was dialled and verdicts by what was asked, so that an unchanged world asks nobody
anything. An outage is never kept as an answer for long: it is asked again, while accepted revisions stand on the
verdict they already hold.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import Described, Description, Unreachable, Verdict, VerdictKey

DESCRIBE_INTERVAL: Final = timedelta(seconds=60)
RETRY_FIRST: Final = timedelta(seconds=1)
RETRY_LAST: Final = timedelta(seconds=30)
VERDICT_RETRY: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The latest description of a connection; `failures` counts outages in a row."""

    description: Description
    at: datetime
    failures: int = 0

    @property
    def due(self) -> datetime:
        """When to describe again: soon after a failure, backing off; at leisure after a success."""
        if isinstance(self.description, Described):
            return self.at + DESCRIBE_INTERVAL
        return self.at + min(RETRY_FIRST * (1 << min(self.failures, 10)), RETRY_LAST)


class Catalog:
    """Descriptions and verdicts, in memory: everything in it can be asked again."""

    def __init__(self) -> None:
        self._descriptions: dict[tuple[Connection, str], Known] = {}
        self._verdicts: dict[VerdictKey, Verdict] = {}
        self._asked: dict[VerdictKey, datetime] = {}

    def description(self, connection: Connection, name: str) -> Known | None:
        """What is known of a service under this registration name."""
        return self._descriptions.get((connection, name))

    def described(self, connection: Connection, name: str, *, description: Description, now: datetime) -> None:
        """Take in an answer to Describe."""
        before = self._descriptions.get((connection, name))
        failed = not isinstance(description, Described)
        failures = (before.failures if before else 0) + 1 if failed else 0
        self._descriptions[connection, name] = Known(description=description, at=now, failures=failures)

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
        self._verdicts[key] = verdict
        self._asked[key] = now

    def is_unasked(self, key: VerdictKey) -> bool:
        """Whether nobody has answered, not even with an outage."""
        return key not in self._verdicts

    def is_askable(self, key: VerdictKey, *, now: datetime) -> bool:
        """Whether to ask (again): never asked, or an outage that has had time to pass."""
        if not isinstance(self._verdicts.get(key), Unreachable):
            return key not in self._verdicts
        return self._asked[key] + VERDICT_RETRY <= now

    def has_outages(self) -> bool:
        """Whether some question is still to be asked again."""
        return any(isinstance(v, Unreachable) for v in self._verdicts.values())

    def keep(self, connections: frozenset[tuple[Connection, str]], verdicts: frozenset[VerdictKey]) -> None:
        """Forget what nothing refers to any more, so that memory follows the cluster, not its history."""
        self._descriptions = {k: v for k, v in self._descriptions.items() if k in connections}
        self._verdicts = {k: v for k, v in self._verdicts.items() if k in verdicts}
        self._asked = {k: v for k, v in self._asked.items() if k in verdicts}
