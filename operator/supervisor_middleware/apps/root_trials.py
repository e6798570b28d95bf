"""Whether middleware services take a certificate of a root before it issues, or since: by asking them.

A service that takes the present certificate and not the one of the next root has not read the new trust bundle. One
that answers to neither is down, which says nothing about roots.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import Outage, Unreachable
from supervisor_middleware.registry.client import RegistryClient
from supervisor_middleware.wire.channels import ClientIdentity

RETRY: Final = timedelta(seconds=10)
_REFUSALS: Final = frozenset({Outage.CREDENTIALS_REFUSED, Outage.CLOSED_AFTER_HANDSHAKE})


class Outcome(StrEnum):
    """What came of asking a service."""

    TAKEN = "taken"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Of whom: the certificate to be tried, and the one that is known to be taken (None: there is none other)."""

    candidate: ClientIdentity
    present: ClientIdentity | None


class Trials:
    """What is known of services; asks in the background. Close it at the end."""

    def __init__(self, *, retry: timedelta = RETRY, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`retry` is how soon one that did not take it is asked again."""
        self._retry, self._monotonic = retry.total_seconds(), monotonic
        self._subject = ""
        self._known: dict[Connection, tuple[Outcome, float]] = {}
        self._asking: asyncio.Task[None] | None = None

    def outcomes(
        self, services: Mapping[str, Connection], *, subject: str, trial: Callable[[], Trial]
    ) -> Mapping[str, Outcome]:
        """By name, as far as it is known; who was not asked yet is silent. `subject` names the root that is tried."""
        if subject != self._subject:
            self._forget(subject)
        due = [(name, c) for name, c in services.items() if self._is_due(c)]
        if due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask(due, trial()))
        unasked = (Outcome.SILENT, 0.0)
        return {name: self._known.get(connection, unasked)[0] for name, connection in services.items()}

    async def aclose(self) -> None:
        """End what is under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _forget(self, subject: str) -> None:
        self._subject, self._known = subject, {}
        if self._asking is not None:
            self._asking.cancel()

    def _is_due(self, connection: Connection) -> bool:
        outcome, at = self._known.get(connection, (Outcome.SILENT, -self._retry))
        return outcome is not Outcome.TAKEN and self._monotonic() - at >= self._retry

    async def _ask(self, services: list[tuple[str, Connection]], trial: Trial) -> None:
        candidate = RegistryClient(lambda: trial.candidate)
        present = RegistryClient(lambda: trial.present)
        try:

            async def ask(name: str, connection: Connection) -> None:
                outcome = await _outcome(name, connection, candidate=candidate, present=present, trial=trial)
                self._known[connection] = (outcome, self._monotonic())

            await asyncio.gather(*(ask(name, connection) for name, connection in services))
        finally:
            await candidate.close()
            await present.close()


async def _outcome(
    name: str, connection: Connection, *, candidate: RegistryClient, present: RegistryClient, trial: Trial
) -> Outcome:
    answer = await candidate.describe(connection, registration_name=name)
    if not isinstance(answer, Unreachable):
        return Outcome.TAKEN
    if trial.present is None:
        return Outcome.REFUSED if answer.outage in _REFUSALS else Outcome.SILENT
    proof = await present.describe(connection, registration_name=name)
    return Outcome.SILENT if isinstance(proof, Unreachable) else Outcome.REFUSED
