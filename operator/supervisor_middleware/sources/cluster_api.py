"""The API server as a few verbs over JSON. How it is reached is `cluster_connection`'s.

Every request has a timeout, every foreign error becomes one of ours, and no message repeats a body. Callers: the
other `cluster_*` modules. One `ClusterApi` lives as long as the process and survives restarts of the
API server: connections are made anew, tokens and its CA are read anew.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from supervisor_middleware.errors import Bug, Unavailable
from supervisor_middleware.model.canonical import ParsedJson, parse
from supervisor_middleware.sources.cluster_connection import ApiCredentials, Connection, Query, open_connection

FIELD_MANAGER: Final = "supervisor-middleware"
PAGE_SIZE: Final = 100
"""A page is in memory as a whole, each object at ten times its size here."""

_REASON: Final = re.compile(r"[A-Za-z]{1,64}")
_FIELD: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,256}")
_METADATA: Final = "application/json;as={};g=meta.k8s.io;v=v1"


class NotFound(Unavailable):
    """There is no such object, or no such kind."""


class Forbidden(Unavailable):
    """Our ServiceAccount may not do that: an administrator's move, so worth trying again."""


class Conflict(Unavailable):
    """The object is there already, or changed since it was read."""


class Expired(Unavailable):
    """A list was paged through too slowly."""


class Refused(Bug):
    """We sent something the API server does not accept; `fields` are the paths it complains about."""

    def __init__(self, message: str, *, fields: frozenset[str]) -> None:
        super().__init__(message)
        self.fields = fields


class Form(StrEnum):
    """How much of each object is wanted."""

    FULL = "application/json"
    METADATA = _METADATA.format("PartialObjectMetadata")
    METADATA_LIST = _METADATA.format("PartialObjectMetadataList")


class ClusterApi:
    """The connection. Close it, or use it as an async context manager."""

    def __init__(self, connection: Connection, *, check: Callable[[], None] = lambda: None) -> None:
        """Made by `connect`, or of another by `guarded`."""
        self._connection, self._check = connection, check

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; requests under way fail."""
        await self._connection.aclose()

    def guarded(self, check: Callable[[], None]) -> "ClusterApi":
        """The same connection for one that may write only as long as `check` does not raise; close the original."""
        return ClusterApi(self._connection, check=check)

    async def credentials(self) -> ApiCredentials:
        """What the client itself uses at this moment.

        Raises:
            Unavailable: the token cannot be read now.
        """
        return await self._connection.credentials()

    @property
    def renewals(self) -> int:
        """How often the CA was read anew: whoever has an HTTP client of its own needs another."""
        return self._connection.renewals

    async def get(self, path: str, *, form: Form = Form.FULL) -> ParsedJson:
        """One object."""
        return await self._call("GET", path, accept=form)

    async def pages(self, path: str, *, selector: str = "", form: Form = Form.FULL) -> AsyncIterator[ParsedJson]:
        """All objects of a collection at one moment, page by page.

        Raises:
            Expired: start again.
        """
        fixed = [("limit", str(PAGE_SIZE)), *([("labelSelector", selector)] if selector else [])]
        following = ""
        while True:
            query = [*fixed, *([("continue", following)] if following else [])]
            page = await self._call("GET", path, query=query, accept=form)
            yield page
            if not (following := page.get("metadata", {}).get("continue") or ""):
                return

    async def create(self, path: str, body: ParsedJson) -> ParsedJson:
        """Create an object in a collection; `Conflict` if it is there."""
        return await self._call("POST", path, query=_MANAGED, body=body)

    async def rehearse(self, path: str, body: ParsedJson) -> None:
        """A create that is judged as any other and never stored (`dryRun=All`)."""
        await self._call("POST", path, query=[*_MANAGED, ("dryRun", "All")], body=body)

    async def replace(self, path: str, body: ParsedJson) -> ParsedJson:
        """Replace an object; `Conflict` if its resourceVersion is another by now."""
        return await self._call("PUT", path, query=_MANAGED, body=body)

    async def apply(self, path: str, body: ParsedJson) -> ParsedJson:
        """Server-side apply, as our field manager, taking over fields that somebody else holds."""
        query = [*_MANAGED, ("force", "true")]
        return await self._call("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")

    async def merge(self, path: str, body: ParsedJson, *, form: Form = Form.FULL) -> ParsedJson:
        """JSON merge patch: null removes. `Conflict` if `body` names a resourceVersion and it is another by now."""
        return await self._call(
            "PATCH", path, query=_MANAGED, body=body, accept=form, content_type="application/merge-patch+json"
        )

    async def delete(self, path: str) -> None:
        """Delete an object; `NotFound` if it is not there."""
        await self._call("DELETE", path)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: ParsedJson | None = None,
        accept: str = Form.FULL,
        content_type: str = "application/json",
    ) -> ParsedJson:
        status, content = await self._connection.send(
            method,
            path,
            headers={"Accept": str(accept), "Content-Type": content_type},
            query=query,
            body=body,
            check=_nothing if method == "GET" else self._check,
        )
        return _answer(f"{method} {path}", status=status, content=content)


async def connect(kubeconfig: Path | None) -> ClusterApi:
    """The API server that `kubeconfig` names, or that of the Pod's cluster if it is None.

    Raises:
        InvalidInput: there is no usable configuration.
    """
    return ClusterApi(await open_connection(kubeconfig))


_MANAGED: Final[Query] = (("fieldManager", FIELD_MANAGER),)
_BY_STATUS: Final[Mapping[int, type[Unavailable]]] = {403: Forbidden, 404: NotFound, 409: Conflict, 410: Expired}
# 401: the token was rotated under us; 408, 429 and 5xx: the server is busy or broken.
_RETRYABLE: Final = frozenset({401, 408, 429})


def _nothing() -> None:
    """Reading is anybody's."""


def _answer(what: str, *, status: int, content: bytes) -> ParsedJson:
    body = _json(content)
    if status < 300 and body is not None:
        return body
    if status < 300:
        raise Unavailable(f"{what}: the API server answered something that is not a JSON object")
    reason = _REASON.fullmatch(str((body or {}).get("reason") or ""))
    text = f"{what}: the API server answered {status}" + (f" {reason[0]}" if reason else "")
    if status in _BY_STATUS:
        raise _BY_STATUS[status](text)
    if status in _RETRYABLE or status >= 500:
        raise Unavailable(text)
    raise Refused(text, fields=_fields(body or {}))


def _json(content: bytes) -> ParsedJson | None:
    try:
        body = parse(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _fields(body: ParsedJson) -> frozenset[str]:
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    named = (c.get("field") for c in causes or () if isinstance(c, dict))
    return frozenset(f for f in named if isinstance(f, str) and _FIELD.fullmatch(f))
