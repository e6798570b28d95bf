"""Objects as `kubectl get -o json` shows them, without kubectl: whoever waits asks many times a second."""

import json
from typing import Any, Final

from e2e.controlplane.cluster import ControlPlane
from e2e.objects import API_VERSION

_COLLECTIONS: Final = {
    "smw": f"/apis/{API_VERSION}/supervisormiddlewares",
    "csbp": f"/apis/{API_VERSION}/clustersandboxpolicies",
    "prev": f"/apis/{API_VERSION}/policyrevisions",
    "sbp": f"/apis/{API_VERSION}/namespaces/{{}}/sandboxpolicies",
    "configmap": "/api/v1/namespaces/{}/configmaps",
    "pod": "/api/v1/namespaces/{}/pods",
    "secret": "/api/v1/namespaces/{}/secrets",
    "lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "endpointslice": "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
    "validatingwebhookconfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}


def collection(kind: str, *, namespace: str | None = None) -> str:
    """Where the API server has objects of a kind."""
    return _COLLECTIONS[kind].format(namespace or "default")


def there_is(plane: ControlPlane, kind: str, name: str, *, namespace: str | None = None) -> bool:
    """Whether the API server has it."""
    return plane.read(_path(kind, name, namespace)) is not None


def one(plane: ControlPlane, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
    """One object; what kubectl says about it if there is none."""
    found = plane.read(_path(kind, name, namespace)) or _by_kubectl(plane, kind, name, namespace)
    found["metadata"].pop("managedFields", None)
    return found


def everyone(plane: ControlPlane, kind: str, *, namespace: str | None = None) -> list[dict[str, Any]]:
    """All objects of a kind."""
    found = plane.read(_path(kind, "", namespace)) or _by_kubectl(plane, kind, "", namespace)
    items: list[dict[str, Any]] = found["items"]
    return items


def _path(kind: str, name: str, namespace: str | None) -> str:
    return f"{collection(kind, namespace=namespace)}/{name}".removesuffix("/")


def _by_kubectl(plane: ControlPlane, kind: str, name: str, namespace: str | None) -> dict[str, Any]:
    where = ("-n", namespace) if namespace else ()
    which = (name,) if name else ()
    found: dict[str, Any] = json.loads(plane.kubectl("get", kind, *which, *where, "-o", "json").stdout)
    return found
