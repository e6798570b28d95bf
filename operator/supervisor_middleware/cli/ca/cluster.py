"""The root of identities of a cluster's operator, through the user's kubeconfig."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor_middleware.pki.rotation_requests import Request
from supervisor_middleware.sources.cluster_api import ClusterApi
from supervisor_middleware.sources.cluster_rotation import request_rotation, rotation_status


@dataclass(frozen=True, slots=True)
class Cluster:
    """`places.Place` of the operator in `namespace`."""

    api: ClusterApi
    namespace: str

    async def status(self) -> Mapping[str, Any]:
        """Where the rotation stands."""
        return await rotation_status(self.api, namespace=self.namespace)

    async def ask(self, request: Request) -> None:
        """Leave a request."""
        await request_rotation(self.api, request, namespace=self.namespace)
