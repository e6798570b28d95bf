"""The cluster as a source of snapshots: events are hints, lists decide.

A watch loses what is deleted while it is down, so every `list_interval`, and after each reconnect, a list of each
kind is compared with what we know: it drops ghosts, and it alone decides whether a kind is known. A kind that may not
be read or is being removed is *unknown*, and keeps what we knew of it: absence of data is not absence of policy. A
watch that does not tell within an interval what a list did is deaf, however open its connection, and started anew.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog

from supervisor_middleware.compiler.registration import reference_of
from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError, Unavailable
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.model.snapshot import Kind, Snapshot
from supervisor_middleware.sources.cluster_api import ClusterApi, Forbidden, Form, NotFound, Refused
from supervisor_middleware.sources.cluster_bundles import BundleCache
from supervisor_middleware.sources.cluster_connection import Unreachable
from supervisor_middleware.sources.cluster_endpoints import EndpointCache
from supervisor_middleware.sources.cluster_kinds import WATCHED
from supervisor_middleware.sources.cluster_objects import ObjectIdentity, identity_of, version_of
from supervisor_middleware.sources.cluster_view import ClusterView
from supervisor_middleware.telemetry import ControlMetrics

LIST_INTERVAL: Final = timedelta(seconds=30)
RETRY_INTERVAL: Final = timedelta(seconds=2)
"""How soon to ask again while a kind is unknown or the API server cannot be reached."""
ATTEMPTS_MISSED: Final = 5
UNANSWERED_AT_MOST: Final = 2
"""After so many kinds without an answer the others wait for the next pass: each would wait for its timeout. Not after
one, which may be slow by itself."""

_log = structlog.get_logger(__name__)


class ClusterSource:
    """What the cluster holds. `observe` from one event loop only; `run` as a task; `snapshot` whenever needed."""

    def __init__(
        self,
        api: ClusterApi,
        *,
        metrics: ControlMetrics,
        changed: Callable[[], None] = lambda: None,
        list_interval: timedelta = LIST_INTERVAL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after each change, and must return at once."""
        self._api, self._metrics, self._changed, self._monotonic = api, metrics, changed, monotonic
        self._list_interval = list_interval
        self._view = ClusterView(report=_report_unusable)
        self._bundles, self._endpoints = BundleCache(api), EndpointCache(api)
        self._unknown = set(WATCHED)
        for kind in WATCHED:
            metrics.kind_unknown.labels(kind.value).set(1)
        self._lost: dict[Kind, str] = {}
        self._troubled: set[Kind] = set()
        self._untold: dict[Kind, int] = {}
        self._renewals = api.renewals
        self._last_attempt = monotonic()
        self._unanswered = 0
        self._departures: list[tuple[Kind, ObjectIdentity]] = []
        self._woken = asyncio.Event()
        self._is_list_wanted = True
        self.is_deaf = asyncio.Event()
        """Set when lists bring what the watcher should have told: it must be started anew."""

    def alive(self) -> str | None:
        """What is wrong if lists are not even tried any more, for a liveness probe; an outage is not."""
        silence = self._monotonic() - self._last_attempt
        if silence < ATTEMPTS_MISSED * self._list_interval.total_seconds():
            return None
        return f"the cluster has not been looked at for {silence:.0f} s"

    def missing(self) -> str | None:
        """Which kinds are unknown and why, for a readiness probe; None if all are known."""
        problems = (f"{k.value}: {self._lost.get(k, 'not listed yet')}" for k in WATCHED if k in self._unknown)
        return "; ".join(problems) or None

    def observe(self, kind: Kind, event: str | None, body: ParsedJson) -> None:
        """Take in what a watcher saw. `event` None is part of a watcher's own list, so of a (re)connect."""
        try:
            identity = identity_of(body)
        except InvalidInput:
            return
        self._hear(kind)
        if identity.version >= self._untold.get(kind, 0):
            self._untold.pop(kind, None)
        match event:
            case "DELETED" if WATCHED[kind].definition is not None:
                # Perhaps the whole kind is going: `run` looks before anybody hears of it.
                self._departures.append((kind, identity))
                self._woken.set()
            case "DELETED" if self._view.remove(kind, identity):
                self._changed()
            case None | "ADDED" | "MODIFIED" if self._view.admit(kind, body):
                self._changed()
        if event is None and not self._is_list_wanted:
            self._is_list_wanted = True
            self._woken.set()

    def absorb(self, kind: Kind, body: ParsedJson) -> None:
        """Know at once what we wrote ourselves: the next write needs its resourceVersion, and nobody need be told."""
        self._view.admit(kind, body)

    async def snapshot(self) -> Snapshot:
        """Everything as it is known now.

        Raises:
            Unavailable: a CA bundle that was never read cannot be read now.
        """
        # All of one moment, before anything is awaited: a registration must not refer to a bundle nobody looked for.
        seen = Snapshot(
            registrations=self._view.values(Kind.SUPERVISOR_MIDDLEWARE),
            policies=self._view.policies(),
            revisions=self._view.values(Kind.POLICY_REVISION),
            sandboxes=self._view.values(Kind.SANDBOX),
            namespaces=self._view.namespaces(),
            ready_endpoints=self._endpoints.ready,
            unknown=frozenset(kind.value for kind in self._unknown),
        )
        keys = [key for r in seen.registrations if (key := reference_of(r)) is not None]
        return replace(seen, bundles=await self._bundles.read(keys))

    async def run(self) -> None:
        """List, compare, wait; until cancelled. Nothing the API server does ends it."""
        while True:
            self._is_list_wanted = False
            is_complete = await self.synchronize()
            pause = self._list_interval if is_complete else min(RETRY_INTERVAL, self._list_interval)
            await self._wait(pause)

    async def synchronize(self) -> bool:
        """Compare every kind with a fresh list, and every CA bundle; whether all of it could be done."""
        self._unanswered, is_complete = 0, True
        for kind in WATCHED:
            is_complete &= await self._synchronize_kind(kind)
            if self._unanswered == UNANSWERED_AT_MOST:
                break
        if self._is_outdated():
            # The watcher brings its own HTTP client, which still trusts the CA of before.
            self._renewals = self._api.renewals
            self.is_deaf.set()
        # In an outage each of many requests would wait for its timeout, and nothing be looked at meanwhile.
        if not self._troubled and await self._bundles.refresh():
            self._changed()
        if not self._troubled:
            specs = (registration.spec for registration in self._view.values(Kind.SUPERVISOR_MIDDLEWARE))
            await self._endpoints.refresh(str(spec.get("grpcEndpoint")) for spec in specs)
        return is_complete

    async def _wait(self, pause: timedelta) -> None:
        """Until the next list is due or wanted; deletions are settled meanwhile."""
        due = self._monotonic() + pause.total_seconds()
        while not self._is_list_wanted and (remaining := due - self._monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, RETRY_INTERVAL.total_seconds())):
                    await self._woken.wait()
            self._woken.clear()
            await self._settle_departures()
            self._is_list_wanted |= self._is_outdated()

    def _is_outdated(self) -> bool:
        """Whether somebody else found that the API server has another CA than the watcher trusts."""
        return self._api.renewals != self._renewals

    async def _settle_departures(self) -> None:
        departures, self._departures = self._departures, []
        for kind in dict.fromkeys(kind for kind, _ in departures):
            try:
                await self._require_definition(kind)
            except (Unavailable, Refused) as error:
                # The next list drops what is truly gone.
                self._lose(kind, error)
                self._is_list_wanted = True
                continue
            removed = [self._view.remove(kind, identity) for of, identity in departures if of is kind]
            if any(removed):
                self._changed()

    async def _synchronize_kind(self, kind: Kind) -> bool:
        try:
            listed, version = await self._list(kind, form=Form.METADATA_LIST)
            news = self._view.newest_unseen(kind, listed)
            # Before anything is awaited: the watch may tell it at any moment from now on.
            self._suspect(kind, news=news)
            if news:
                listed, version = await self._list(kind, form=Form.FULL)
            # After the list: if the kind's removal emptied it, its definition says so by now.
            await self._require_definition(kind)
        except (Unavailable, Refused, InvalidInput) as error:
            self._lose(kind, error)
            return False
        self._hear(kind)
        if kind in self._troubled:
            self._troubled.discard(kind)
            _log.info("a kind can be listed again", kind=kind.value)
        ghosts = self._view.prune(kind, listed, version=version)
        if ghosts:
            _log.warning("dropped objects whose deletion was never seen", kind=kind.value, objects=ghosts[:10])
        if kind is Kind.POLICY_REVISION:
            self._metrics.corrupt_revisions.set(self._view.unusable(kind))
        if self._learn(kind) or ghosts:
            self._changed()
        return True

    def _learn(self, kind: Kind) -> bool:
        """The kind is known now; whether it was not."""
        if kind not in self._unknown:
            return False
        self._unknown.discard(kind)
        self._metrics.kind_unknown.labels(kind.value).set(0)
        _log.info("a kind is known", kind=kind.value, objects=len(self._view.values(kind)))
        if kind in self._lost:
            # kopf looks for a kind that comes back only once, often before the API server serves it.
            del self._lost[kind]
            self.is_deaf.set()
        return True

    def _suspect(self, kind: Kind, *, news: int) -> None:
        """A list may overtake the watch, but not by a whole interval. `news` is the newest version it brought."""
        if kind in self._unknown:
            self._untold.pop(kind, None)
        elif kind in self._untold:
            _log.warning("the watch does not tell what lists do, and is started anew", kind=kind.value)
            del self._untold[kind]
            self.is_deaf.set()
        elif news:
            self._untold[kind] = news

    async def _list(self, kind: Kind, *, form: Form) -> tuple[list[ObjectIdentity], int]:
        """Identities of everything listed, and the list's version; a full list is taken in as it comes."""
        watched = WATCHED[kind]
        self._last_attempt = self._monotonic()
        listed: list[ObjectIdentity] = []
        version, is_changed = 0, False
        async for page in self._api.pages(watched.collection, selector=watched.selector, form=form):
            self._last_attempt = self._monotonic()
            version = version_of(page.get("metadata") or {})
            for body in page.get("items") or ():
                listed.append(identity_of(body))
                is_changed |= form is Form.FULL and self._view.admit(kind, body)
            # A page is converted in one go: let everybody else have a turn.
            await asyncio.sleep(0)
        if is_changed:
            self._changed()
        return listed, version

    async def _require_definition(self, kind: Kind) -> None:
        """Raise `NotFound` if the kind itself is gone or going."""
        path = WATCHED[kind].definition
        if path is None:
            return
        try:
            definition = await self._api.get(path, form=Form.METADATA)
        except Forbidden:
            # Without that right a kind's removal looks like the deletion of each of its objects.
            _log.warning("may not read the CustomResourceDefinition: grant `get` on it", kind=kind.value)
            return
        if definition.get("metadata", {}).get("deletionTimestamp"):
            raise NotFound(f"{path}: the CustomResourceDefinition is being deleted")

    def _lose(self, kind: Kind, error: SupervisorMiddlewareError) -> None:
        """An outage leaves everything as it is; a refusal makes the kind unknown."""
        self._unanswered += isinstance(error, Unreachable)
        if not isinstance(error, Forbidden | NotFound):
            if kind not in self._troubled:
                self._troubled.add(kind)
                _log.warning("a kind cannot be listed now", kind=kind.value, reason=str(error))
            return
        self._hear(kind)
        is_new, self._lost[kind] = kind not in self._lost, str(error)
        if is_new:
            _log.error("a kind is unknown: everything stays as it is", kind=kind.value, reason=str(error))
            self._unknown.add(kind)
            self._metrics.kind_unknown.labels(kind.value).set(1)
            self._changed()

    def _hear(self, kind: Kind) -> None:
        """A quiet cluster is not a stale one: lists go on when no event comes."""
        self._metrics.watch_last_event.labels(kind.value).set_to_current_time()


def _report_unusable(kind: Kind, name: str, reason: str) -> None:
    _log.error("an object cannot be used and is skipped", kind=kind.value, name=name, reason=reason)
