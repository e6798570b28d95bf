"""The roots of identities of a cluster's operator, in a Secret of its namespace.

Their loss locks every supervisor out, so one is made only where none was ever published, and what is deleted later is
never made anew. However many replicas start at once, one comes out: create, and on conflict read. Who leads writes
the stages of a rotation, over the version it read. The webhook's serving certificates are of other roots
(`cluster_serving`), so that neither key is ever good for the other's purpose.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import JsonObject, ParsedJson, canonical
from supervisor_middleware.model.sandbox import GROUP
from supervisor_middleware.pki.authority import LEAF_LIFETIME, ROOT_LIFETIME, Authority
from supervisor_middleware.pki.root_parts import parts_of
from supervisor_middleware.pki.rotation import Rotation
from supervisor_middleware.pki.rotation_record import (
    NOTES,
    Kept,
    Knowledge,
    StoredRotation,
    changes_to,
    stored_rotation,
)
from supervisor_middleware.pki.rotation_requests import Request, parse_request
from supervisor_middleware.pki.succession import Succession, split_roots
from supervisor_middleware.sources import cluster_bodies as bodies
from supervisor_middleware.sources.cluster_api import ClusterApi, Conflict, Form, NotFound
from supervisor_middleware.sources.cluster_kinds import CONFIG_MAPS, SECRETS, core_path

CA_SECRET: Final = "supervisor-middleware-ca"  # noqa: S105 - a name
ROTATE: Final = f"{GROUP}/rotate"
"""The annotation by which somebody asks for a rotation."""
ROTATION_NOTE: Final = f"{GROUP}/rotation-"
"""What the annotations of a rotation begin with."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Of what is made here, and of the leaves made of it."""

    root: timedelta = ROOT_LIFETIME
    leaf: timedelta = LEAF_LIFETIME


@dataclass(frozen=True, slots=True)
class _Seen:
    """The Secret as it was read last: as long as its version is the same, it need not cross the network again."""

    body: ParsedJson = field(repr=False)

    @property
    def version(self) -> tuple[str, str]:
        """Of this one object: a new one may have any resourceVersion."""
        return _version(self.body)


