"""The Kubernetes client, and where it is configured: a kubeconfig, or the Pod's ServiceAccount.

The only module that knows that client. Bytes go in and come out; what they mean is `cluster_api`'s. Tokens are read
anew as they change, all of the configuration when the API server's certificate is not of the CA that we have: a
cluster's CA is replaced under running processes, in its file. Once it throttles one request, the others wait as well.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import structlog
import yaml
from kubernetes.aio import config as loaders
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import OpenApiException
from kubernetes.aio.config import ConfigException

from supervisor_middleware.errors import Bug, InvalidInput, Unavailable
from supervisor_middleware.model.canonical import ParsedJson

CALL_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 3.0
RENEWAL_SECONDS: Final = 2.0
"""How often the configuration is read anew at most."""
LONGEST_PAUSE: Final = 5.0
"""For how long we are throttled at most before we ask again."""

Query = Sequence[tuple[str, str]]

_log = structlog.get_logger(__name__)


class Unreachable(Unavailable):
    """There was no answer at all, or none of the one we trust."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCredentials:
    """How to reach the API server, for a watcher that brings its own HTTP client; valid for now only."""

    server: str
    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    token: str | None = field(default=None, repr=False)
    is_unverified: bool = False


class Connection:
    """One a process, made by `open_connection`; shared by all who talk to the API server."""

    def __init__(self, kubeconfig: Path | None, configuration: Any) -> None:
        """Nothing is dialled yet."""
        self._kubeconfig, self._configuration = kubeconfig, configuration
        self._client: Any = ApiClient(configuration)
        self._last_renewal = -RENEWAL_SECONDS
        self._paused_until = 0.0
        self.renewals = 0
        """How often the configuration was read anew: an HTTP client made of the one of before is outdated."""

    async def aclose(self) -> None:
        """Close every connection; requests under way fail."""
        await self._client.close()

    async def credentials(self) -> ApiCredentials:
        """What is used at this moment.

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

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        query: Query,
        body: ParsedJson | None,
        check: Callable[[], None],
    ) -> tuple[int, bytes]:
        """One request; status and content of its answer. `check` is called before anything is sent, and may raise.

        Raises:
            Unreachable: there was no answer in time, or none of the one we trust.
            Unavailable: the token cannot be read now.
        """
        what = f"{method} {path}"
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            token = await self._token()
            bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
            request = await self._client.param_serialize(
                method, path, query_params=list(query), header_params={**headers, **bearer}, body=body
            )
            await asyncio.sleep(max(0.0, self._paused_until - time.monotonic()))
            # Last of all: the process may have been stopped for long anywhere before.
            check()
            response = await self._client.call_api(*request, _request_timeout=timeout)
            if response.status == HTTPStatus.TOO_MANY_REQUESTS:
                self._paused_until = time.monotonic() + _retry_after(response.headers.get("Retry-After"))
            return response.status, await response.read()
        except aiohttp.ClientConnectorCertificateError as error:
            await self._renew()
            raise Unreachable(f"{what}: the API server's certificate is not of the CA that we have") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{what}: the API server cannot be reached ({type(error).__name__})") from error
        except OpenApiException as error:
            raise Bug(f"{what}: the request could not be made ({type(error).__name__})") from error

    async def _renew(self) -> None:
        if time.monotonic() - self._last_renewal < RENEWAL_SECONDS:
            return
        self._last_renewal = time.monotonic()
        try:
            configuration = await _load(self._kubeconfig)
            client = ApiClient(configuration)
        except (InvalidInput, OSError) as error:
            _log.warning("the CA of the API server cannot be read anew", reason=type(error).__name__)
            return
        before, self._client, self._configuration = self._client, client, configuration
        self.renewals += 1
        await before.close()

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


async def open_connection(kubeconfig: Path | None) -> Connection:
    """A connection as `kubeconfig` says, or as the Pod's ServiceAccount if it is None.

    Raises:
        InvalidInput: there is no usable configuration.
    """
    return Connection(kubeconfig, await _load(kubeconfig))


def _retry_after(value: str | None) -> float:
    """Seconds; a date, which the API server does not send, counts as one."""
    return min(float(value), LONGEST_PAUSE) if value is not None and value.isdecimal() else 1.0


async def _load(kubeconfig: Path | None) -> Any:
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
    # The client would look for a proxy, and for a .netrc, in a thread at each request.
    configuration.client_session_kwargs = {"trust_env": False}
    configuration.proxy = configuration.proxy or _proxy(configuration.host)
    return configuration


def _proxy(server: str) -> str | None:
    """The proxy that the environment names for this server."""
    found = urlsplit(server)
    if proxy_bypass(found.hostname or ""):
        return None
    return getproxies().get(found.scheme)


def _require(kubeconfig: Path | None) -> None:
    """The loader would log a line of its own. Several files, as kubectl takes them, need not all exist."""
    if kubeconfig is not None and os.pathsep not in str(kubeconfig) and not kubeconfig.exists():
        raise InvalidInput(f"{kubeconfig}: no such file; it is where the cluster was to be found (a kubeconfig)")


# What the loader stumbles over in a file that is YAML, but no kubeconfig.
_UNUSABLE: Final = (AttributeError, KeyError, TypeError, ValueError)
_LOADERS: Final[Any] = loaders  # it is not annotated
