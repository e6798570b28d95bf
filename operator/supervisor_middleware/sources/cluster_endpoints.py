"""How many endpoints stand behind the Services that registrations name. Only for advice: nothing depends on it.

Looked up from time to time, never while somebody waits; what cannot be told is left out.
"""

import re
from collections.abc import AsyncIterator, Iterable
from typing import Final, Protocol

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.pki.spiffe import is_label
from supervisor_middleware.sources.cluster_api import Refused

SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
SERVICE_LABEL: Final = "kubernetes.io/service-name"

_SERVICE: Final = re.compile(
    r"https?://(?P<host>(?P<name>[^./:]+)\.(?P<namespace>[^./:]+)\.svc(\.[^/:]+)?)(:[0-9]+)?/?"
)


class Pages(Protocol):
    """What is asked of the API server."""

    def pages(self, path: str, *, selector: str = "") -> AsyncIterator[ParsedJson]:
        """All objects of a collection."""


class EndpointCache:
    """What was counted last, by endpoint as registrations write it."""

    def __init__(self, api: Pages) -> None:
        self._api = api
        self._counts: dict[str, int] = {}

    @property
    def ready(self) -> dict[str, int]:
        """Ready endpoints by endpoint; the same object until the next refresh."""
        return self._counts

    async def refresh(self, endpoints: Iterable[str]) -> None:
        """Count those of `endpoints` that are Services of this cluster; an outage forgets what was known."""
        counts: dict[str, int] = {}
        for endpoint in sorted(set(endpoints)):
            service = _SERVICE.fullmatch(endpoint.lower())
            if service is None or not is_label(service["name"]) or not is_label(service["namespace"]):
                continue
            try:
                counts[endpoint] = await self._count(service["name"], namespace=service["namespace"])
            except (Unavailable, Refused):
                continue
        self._counts = counts

    async def _count(self, name: str, *, namespace: str) -> int:
        path, selector = SLICES.format(namespace=namespace), f"{SERVICE_LABEL}={name}"
        return sum(
            [
                _is_ready(endpoint)
                async for page in self._api.pages(path, selector=selector)
                for found in page.get("items") or ()
                for endpoint in found.get("endpoints") or ()
            ]
        )


def _is_ready(endpoint: ParsedJson) -> bool:
    """`ready` absent means yes (discovery.k8s.io/v1)."""
    conditions = endpoint.get("conditions") or {}
    return conditions.get("ready") is not False and len(endpoint.get("addresses") or ()) > 0