class ClusterAuthority:
    """The Secret."""

    def __init__(
        self, api: ClusterApi, *, namespace: str, trust_domain: str, lifetimes: Lifetimes = Lifetimes()
    ) -> None:
        """`namespace` is the operator's own."""
        self._api, self._namespace, self._trust_domain = api, namespace, trust_domain
        self._lifetimes = lifetimes
        self._path = core_path(SECRETS, namespace=namespace, name=CA_SECRET)
        self._seen: _Seen | None = None

    async def load_or_create(self, *, now: datetime) -> StoredRotation:
        """The roots of identities; a new one only where there never was one. One that somebody supplied is taken.

        Raises:
            InvalidInput: the Secret cannot serve; or it is missing although its bundle was published (a new CA would
                lock every supervisor out). Says what to do.
            Unavailable: the API server is.
        """
        # In this order: whoever publishes has stored the CA before, so a bundle seen means a CA that is there.
        published = await self._published()
        body = await self._secret()
        if body is None and published is not None:
            raise InvalidInput(
                f"Secret {self._namespace}/{CA_SECRET} is missing, but ConfigMap {bodies.TRUST_BUNDLE} was "
                "published: restore the Secret from a backup (or delete that ConfigMap to begin anew; every "
                "supervisor must then enrol again)"
            )
        if body is None:
            body = await self._create(now=now)
        return self._stored(body, now=now, published=published or ())

    async def read(self, *, now: datetime, known: Rotation) -> StoredRotation | None:
        """What the Secret holds now, for one that knows what it held; None: it is gone.

        Raises:
            InvalidInput: the Secret cannot serve; says why.
            Unavailable: the API server is.
        """
        body = await self._secret()
        return None if body is None else self._stored(body, now=now, known=known)

    async def write(self, rotation: Rotation, *, over: StoredRotation, check: Callable[[], None]) -> bool:
        """Keep `rotation` instead of what was read; False: somebody else wrote meanwhile, or the Secret is gone.

        `check` is asked in the last moment; if it raises, nothing is written.

        Raises:
            Unavailable: the API server is.
        """
        if self._seen is None or self._seen.version[1] != over.version:
            return False
        changes = changes_to(rotation).over(_kept(self._seen.body))
        notes = {f"{ROTATION_NOTE}{name}": value for name, value in changes.notes.items()}
        uid, version = self._seen.version
        metadata = {"uid": uid, "resourceVersion": version, "annotations": notes}
        try:
            api = self._api.guarded(check)
            body = await api.merge(self._path, {"metadata": metadata, "data": bodies.encoded(changes.parts)})
        except (Conflict, NotFound):
            return False
        self._seen = _Seen(body)
        return True

    async def show(self, status: JsonObject, *, check: Callable[[], None]) -> None:
        """Let people see where the rotation stands: an annotation of our namespace's trust bundle, without a key.

        Raises:
            Unavailable: the API server is.
        """
        path = core_path(CONFIG_MAPS, namespace=self._namespace, name=bodies.TRUST_BUNDLE)
        annotations = {bodies.ROTATION_STATUS: canonical(status).decode()}
        # No apply: it would make a ConfigMap without a bundle.
        await self._api.guarded(check).merge(path, {"metadata": {"annotations": annotations}})

    def _stored(
        self, body: ParsedJson, *, now: datetime, known: Rotation | None = None, published: tuple[bytes, ...] = ()
    ) -> StoredRotation:
        knowledge = Knowledge(
            trust_domain=self._trust_domain,
            now=now,
            longest=self._lifetimes.leaf,
            rotation=known,
            published=published,
        )
        try:
            request = _request(body)
            return stored_rotation(_kept(body), knowledge, version=_version(body)[1], request=request)
        except InvalidInput as error:
            raise InvalidInput(f"Secret {self._namespace}/{CA_SECRET}: {error}") from None

    async def _published(self) -> tuple[bytes, ...] | None:
        path = core_path(CONFIG_MAPS, namespace=self._namespace, name=bodies.TRUST_BUNDLE)
        try:
            data = (await self._api.get(path)).get("data") or {}
        except NotFound:
            return None
        return split_roots(str(data.get(bodies.TRUST_BUNDLE_KEY, "")).encode())

    async def _secret(self) -> ParsedJson | None:
        try:
            if self._seen is not None:
                seen = await self._api.get(self._path, form=Form.METADATA)
                if _version(seen) == self._seen.version:
                    return self._seen.body
            body = await self._api.get(self._path)
        except NotFound:
            return None
        self._seen = _Seen(body)
        return body

    async def _create(self, *, now: datetime) -> ParsedJson:
        made = Authority.create(trust_domain=self._trust_domain, now=now, lifetime=self._lifetimes.root)
        body = bodies.tls_secret_body(CA_SECRET, namespace=self._namespace, parts=parts_of(Succession(current=made)))
        try:
            created = await self._api.create(core_path(SECRETS, namespace=self._namespace), body)
        except Conflict:
            created = await self._api.get(self._path)
        else:
            _log.info("made a new certificate authority", secret=f"{self._namespace}/{CA_SECRET}")
        self._seen = _Seen(created)
        return created


def _kept(body: ParsedJson) -> Kept:
    annotations = _annotations(body)
    noted = {name: annotations.get(f"{ROTATION_NOTE}{name}") for name in NOTES}
    return Kept(parts=bodies.decoded(body), notes={name: str(v) for name, v in noted.items() if v is not None})


def _request(body: ParsedJson) -> Request | None:
    text = _annotations(body).get(ROTATE)
    return None if text is None else parse_request(str(text))


def _annotations(body: ParsedJson) -> Mapping[str, Any]:
    annotations: Mapping[str, Any] = body["metadata"].get("annotations") or {}
    return annotations


def _version(body: ParsedJson) -> tuple[str, str]:
    metadata = body["metadata"]
    return str(metadata["uid"]), str(metadata["resourceVersion"])
