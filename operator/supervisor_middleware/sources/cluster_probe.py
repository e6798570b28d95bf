"""Whether the API server asks our webhook: a policy that only it would refuse, created as a dry run."""

import secrets
from typing import Final

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.sandbox import API_VERSION, SELF_TEST_NAME
from supervisor_middleware.model.snapshot import Kind
from supervisor_middleware.sources.cluster_api import ClusterApi, Forbidden, Refused
from supervisor_middleware.sources.cluster_kinds import WATCHED

_NO_BUILTIN: Final = "openshell/selftest"


class WebhookProbe:
    """One look a call; nothing is ever stored."""

    def __init__(self, api: ClusterApi, *, namespace: str) -> None:
        """`namespace` is the operator's own."""
        self._api = api
        self._namespace = namespace
        self._collection = WATCHED[Kind.SANDBOX_POLICY].path("", namespace=namespace).rstrip("/")

    async def problem(self) -> str | None:
        """Why it cannot be said that our webhook is asked; None if it was."""
        # Only somebody who judged this very object names this path.
        key = f"selftest-{secrets.token_hex(4)}"
        try:
            await self._api.rehearse(self._collection, self._policy(key))
        except Refused as error:
            if error.fields == {f"spec.networkMiddlewares.{key}.middleware"}:
                return None
            return f"somebody else refused the policy: {error}"
        except Forbidden as error:
            return f"{error}: grant the operator `create` on sandboxpolicies in its own namespace"
        except Unavailable as error:
            return str(error)
        return "the API server admitted an invalid policy without asking"

    def _policy(self, key: str) -> dict[str, object]:
        entry = {"middleware": _NO_BUILTIN, "endpoints": {"include": ["selftest.invalid"]}}
        return {
            "apiVersion": API_VERSION,
            "kind": Kind.SANDBOX_POLICY.value,
            "metadata": {"name": SELF_TEST_NAME, "namespace": self._namespace},
            "spec": {"sandboxSelector": {}, "networkMiddlewares": {key: entry}},
        }
