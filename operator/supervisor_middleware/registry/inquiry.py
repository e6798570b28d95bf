"""Asks everything that is open, at once: the gatherers' half of `Describe` and `ValidateConfig`.

Owns parallelism and the one deadline of a review; decides nothing. Whoever does not answer in time is an
`Unreachable` like any other, so the check that reads it names the slow service. Called by the webhook, the
reconciler and `smw validate`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from supervisor_middleware.compiler.questions import Question
from supervisor_middleware.compiler.registration import RegistrationDraft
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.identifiers import service_reason
from supervisor_middleware.model.limits import MAX_SERVICE_REASON_CHARS
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.verdict import (
    Accepted,
    Description,
    Outage,
    Rejected,
    Unreachable,
    Verdict,
    VerdictKey,
)

_CALLS_PER_SERVICE: Final = 4
"""Of one review, fewer than `REVIEWING`: it cannot keep a service from the others."""
_DESCRIBE_AT_ONCE: Final = 64


class BuiltinValidator(Protocol):
    """The part of a built-in middleware that judges configs."""

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        """Why `binding` cannot take `config`, or None where it can."""
        ...


class Services(Protocol):
    """What is asked: `registry.client.RegistryClient`, or a fake."""

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        """Ask a service what it is."""
        ...

    async def validate_config(
        self, connection: Connection, *, dialect: Dialect, binding: str, config: JsonObject, deadline: timedelta
    ) -> Verdict:
        """Ask whether `config` suits `binding`."""
        ...


class Connected(Services, Protocol):
    """Services, and the connections to them that are kept open."""

    def forget(self, keep: frozenset[Connection]) -> None:
        """Close what is not in `keep`, as soon as nobody uses it."""
        ...


class CrowdedError(Exception):
    """Too many wait for their turn at this service already."""


@dataclass(slots=True)
class _Queue:
    permits: asyncio.Semaphore
    present: int = 0


class Turns:
    """One queue a service: whoever uses another waits for nobody here."""

    def __init__(self, *, at_once: int, waiting: int | None = None) -> None:
        """`at_once` calls to one service; `waiting` for it at most, None: any number."""
        self._at_once, self._waiting = at_once, waiting
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def at(self, endpoint: str) -> AsyncIterator[None]:
        """A turn.

        Raises:
            CrowdedError: the queue is full.
        """
        queue = self._queues.setdefault(endpoint, _Queue(asyncio.Semaphore(self._at_once)))
        if self._waiting is not None and queue.present >= self._at_once + self._waiting:
            raise CrowdedError
        queue.present += 1
        try:
            async with queue.permits:
                yield
        finally:
            queue.present -= 1
            if not queue.present:
                del self._queues[endpoint]


RECONCILING: Final = 2
REVIEWING: Final = 5
"""Calls to one service at once. The client allows eight: `Describe` always finds room."""
REVIEWS_WAITING: Final = 256


class Inquirer:
    """Who is asked, bound once: the reconciler has one, the webhook another, so that neither waits for the other."""

    def __init__(self, client: Connected, builtins: Mapping[str, BuiltinValidator], *, turns: Turns) -> None:
        """`builtins` by binding ID; `turns` are all of this inquirer's, whatever is asked."""
        self._client, self._builtins, self._turns = client, builtins, turns

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        """Ask a service what it is."""
        return await self._client.describe(connection, registration_name=registration_name)

    def forget(self, keep: frozenset[Connection]) -> None:
        """Close connections that nothing refers to any more."""
        self._client.forget(keep)

    async def ask(self, questions: Sequence[Question], *, deadline: timedelta) -> dict[VerdictKey, Verdict]:
        """A verdict for every question; see `ask_all`."""
        return await ask_all(
            questions, client=self._client, builtins=self._builtins, deadline=deadline, turns=self._turns
        )


async def describe_all(client: Services, drafts: Sequence[RegistrationDraft]) -> dict[str, Description]:
    """What each service says of itself, by the draft's `uid` (names may collide until they are judged).

    Each call has its registration's timeout. A draft without a connection must not be dialled and is left out.
    """
    permits = asyncio.Semaphore(_DESCRIBE_AT_ONCE)

    async def one(connection: Connection, name: str) -> Description:
        async with permits:
            return await client.describe(connection, registration_name=name)

    dialled = [(d, d.connection) for d in drafts if d.connection is not None]
    answers = await asyncio.gather(*(one(connection, d.name) for d, connection in dialled))
    return {d.uid: answer for (d, _), answer in zip(dialled, answers, strict=True)}


async def ask_all(
    questions: Sequence[Question],
    *,
    client: Services,
    builtins: Mapping[str, BuiltinValidator],
    deadline: timedelta,
    turns: Turns | None = None,
) -> dict[VerdictKey, Verdict]:
    """A verdict for every question, within `deadline` whatever happens; equal questions are asked once.

    A call also ends at its binding's own timeout. Waiting for a turn at a busy service counts only against
    `deadline`, so a policy of ten configs is not refused for its own queue.
    """
    open_questions = {q.key: q for q in questions}
    own = {q.bound.endpoint: asyncio.Semaphore(_CALLS_PER_SERVICE) for q in open_questions.values()}
    shared = Turns(at_once=_CALLS_PER_SERVICE) if turns is None else turns

    async def one(question: Question) -> Verdict:
        if question.bound.registration is None:
            return await _ask_builtin(question, builtins)
        try:
            async with own[question.bound.endpoint], shared.at(question.bound.endpoint):
                return await client.validate_config(
                    question.bound.registration.connection,
                    dialect=question.bound.registration.manifest.dialect,
                    binding=question.bound.binding.id,
                    config=question.config,
                    deadline=min(question.bound.timeout, deadline),
                )
        except CrowdedError:
            return Unreachable(Outage.CROWDED)

    tasks = {key: asyncio.create_task(one(question)) for key, question in open_questions.items()}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=deadline.total_seconds())
        return {
            key: task.result() if task.done() else Unreachable(Outage.DEADLINE_EXCEEDED)
            for key, task in tasks.items()
        }
    finally:
        await _cancel(tasks.values())


async def _ask_builtin(question: Question, builtins: Mapping[str, BuiltinValidator]) -> Verdict:
    builtin = builtins.get(question.bound.binding.id)
    if builtin is None:
        return Unreachable(Outage.NOT_IMPLEMENTED)
    try:
        reason = await builtin.validate_config(question.bound.binding.id, question.config)
    except Exception as error:  # noqa: BLE001 - a built-in's bug must not take the rest of the review with it
        import structlog  # noqa: PLC0415 - smw validate starts without it

        # Only the kind: an exception's text may repeat the config.
        structlog.get_logger(__name__).error(
            "built-in failed to judge a config", binding=question.key.binding, error=type(error).__name__
        )
        return Unreachable(Outage.CALL_FAILED)
    if reason is None:
        return Accepted()
    return Rejected(service_reason(reason, limit=MAX_SERVICE_REASON_CHARS))


async def _cancel(tasks: Iterable[asyncio.Task[Verdict]]) -> None:
    late = [t for t in tasks if not t.done()]
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
