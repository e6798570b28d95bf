"""How supervisors find the leader: one EndpointSlice of a Service without a selector, written by whoever leads.

A slice that an earlier leader left is taken over. It belongs to the Service, and goes with it.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address

import structlog

from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.sources.cluster_api import ClusterApi, NotFound
from supervisor_middleware.sources.cluster_bodies import Body
from supervisor_middleware.sources.cluster_kinds import core_path

_log = structlog.get_logger(__name__)


class LeaderSlice:
    """The slice of one Service, as this replica would have it."""

    def __init__(
        self,
        api: ClusterApi,
        *,
        namespace: str,
        service: str,
        address: IPv4Address | IPv6Address,
        ports: Mapping[str, int],
    ) -> None:
        """`ports` are by the names they have in the Service; `address` is the Pod's."""
        self._api, self._namespace, self._service = api, namespace, service
        self._address, self._ports = address, ports
        self._is_absence_told = False

    async def publish(self) -> None:
        """Make the Service lead here.

        Without the Service there is nobody to lead: that is logged.

        Raises:
            Unavailable: the API server is, or we may not.
        """
        try:
            service = await self._api.get(core_path("services", namespace=self._namespace, name=self._service))
        except NotFound:
            if not self._is_absence_told:
                self._is_absence_told = True
                _log.warning("there is no Service by which supervisors could find the leader", name=self._service)
            return
        self._is_absence_told = False
        body = self._body(service)
        name = body["metadata"]["name"]
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices/{name}"
        await self._api.apply(path, body)

    def _body(self, service: ParsedJson) -> Body:
        owner = service["metadata"]
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{self._service}-leader",
                "namespace": self._namespace,
                "labels": {
                    "kubernetes.io/service-name": self._service,
                    "endpointslice.kubernetes.io/managed-by": "supervisor-middleware",
                },
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Service", "name": owner["name"], "uid": owner["uid"]}
                ],
            },
            "addressType": f"IPv{self._address.version}",
            "endpoints": [{"addresses": [str(self._address)], "conditions": {"ready": True}}],
            "ports": [{"name": n, "port": p, "protocol": "TCP"} for n, p in sorted(self._ports.items())],
        }
