"""Where decisions are kept in a cluster: revisions, statuses, the trust bundle, Events.

Every write is one that may be repeated. What was written is absorbed by the source at once. Structurally the
reconciler's `Store`; it never decides anything.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

import structlog

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import JsonObject, ParsedJson, digest
from supervisor_middleware.model.snapshot import Kind, Stored, StoredRevision
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources import cluster_bodies as bodies
from supervisor_middleware.sources.cluster_api import ClusterApi, Conflict, Forbidden, NotFound, Refused
from supervisor_middleware.sources.cluster_kinds import CONFIG_MAPS, WATCHED, core_path

BUNDLE_CHECK_SECONDS: Final = 600.0
"""How long a published bundle is believed to be as it was published."""

_BUNDLES_AT_ONCE: Final = 8
_NOTICES_REMEMBERED: Final = 4096

_log = structlog.get_logger(__name__)


class Fenced(Unavailable):
    """An operator of a newer epoch wrote the status: this one leads no more."""


class Absorber(Protocol):
    """Who wants to know what was written; the source."""

    def absorb(self, kind: Kind, body: ParsedJson) -> None:
        """Take in a state of an object that we wrote or met."""


class ClusterStore:
    """Writes on behalf of the leader."""

    def __init__(
        self,
        api: ClusterApi,
        *,
        source: Absorber,
        namespace: str,
        instance: str,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespace` is the operator's own, `instance` its Pod's name; `now` is UTC."""
        self._api, self._source, self._namespace, self._instance = api, source, namespace, instance
        self._now, self._monotonic = now, monotonic
        self._published: dict[str, tuple[str, float]] = {}
        self._notices: OrderedDict[Subject, bodies.Notice] = OrderedDict()

    async def save_revision(self, stored: StoredRevision) -> None:
        """Create a PolicyRevision; one that is there already, with the same digest, is fine.

        Raises:
            Unavailable: the API server is, or another revision has the name: look again and take the next number.
        """
        watched = WATCHED[Kind.POLICY_REVISION]
        try:
            body = await self._api.create(watched.collection, bodies.revision_body(stored))
        except Conflict:
            body = await self._api.get(watched.path(stored.name))
        self._source.absorb(Kind.POLICY_REVISION, body)
        if (body.get("spec") or {}).get("digest") != stored.digest:
            raise Unavailable(f"PolicyRevision {stored.name} is there already and says something else")

    async def delete_revision(self, name: str) -> None:
        """Delete a PolicyRevision; an absent one is fine.

        Raises:
            Unavailable: the API server is.
        """
        try:
            await self._api.delete(WATCHED[Kind.POLICY_REVISION].path(name))
        except NotFound:
            return

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        """Replace the status of the object exactly as it was read.

        Raises:
            Fenced: an operator of a newer epoch wrote it.
            Unavailable: the object changed or went since, or the API server is unavailable.
            Bug: the status does not fit the kind's schema.
        """
        kind, subject = Kind(stored.subject.kind), stored.subject
        path = WATCHED[kind].path(subject.name, namespace=subject.namespace)
        try:
            body = await self._api.replace(f"{path}/status", bodies.status_body(stored, status))
        except Refused as error:
            if error.fields == {"status.accepted"}:
                raise Fenced(f"{subject}: an operator of a newer epoch has accepted a revision of it") from error
            raise
        except Conflict:
            # Perhaps no watch tells at present: without this, the next attempt would be as outdated.
            self._source.absorb(kind, await self._api.get(path))
            raise
        self._source.absorb(kind, body)

    async def publish_bundle(self, pem: bytes, *, namespaces: frozenset[str]) -> None:
        """Keep the trust bundle in a ConfigMap of each namespace and of our own; costs nothing if all is as it was.

        A namespace that refuses (it is being deleted, its quota is spent) is logged and tried again next time.

        Raises:
            Unavailable: the API server is, or our own namespace refuses.
        """
        wanted = namespaces | {self._namespace}
        self._published = {ns: how for ns, how in self._published.items() if ns in wanted}
        due = [ns for ns in sorted(wanted) if self._is_due(ns, digest(pem))]
        at_once = asyncio.Semaphore(_BUNDLES_AT_ONCE)

        async def publish(namespace: str) -> None:
            async with at_once:
                await self._publish_one(pem, namespace=namespace)

        outcomes = await asyncio.gather(*(publish(ns) for ns in due), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]

    async def notify(self, subject: Subject, *, uid: str, reason: str, message: str, weight: str) -> None:
        """Send a Kubernetes Event, unless it was the last one about `subject`; `weight` is Normal or Warning.

        Events are best effort: one that cannot be sent is logged.
        """
        notice = bodies.Notice(uid=uid, reason=reason, message=message, weight=weight)
        if self._notices.get(subject) == notice:
            return
        path = f"/apis/events.k8s.io/v1/namespaces/{bodies.event_namespace(subject)}/events"
        body = bodies.event_body(subject, notice, instance=self._instance, now=self._now())
        try:
            await self._api.create(path, body)
        except (Unavailable, Refused) as error:
            _log.info("an Event could not be sent", object=str(subject), reason=str(error))
            return
        self._notices[subject] = notice
        self._notices.move_to_end(subject)
        if len(self._notices) > _NOTICES_REMEMBERED:
            self._notices.popitem(last=False)

    def _is_due(self, namespace: str, content: str) -> bool:
        match self._published.get(namespace):
            case (published, since) if published == content:
                return self._monotonic() - since >= BUNDLE_CHECK_SECONDS
            case _:
                return True

    async def _publish_one(self, pem: bytes, *, namespace: str) -> None:
        path = core_path(CONFIG_MAPS, namespace=namespace, name=bodies.TRUST_BUNDLE)
        try:
            await self._api.apply(path, bodies.trust_bundle_body(pem, namespace=namespace))
        except (Forbidden, NotFound) as error:
            if namespace == self._namespace:
                raise
            _log.warning("the trust bundle could not be published", namespace=namespace, reason=str(error))
            return
        self._published[namespace] = (digest(pem), self._monotonic())
