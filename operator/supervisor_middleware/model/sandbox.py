"""A sandbox as policies select it. PURE.

In a cluster a Pod that carries the label `middleware.openshell.io/sandbox` (its value is the sandbox's name);
standalone a `kind: Sandbox` document.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

GROUP: Final = "middleware.openshell.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
SANDBOX_LABEL: Final = f"{GROUP}/sandbox"
NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""Every namespace carries it, with its own name as the value."""
SELF_TEST_NAME: Final = "supervisor-middleware-selftest"
"""Of the policy that every replica has refused once a minute: a dry run, never stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """`uid` is the Pod's UID (a new Pod of the same name is another supervisor), empty without a cluster.

    So is `pod`, the Pod's name.
    """

    namespace: str
    name: str
    uid: str = ""
    pod: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What its supervisor is known by: the Pod's UID, standalone the sandbox's name."""
        return self.uid or f"{self.namespace}/{self.name}"
