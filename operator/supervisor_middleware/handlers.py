"""The kopf edge: watches the cluster's kinds and hands each event on. Handlers mark and return.

Only `on.event` handlers in an explicit registry, so kopf puts neither finalizers nor annotations on anything.
kopf runs in a thread with a loop of its own: when it ends it cancels *every* task of its loop, and in the main thread
it takes over the process's signals. What it logs goes through structlog, without bodies.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Protocol

import kopf
import structlog
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.model.snapshot import Kind
from supervisor_middleware.sources.cluster_api import PAGE_SIZE
from supervisor_middleware.sources.cluster_connection import ApiCredentials
from supervisor_middleware.sources.cluster_kinds import WATCHED, WatchedKind

GRACE_SECONDS: Final = 1.0  # kopf gives its stragglers five, but ours have nothing to finish
STOP_SECONDS: Final = 5.0
RESTART_PAUSE: Final = 1.0
CLOSING_SECONDS: Final = 0.25
SILENCE: Final = timedelta(seconds=70)
"""A watch that says nothing for so long is dead, however open its connection: a bookmark comes each minute."""
_MAX_MESSAGE: Final = 200

_log = structlog.get_logger(__name__)


class Observer(Protocol):
    """Who is told; the source."""

    is_deaf: asyncio.Event
    """Set by the observer when it finds that it is not told everything."""

    def observe(self, kind: Kind, event: str | None, body: ParsedJson) -> None:
        """Take in what was seen; must return at once."""


async def watch(
    observer: Observer,
    *,
    credentials: Callable[[], Awaitable[ApiCredentials]],
    stop: asyncio.Event,
    silence: timedelta = SILENCE,
) -> None:
    """Watch until `stop` is set. `observer` is called in this loop, in the order of the events.

    A watch that says nothing for `silence` is connected anew.

    Reconnects by itself; a watcher that ends all the same is an error, never silence.

    Raises:
        Unavailable: it ended by itself, or does not tell everything: start it again, after a pause.
    """
    _quiet_kopf()
    observer.is_deaf.clear()
    watcher = _Watcher(observer, credentials=credentials, silence=silence, loop=asyncio.get_running_loop())
    waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(observer.is_deaf.wait())}
    either: set[asyncio.Future[Any]] = {*waiting, watcher.ended}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        outcome = watcher.ended.result() if watcher.ended.done() else "it did not tell everything"
    finally:
        for task in waiting:
            task.cancel()
        await watcher.aclose()
    if not stop.is_set():
        raise Unavailable(f"the watcher ended: {outcome}")


async def keep_watching(
    observer: Observer,
    *,
    credentials: Callable[[], Awaitable[ApiCredentials]],
    stop: asyncio.Event,
    silence: timedelta = SILENCE,
) -> None:
    """`watch`, and again when it ends by itself, until `stop` is set."""
    while not stop.is_set():
        try:
            await watch(observer, credentials=credentials, stop=stop, silence=silence)
        except Unavailable as error:
            _log.warning("watching starts again", reason=str(error))
            await asyncio.sleep(RESTART_PAUSE)


class _Watcher:
    """One run of kopf in its thread."""

    def __init__(
        self,
        observer: Observer,
        *,
        credentials: Callable[[], Awaitable[ApiCredentials]],
        silence: timedelta,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.ended: asyncio.Future[str] = loop.create_future()
        self._observer, self._credentials, self._loop = observer, credentials, loop
        self._silence = silence
        self._inner: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._is_closing = False
        self._seen = deque[tuple[Kind, str | None, ParsedJson]]()
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """Stop kopf and wait for its thread, but not forever: it is a daemon."""
        self._is_closing = True
        self._tell_kopf(self._stop.set)
        await asyncio.wait({self.ended}, timeout=GRACE_SECONDS)
        if self._running is not None:
            self._tell_kopf(self._running.cancel)
        await asyncio.wait({self.ended}, timeout=STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
            outcome = "without an error"
        except BaseException as error:  # noqa: BLE001 - the thread's only way to tell; the text may quote bodies
            outcome = type(error).__name__
        self._tell(self._end, outcome)

    async def _operate(self) -> None:
        self._inner = asyncio.get_running_loop()
        self._inner.set_exception_handler(self._complain)
        if self._is_closing:
            return
        operator = kopf.operator(
            registry=self._registry(),
            settings=_settings(silence=self._silence),
            memories=_NoMemories(),
            standalone=True,
            clusterwide=True,
            stop_flag=self._stop,
        )
        self._running = asyncio.create_task(operator)
        try:
            await self._running
        finally:
            # TLS connections close over several turns of the loop; asyncio.run gives them none.
            await asyncio.sleep(CLOSING_SECONDS)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        # No second try in there: whoever starts the watcher again paces that.
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(self._login)
        for watched in WATCHED.values():
            handler = kopf.on.event(watched.group, watched.version, watched.plural, registry=registry)
            handler(self._marker(watched))
        return registry

    def _marker(self, watched: WatchedKind) -> Callable[..., Awaitable[None]]:
        async def mark(event: Any, **_: object) -> None:
            if not self._is_closing:
                self._seen.append((watched.kind, event["type"], _without_managed_fields(event["object"])))
                # A burst wakes the other loop once, not once an event: each time both wait for the interpreter.
                if not self._is_told:
                    self._is_told = True
                    self._tell(self._hand_over)

        return mark

    def _hand_over(self) -> None:
        """In the observer's loop: all that was seen, in order."""
        # First: what is seen from now on is told anew.
        self._is_told = False
        while self._seen:
            # One by one, as if told one by one: what breaks on an event breaks on no other.
            self._loop.call_soon(self._observer.observe, *self._seen.popleft())

    async def _login(self, **_: object) -> kopf.ConnectionInfo:
        try:
            found = await self._credentials()
        except BaseException:
            # kopf gives up logging in, yet never ends: everything in it waits for credentials.
            self._stop.set()
            raise
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            certificate_path=found.certificate_path,
            private_key_path=found.key_path,
            token=found.token,
            insecure=found.is_unverified,
        )

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log = _log.debug if self._is_closing else _log.warning
        log("kopf: " + str(context.get("message"))[:_MAX_MESSAGE], error=type(context.get("exception")).__name__)

    def _tell_kopf(self, function: Callable[[], object]) -> None:
        if self._inner is not None and not self.ended.done():
            with contextlib.suppress(RuntimeError):  # its loop closed just now
                self._inner.call_soon_threadsafe(function)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # our loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(function, *arguments)

    def _end(self, outcome: str) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)


