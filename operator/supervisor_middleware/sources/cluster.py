"""The cluster as a source of snapshots: events are hints, lists decide.

A watch loses what is deleted while it is down, so every `list_interval`, and after each reconnect, a list of each
kind is compared with what we know: it drops ghosts, and it alone decides whether a kind is known. A kind that may not
be read or is being removed is *unknown*, and keeps what we knew of it: absence of data is not absence of policy.
"""

import asyncio
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
from supervisor_middleware.sources.cluster_endpoints import EndpointCache
from supervisor_middleware.sources.cluster_kinds import WATCHED
from supervisor_middleware.sources.cluster_objects import ObjectIdentity, identity_of, version_of
from supervisor_middleware.sources.cluster_view import ClusterView
from supervisor_middleware.telemetry import ControlMetrics

LIST_INTERVAL: Final = timedelta(seconds=30)
RETRY_INTERVAL: Final = timedelta(seconds=2)
"""How soon to ask again while a kind is unknown or the API server cannot be reached."""
ATTEMPTS_MISSED: Final = 5

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
        self._lost: set[Kind] = set()
        self._troubled: set[Kind] = set()
        self._behind: set[Kind] = set()
        self._last_attempt = monotonic()
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

    def observe(self, kind: Kind, event: str | None, body: ParsedJson) -> None:
        """Take in what a watcher saw. `event` None is part of a watcher's own list, so of a (re)connect."""
        try:
            identity = identity_of(body)
        except InvalidInput:
            return
        self._metrics.watch_last_event.labels(kind.value).set_to_current_time()
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
        outcomes = [await self._synchronize_kind(kind) for kind in WATCHED]
        if await self._bundles.refresh():
            self._changed()
        specs = (registration.spec for registration in self._view.values(Kind.SUPERVISOR_MIDDLEWARE))
        await self._endpoints.refresh(str(spec.get("grpcEndpoint")) for spec in specs)
        self._last_attempt = self._monotonic()
        return all(outcomes)

    async def _wait(self, pause: timedelta) -> None:
        """Until the next list is due or wanted; deletions are settled meanwhile."""
        due = self._monotonic() + pause.total_seconds()
        while not self._is_list_wanted and (remaining := due - self._monotonic()) > 0:
            try:
                async with asyncio.timeout(remaining):
                    await self._woken.wait()
            except TimeoutError:
                return
            self._woken.clear()
            await self._settle_departures()

    async def _settle_departures(self) -> None:
        departures, self._departures = self._departures, []
        for kind in dict.fromkeys(kind for kind, _ in departures):
            try:
                await self._require_definition(kind)
            except Unavailable as error:
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
            is_behind = self._view.is_behind(kind, listed)
            if is_behind:
                listed, version = await self._list(kind, form=Form.FULL)
            # After the list: if the kind's removal emptied it, its definition says so by now.
            await self._require_definition(kind)
        except (Unavailable, Refused) as error:
            self._lose(kind, error)
            return False
        self._hear(kind)
        self._troubled.discard(kind)
        ghosts = self._view.prune(kind, listed, version=version)
        if ghosts:
            _log.warning("dropped objects whose deletion was never seen", kind=kind.value, objects=ghosts[:10])
        if kind is Kind.POLICY_REVISION:
            self._metrics.corrupt_revisions.set(self._view.unusable(kind))
        is_news = self._learn(kind)
        self._suspect(kind, is_behind=is_behind and not is_news)
        if is_news or ghosts:
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
            self._lost.discard(kind)
            self.is_deaf.set()
        return True

    def _suspect(self, kind: Kind, *, is_behind: bool) -> None:
        """One list may overtake the watch; two in a row mean that it does not tell."""
        if is_behind and kind in self._behind:
            _log.warning("the watch does not tell what lists do", kind=kind.value)
            self.is_deaf.set()
        (self._behind.add if is_behind else self._behind.discard)(kind)

    async def _list(self, kind: Kind, *, form: Form) -> tuple[list[ObjectIdentity], int]:
        """Identities of everything listed, and the list's version; a full list is taken in as it comes."""
        watched = WATCHED[kind]
        listed: list[ObjectIdentity] = []
        version, is_changed = 0, False
        async for page in self._api.pages(watched.collection, selector=watched.selector, form=form):
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
        if not isinstance(error, Forbidden | NotFound):
            if kind not in self._troubled:
                self._troubled.add(kind)
                _log.warning("a kind cannot be listed now", kind=kind.value, reason=str(error))
            return
        self._hear(kind)
        if kind not in self._lost:
            _log.error("a kind is unknown: everything stays as it is", kind=kind.value, reason=str(error))
            self._lost.add(kind)
            self._unknown.add(kind)
            self._metrics.kind_unknown.labels(kind.value).set(1)
            self._changed()

    def _hear(self, kind: Kind) -> None:
        """A quiet cluster is not a stale one: lists go on when no event comes."""
        self._metrics.watch_last_event.labels(kind.value).set_to_current_time()


def _report_unusable(kind: Kind, name: str, reason: str) -> None:
    _log.error("an object cannot be used and is skipped", kind=kind.value, name=name, reason=reason)
