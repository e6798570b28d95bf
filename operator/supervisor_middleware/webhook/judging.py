"""Judges one review: gathers what it needs, decides, and looks again live before it refuses.

One deadline, made when the review comes, covers everything asked for it: services, and the live look. What the cache
does not show yet (a registration made, a policy deleted a moment ago) is no reason to refuse.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from supervisor_middleware.compiler.questions import Question
from supervisor_middleware.control.acceptances import Acceptances
from supervisor_middleware.control.admission import decide_review, open_questions
from supervisor_middleware.control.decisions import decide_registry
from supervisor_middleware.control.doubts import Doubts, doubts
from supervisor_middleware.control.reviews import Decision, Review
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable
from supervisor_middleware.model.settings import CompilerSettings, Disclosure
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Accepted, Verdict, VerdictKey
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.telemetry import where

DEADLINE: Final = timedelta(seconds=8)
"""For all questions of one review; the configuration's timeoutSeconds is 10."""
_WHOLE: Final = timedelta(seconds=1)
"""For everything else of it."""
_LIVE: Final = timedelta(seconds=2)
"""For the live look; whoever cannot be looked at in time is as the cache shows it."""
_ROUNDS: Final = 2
_LIVE_LOOKS: Final = 8
"""At once: forged reviews must not become a flood at the API server."""

_log = structlog.get_logger(__name__)


class Source(Protocol):
    """Where the rest of the world comes from."""

    async def snapshot(self) -> Snapshot:
        """Everything at one moment, as far as it was told."""


class Live(Protocol):
    """Where it is looked up as it is now; `sources.cluster_live.ClusterLive`."""

    async def updated(self, snapshot: Snapshot, doubts: Doubts) -> Snapshot:
        """`snapshot` with what is in doubt read anew."""


class Asker(Protocol):
    """How services are asked; `registry.inquiry.Inquirer`, with turns of its own."""

    async def ask(self, questions: tuple[Question, ...], *, deadline: timedelta) -> Mapping[VerdictKey, Verdict]:
        """A verdict for every question within `deadline`."""


class Webhook:
    """Judges reviews."""

    def __init__(
        self,
        *,
        source: Source,
        catalog: Catalog,
        asker: Asker,
        settings: CompilerSettings,
        now: Callable[[], datetime],
        deadline: timedelta = DEADLINE,
        live: Live | None = None,
        disclosure: Disclosure = Disclosure.NAMES,
        acceptances: Acceptances | None = None,
    ) -> None:
        """`catalog` and `acceptances` are the replica's: what it knows is not asked again.

        `deadline` is for a review's questions.
        """
        self._source, self._catalog, self._asker, self._live = source, catalog, asker, live
        self._settings, self._now, self._deadline, self._disclosure = settings, now, deadline, disclosure
        self._acceptances = acceptances or Acceptances()
        self._looks = asyncio.Semaphore(_LIVE_LOOKS)

    async def answer(self, review: Review) -> Decision:
        """The decision, or a refusal that says to try again; never an exception, never late."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout((self._deadline + _WHOLE).total_seconds()):
                return await self._judge(review, until=began + self._deadline.total_seconds())
        except SupervisorMiddlewareError as error:
            _log.error("a review could not be judged", object=str(review.stored.subject), reason=str(error))
        except Exception as error:  # noqa: BLE001 - whatever broke, the answer is a refusal and the server goes on
            _log.error("a review could not be judged", object=str(review.stored.subject), error=where(error))
        message = f"{review.stored.subject} could not be judged just now; try again (see the operator's log)"
        return Decision(is_allowed=False, is_retryable=True, message=message)

    async def _judge(self, review: Review, *, until: float) -> Decision:
        snapshot = await self._source.snapshot()
        decision = await self._decide(review, snapshot, until=until)
        # With its binding found it may conflict for the first time, so twice at most.
        for _ in range(_ROUNDS):
            looked = await self._look(review, snapshot, decision)
            if looked is snapshot:
                break
            snapshot = looked
            decision = await self._decide(review, snapshot, until=until)
        return decision

    async def _look(self, review: Review, snapshot: Snapshot, decision: Decision) -> Snapshot:
        """The snapshot, or one in which what the refusal rests on is as it is now."""
        if self._live is None or not (doubtful := doubts(review, decision)):
            return snapshot
        try:
            async with asyncio.timeout(_LIVE.total_seconds()), self._looks:
                return await self._live.updated(snapshot, doubtful)
        except (Unavailable, TimeoutError) as error:
            _log.info("the cluster could not be asked before a refusal", error=type(error).__name__)
            return snapshot

    async def _decide(self, review: Review, snapshot: Snapshot, *, until: float) -> Decision:
        """Ask what is open, then decide."""
        acceptance = self._acceptances.of(snapshot)
        registry = decide_registry(snapshot, self._catalog, settings=self._settings, acceptance=acceptance)
        known = self._catalog.verdicts
        asked = open_questions(review, acceptance, registry=registry, verdicts=known)
        remaining = max(0.0, until - asyncio.get_running_loop().time())
        answers = await self._asker.ask(asked, deadline=timedelta(seconds=remaining))
        for key, verdict in answers.items():
            # A no may be mended before the next attempt, so it is asked again then.
            if isinstance(verdict, Accepted):
                self._catalog.decided(key, verdict, now=self._now())
        # A baseline may meet the policies of every namespace: supervisors' streams go on meanwhile.
        return await asyncio.to_thread(
            decide_review,
            review,
            snapshot,
            acceptance=acceptance,
            registry=registry,
            verdicts={**known, **answers},
            settings=self._settings,
            disclosure=self._disclosure,
        )
