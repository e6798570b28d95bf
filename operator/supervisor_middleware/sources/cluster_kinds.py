"""Which kinds are watched and where the API server keeps them. PURE: a table, and the paths made of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.model.sandbox import GROUP, SANDBOX_LABEL, VERSION
from supervisor_middleware.model.snapshot import Kind

CONFIG_MAPS: Final = "configmaps"
SECRETS: Final = "secrets"
TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKind:
    """One kind as the API server knows it; `selector` is a label that its objects must carry."""

    kind: Kind
    group: str
    version: str
    plural: str
    selector: str = ""

    @property
    def collection(self) -> str:
        """Path of all of them, in every namespace."""
        return f"{self._root}/{self.plural}"

    def within(self, namespace: str) -> str:
        """Path of those in one namespace."""
        return f"{self._root}/namespaces/{namespace}/{self.plural}"

    @property
    def definition(self) -> str | None:
        """Path of the CustomResourceDefinition; built-in kinds have none."""
        if not self.group:
            return None
        return f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{self.plural}.{self.group}"

    def path(self, name: str, *, namespace: str | None = None) -> str:
        """Path of one object."""
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{self._root}{within}/{self.plural}/{name}"

    @property
    def _root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


def core_path(plural: str, *, namespace: str, name: str = "") -> str:
    """Path of an object of the core group, or of its collection in a namespace."""
    return f"/api/v1/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def _ours(kind: Kind, plural: str) -> WatchedKind:
    return WatchedKind(kind=kind, group=GROUP, version=VERSION, plural=plural)


_PODS: Final = WatchedKind(kind=Kind.SANDBOX, group="", version="v1", plural="pods", selector=SANDBOX_LABEL)

WATCHED: Final[Mapping[Kind, WatchedKind]] = {
    Kind.SUPERVISOR_MIDDLEWARE: _ours(Kind.SUPERVISOR_MIDDLEWARE, "supervisormiddlewares"),
    Kind.SANDBOX_POLICY: _ours(Kind.SANDBOX_POLICY, "sandboxpolicies"),
    Kind.POLICY_REVISION: _ours(Kind.POLICY_REVISION, "policyrevisions"),
    Kind.CLUSTER_SANDBOX_POLICY: _ours(Kind.CLUSTER_SANDBOX_POLICY, "clustersandboxpolicies"),
    # Before Pods: a baseline may select a sandbox's namespace.
    Kind.NAMESPACE: WatchedKind(kind=Kind.NAMESPACE, group="", version="v1", plural="namespaces"),
    Kind.SANDBOX: _PODS,
}
