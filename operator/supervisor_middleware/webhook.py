"""The admission webhook: an aiohttp server over TLS. An edge; the answer is `control/admission`'s.

Every replica serves it. All `ValidateConfig` calls of a review run in parallel under one deadline inside the
webhook's own timeout. A review that cannot be judged is refused (fail closed), never let through.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog
from aiohttp import web

from supervisor_middleware.control.admission import decide_review, open_questions
from supervisor_middleware.control.decisions import decide_registry
from supervisor_middleware.control.inquiries import Asker
from supervisor_middleware.control.reviews import Decision, Review, parse_review
from supervisor_middleware.control.reviews import response as review_response
from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Accepted
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.telemetry import ControlMetrics, where

PATH: Final = "/validate"
DEADLINE: Final = timedelta(seconds=8)
"""For all questions of one review; the configuration's timeoutSeconds is 10."""
_WHOLE: Final = timedelta(seconds=1)
"""For everything else of it."""
# An AdmissionReview holds the object twice (old and new), each up to etcd's limit.
MAX_REVIEW_BYTES: Final = 8 * 1024 * 1024

_log = structlog.get_logger(__name__)


class Source(Protocol):
    """Where the rest of the world comes from."""

    async def snapshot(self) -> Snapshot:
        """Everything at one moment."""


class Webhook:
    """Judges reviews."""

    def __init__(
        self,
        *,
        source: Source,
        catalog: Catalog,
        asker: Asker,
        settings: CompilerSettings,
        metrics: ControlMetrics,
        now: Callable[[], datetime],
        deadline: timedelta = DEADLINE,
    ) -> None:
        """`catalog` is the reconciler's: what it knows is not asked again. `deadline` is for a review's questions."""
        self._source, self._catalog, self._asker = source, catalog, asker
        self._settings, self._metrics, self._now, self._deadline = settings, metrics, now, deadline

    def application(self) -> web.Application:
        """The aiohttp application."""
        application = web.Application(client_max_size=MAX_REVIEW_BYTES)
        application.router.add_post(PATH, self._handle)
        return application

    async def judge(self, review: Review) -> Decision:
        """Gather what the review needs, then decide."""
        snapshot = await self._source.snapshot()
        registry = decide_registry(snapshot, self._catalog, settings=self._settings)
        known = self._catalog.verdicts
        asked = open_questions(review, snapshot, registry=registry, verdicts=known)
        answers = await self._asker.ask(asked, deadline=self._deadline)
        for key, verdict in answers.items():
            # A no may be mended before the next attempt, so it is asked again then.
            if isinstance(verdict, Accepted):
                self._catalog.decided(key, verdict, now=self._now())
        # A baseline may meet the policies of every namespace: supervisors' streams go on meanwhile.
        return await asyncio.to_thread(
            decide_review,
            review,
            snapshot,
            registry=registry,
            verdicts={**known, **answers},
            settings=self._settings,
        )

    async def _handle(self, request: web.Request) -> web.Response:
        began = time.monotonic()
        try:
            body = json.loads(await request.read())
            review = parse_review(body, now=self._now())
        except (InvalidInput, ValueError, RecursionError):
            return web.json_response({"error": "the body is not an AdmissionReview of ours"}, status=400)
        decision = await self._answer(review)
        # Retryable: nobody can tell now, because a service or the operator itself is not able to.
        outcome = "allowed" if decision.is_allowed else "retryable" if decision.is_retryable else "denied"
        self._metrics.admission_review.labels(review.stored.subject.kind, outcome).observe(time.monotonic() - began)
        _log.info(
            "reviewed",
            object=str(review.stored.subject),
            outcome=outcome,
            reasons=sorted({v.reason.value for v in decision.violations.violations}),
        )
        return web.json_response(review_response(review.uid, decision))

    async def _answer(self, review: Review) -> Decision:
        try:
            async with asyncio.timeout((self._deadline + _WHOLE).total_seconds()):
                return await self.judge(review)
        except SupervisorMiddlewareError as error:
            _log.error("a review could not be judged", object=str(review.stored.subject), reason=str(error))
        except Exception as error:  # noqa: BLE001 - whatever broke, the answer is a refusal and the server goes on
            _log.error("a review could not be judged", object=str(review.stored.subject), error=where(error))
        message = f"{review.stored.subject} could not be judged just now; try again (see the operator's log)"
        return Decision(is_allowed=False, is_retryable=True, message=message)


async def serve(webhook: Webhook, *, host: str, port: int, tls: ssl.SSLContext) -> web.AppRunner:
    """Start serving; the runner's `cleanup` stops it. `tls` may be reloaded in place (`load_cert_chain`)."""
    runner = web.AppRunner(webhook.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    return runner
