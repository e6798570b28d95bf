"""What is known of services and how fresh it is. PURE: time is an argument.

Keeps descriptions by what was dialled and verdicts by what was asked, so that an unchanged world asks nobody
anything. An outage is never kept as an answer for long: it is asked again, while accepted revisions stand on the
verdict they already hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import Described, Description, Unreachable, Verdict, VerdictKey

DESCRIBE_INTERVAL: Final = timedelta(seconds=60)
RETRY_FIRST: Final = timedelta(seconds=1)
RETRY_LAST: Final = timedelta(seconds=30)
_MAX_VERDICTS: Final = 100_000


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

    def next_due(self) -> datetime | None:
        """When the next service wants describing."""
        return min((k.due for k in self._descriptions.values()), default=None)

    @property
    def verdicts(self) -> Mapping[VerdictKey, Verdict]:
        """What services said of configs."""
        return self._verdicts

    def decided(self, verdicts: Mapping[VerdictKey, Verdict]) -> None:
        """Take in answers to ValidateConfig."""
        self._verdicts.update(verdicts)

    def unanswered(self, keys: Iterable[VerdictKey]) -> tuple[VerdictKey, ...]:
        """Those of `keys` that no service has answered; an outage is no answer."""
        return tuple(k for k in keys if isinstance(self._verdicts.get(k, _NOBODY), Unreachable | _Nobody))

    def keep(self, connections: frozenset[tuple[Connection, str]], verdicts: frozenset[VerdictKey]) -> None:
        """Forget what nothing refers to any more, so that memory follows the cluster, not its history."""
        self._descriptions = {k: v for k, v in self._descriptions.items() if k in connections}
        if len(self._verdicts) > min(2 * len(verdicts) + 100, _MAX_VERDICTS):
            self._verdicts = {k: v for k, v in self._verdicts.items() if k in verdicts}


class _Nobody:
    """Stands for "never asked"."""


_NOBODY: Final = _Nobody()
