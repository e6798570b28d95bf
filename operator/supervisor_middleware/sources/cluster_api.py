"""The API server as a few verbs over JSON: the only module that knows the Kubernetes client.

Every request has a timeout, every foreign error becomes one of ours, and no message repeats a body. Callers: the
other `cluster_*` modules. One `ClusterApi` lives as long as the process and survives restarts of the
API server: connections are made anew, tokens are read anew.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import yaml
from kubernetes.aio import config as loaders
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import OpenApiException
from kubernetes.aio.config import ConfigException

from supervisor_middleware.errors import Bug, InvalidInput, Unavailable
from supervisor_middleware.model.canonical import ParsedJson, parse

FIELD_MANAGER: Final = "supervisor-middleware"
PAGE_SIZE: Final = 500
CALL_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 3.0

_REASON: Final = re.compile(r"[A-Za-z]{1,64}")
_FIELD: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,256}")
_METADATA: Final = "application/json;as={};g=meta.k8s.io;v=v1"

Query = Sequence[tuple[str, str]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCredentials:
    """How to reach the API server, for a watcher that brings its own HTTP client; valid for now only."""

    server: str
    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    token: str | None = field(default=None, repr=False)
    is_unverified: bool = False


class ClusterApi:
    """The connection. Close it, or use it as an async context manager."""

    def __init__(self, configuration: Any, *, client: Any = None, check: Callable[[], None] = lambda: None) -> None:
        """Prepare one; nothing is dialled yet. Made by `connect`, or of another by `guarded`."""
        self._client: Any = ApiClient(configuration) if client is None else client
        self._configuration = configuration
        self._check = check

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; requests under way fail."""
        await self._client.close()

    def guarded(self, check: Callable[[], None]) -> "ClusterApi":
        """The same connection for one that may write only as long as `check` does not raise; close the original."""
        return ClusterApi(self._configuration, client=self._client, check=check)

    async def credentials(self) -> ApiCredentials:
        """What the client itself uses at this moment.

        Raises:
            Unavailable: the token cannot be read now.
        """
        config = self._configuration
        return ApiCredentials(
            server=config.host,
            ca_path=config.ssl_ca_cert,
            certificate_path=config.cert_file,
            key_path=config.key_file,
            token=await self._token(),
            is_unverified=not config.verify_ssl,
        )

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

    async def replace(self, path: str, body: ParsedJson) -> ParsedJson:
        """Replace an object; `Conflict` if its resourceVersion is another by now."""
        return await self._call("PUT", path, query=_MANAGED, body=body)

    async def apply(self, path: str, body: ParsedJson) -> ParsedJson:
        """Server-side apply, as our field manager, taking over fields that somebody else holds."""
        query = [*_MANAGED, ("force", "true")]
        return await self._call("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")

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
        what = f"{method} {path}"
        headers = {"Accept": str(accept), "Content-Type": content_type}
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            token = await self._token()
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            request = await self._client.param_serialize(
                method, path, query_params=list(query), header_params=headers, body=body
            )
            if method != "GET":
                # Last of all: the process may have been stopped for long anywhere before.
                self._check()
            response = await self._client.call_api(*request, _request_timeout=timeout)
            content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{what}: the API server cannot be reached ({type(error).__name__})") from error
        except OpenApiException as error:
            raise Bug(f"{what}: the request could not be made ({type(error).__name__})") from error
        return _answer(what, status=response.status, content=content)

    async def _token(self) -> str | None:
        try:
            settings = await self._configuration.auth_settings()
        except (ConfigException, OSError) as error:
            raise Unavailable("the ServiceAccount's token cannot be read") from error
        value = settings.get("BearerToken", {}).get("value")
        if not isinstance(value, str):
            return None
        scheme, _, token = value.strip().rpartition(" ")
        if scheme.lower() not in {"", "bearer"}:
            raise Unavailable("the kubeconfig's credentials are of a kind that is not supported")
        return token.strip()


async def connect(kubeconfig: Path | None) -> ClusterApi:
    """A connection as `kubeconfig` says, or as the Pod's ServiceAccount if it is None.

    Raises:
        InvalidInput: there is no usable configuration.
    """
    configuration, load = Configuration(), _LOADERS
    _require(kubeconfig)
    try:
        if kubeconfig is None:
            load.load_incluster_config(client_configuration=configuration)
        else:
            await load.load_kube_config(
                config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
            )
    except (*_UNUSABLE, ConfigException, OSError, yaml.YAMLError) as error:
        where = f"{kubeconfig}" if kubeconfig else "the Pod's ServiceAccount"
        hint = (
            "check the file: clusters, users, contexts and current-context are needed"
            if kubeconfig
            else "outside a cluster, pass a kubeconfig"
        )
        raise InvalidInput(f"cannot connect to a cluster by {where}: {hint}") from error
    return ClusterApi(configuration)


def _require(kubeconfig: Path | None) -> None:
    """The loader would log a line of its own. Several files, as kubectl takes them, need not all exist."""
    if kubeconfig is not None and os.pathsep not in str(kubeconfig) and not kubeconfig.exists():
        raise InvalidInput(f"{kubeconfig}: no such file; it is where the cluster was to be found (a kubeconfig)")


# What the loader stumbles over in a file that is YAML, but no kubeconfig.
_UNUSABLE: Final = (AttributeError, KeyError, TypeError, ValueError)
_LOADERS: Final[Any] = loaders  # it is not annotated
_MANAGED: Final[Query] = (("fieldManager", FIELD_MANAGER),)
_BY_STATUS: Final[Mapping[int, type[Unavailable]]] = {403: Forbidden, 404: NotFound, 409: Conflict, 410: Expired}
# 401: the token was rotated under us; 408, 429 and 5xx: the server is busy or broken.
_RETRYABLE: Final = frozenset({401, 408, 429})


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