def _settings(*, silence: timedelta = SILENCE) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.watching.inactivity_timeout = silence.total_seconds()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # it would kill the whole process
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 3.0
    settings.networking.error_backoffs = (0.2, 0.5, 1, 1, 1, 1, 1, 1)
    settings.watching.chunk_size = PAGE_SIZE
    # So long a worker keeps the last body it saw: of a thousand objects a second, that many.
    settings.queueing.idle_timeout = 0.1
    for watched in WATCHED.values():
        if watched.selector:
            settings.watching.label_selectors[watched.group, watched.version, watched.plural] = watched.selector
    return settings


def _without_managed_fields(body: ParsedJson) -> ParsedJson:
    """The larger part of most bodies, which nobody reads: of a burst, thousands wait for the other loop."""
    metadata = {k: v for k, v in (body.get("metadata") or {}).items() if k != "managedFields"}
    return {**body, "metadata": metadata}


class _NoMemories(ResourceMemories):
    """kopf would keep a kilobyte and a half about each object it saw, for handlers that we have none of."""

    async def recall(self, *arguments: Any, **options: Any) -> ResourceMemory:
        """Of the one event it is asked for."""
        return await super().recall(*arguments, **{**options, "ephemeral": True})


class _ToStructlog(logging.Handler):
    """Passes warnings on, cut before anything that looks like a body."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().partition("{")[0].split("\n")[0]
        # Signals are the app's, and an outage is told by the source's lists, once.
        log = _log.debug if text.startswith(("OS signals are ignored", "Request attempt")) else _log.warning
        log("kopf: " + text[:_MAX_MESSAGE], logger=record.name)


def _quiet_kopf() -> None:
    logger = logging.getLogger("kopf")
    logger.propagate = False
    if not any(isinstance(h, _ToStructlog) for h in logger.handlers):
        logger.addHandler(_ToStructlog(level=logging.WARNING))
    logger.setLevel(logging.WARNING)
