"""What a Pod's ServiceAccount token proves, and whether a Pod still lives. Structurally what distribution asks.

The API server vouches for the token, the audience says it was meant for us, and the Pod it is bound to is read live,
never from a cache: tokens and certificates outlive their Pod. The sandbox's name comes from the Pod's label alone.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.model.sandbox import SANDBOX_LABEL
from supervisor_middleware.pki.spiffe import SandboxIdentity, is_label, is_subdomain
from supervisor_middleware.sources.cluster_api import NotFound
from supervisor_middleware.sources.cluster_kinds import TOKEN_REVIEWS, core_path
from supervisor_middleware.sources.cluster_objects import sandbox_from

_EXTRA: Final = "authentication.kubernetes.io/"
_USER: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_MAX_TOKEN: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bearer:
    """Whose token it is, as the API server says."""

    namespace: str
    account: str
    pod_name: str
    pod_uid: str


class Api(Protocol):
    """Who is asked; a `ClusterApi`."""

    async def create(self, path: str, body: ParsedJson) -> ParsedJson:
        """Have a TokenReview answered."""

    async def get(self, path: str) -> ParsedJson:
        """Read a Pod."""

    def pages(self, path: str, *, selector: str = "") -> AsyncIterator[ParsedJson]:
        """Read Pods that carry a label."""


class PodTokenReviewer:
    """Turns a pod-bound token into the sandbox of that Pod."""

    def __init__(self, api: Api, *, audience: str) -> None:
        """`audience` is what tokens must have been requested for."""
        self._api, self._audience = api, audience

    async def review(self, token: str, *, holder: Callable[[], str] = lambda: "") -> SandboxIdentity:
        """The sandbox whose live Pod the token is bound to, whoever holds it: a Pod may use its token again.

        Raises:
            Untrusted: it proves none; the reason is for our log, and holds nothing of the token.
            Unavailable: the API server is.
        """
        del holder
        if not token or len(token) > _MAX_TOKEN or not token.isascii():
            raise Untrusted("this is no ServiceAccount token")
        answer = await self._api.create(
            TOKEN_REVIEWS,
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": {"token": token, "audiences": [self._audience]},
            },
        )
        bearer = _bearer(answer.get("status") or {}, audience=self._audience)
        return _identity(await self._pod(bearer), bearer=bearer)

    async def vouch(self, identity: SandboxIdentity) -> None:
        """Return if the Pod that a certificate names is still there, live, and the same sandbox.

        Raises:
            Untrusted: it is not.
            Unavailable: the API server is.
        """
        # A certificate names the Pod by its UID, by which no API server looks one up; by its label it does.
        path = core_path("pods", namespace=identity.namespace)
        async for page in self._api.pages(path, selector=f"{SANDBOX_LABEL}={identity.sandbox}"):
            for pod in page.get("items") or ():
                sandbox = sandbox_from(pod)
                if sandbox is not None and sandbox.uid == identity.pod_uid and sandbox.name == identity.sandbox:
                    return
        raise Untrusted(f"no live Pod of sandbox {identity.namespace}/{identity.sandbox} has UID {identity.pod_uid}")

    async def _pod(self, bearer: _Bearer) -> ParsedJson:
        try:
            return await self._api.get(core_path("pods", namespace=bearer.namespace, name=bearer.pod_name))
        except NotFound:
            raise Untrusted(f"Pod {bearer.namespace}/{bearer.pod_name} is gone") from None


def _bearer(status: Mapping[str, Any], *, audience: str) -> _Bearer:
    if status.get("authenticated") is not True:
        raise Untrusted("the API server does not know the token, or it expired, or is for another audience")
    if audience not in (status.get("audiences") or ()):
        # An authenticator that knows no audiences answers without any: the token was then meant for anybody.
        raise Untrusted(f"the token is not for the audience {audience}")
    user = status.get("user") or {}
    account = _USER.fullmatch(str(user.get("username")))
    pod_name, pod_uid = _extra(user, "pod-name"), _extra(user, "pod-uid")
    if account is None or not is_label(account[1]):
        raise Untrusted("the token is not a ServiceAccount's")
    if not pod_uid or not is_subdomain(pod_name):
        raise Untrusted(f"the token of {account[1]}/{account[2]} is not bound to a Pod")
    return _Bearer(namespace=account[1], account=account[2], pod_name=pod_name, pod_uid=pod_uid)


def _extra(user: Mapping[str, Any], name: str) -> str:
    match (user.get("extra") or {}).get(_EXTRA + name):
        case [str() as value]:
            return value
        case _:
            return ""


def _identity(pod: ParsedJson, *, bearer: _Bearer) -> SandboxIdentity:
    where = f"Pod {bearer.namespace}/{bearer.pod_name}"
    metadata = pod.get("metadata") or {}
    if metadata.get("uid") != bearer.pod_uid:
        raise Untrusted(f"{where} is another one than the token's")
    if metadata.get("namespace") != bearer.namespace:
        raise Untrusted(f"{where} is of another namespace than the token's")
    if ((pod.get("spec") or {}).get("serviceAccountName") or "default") != bearer.account:
        raise Untrusted(f"{where} has another ServiceAccount than the token's")
    sandbox = sandbox_from(pod)
    if sandbox is None:
        raise Untrusted(f"{where} is no live sandbox: it ended, is being deleted, or lacks a valid sandbox label")
    try:
        return SandboxIdentity(namespace=sandbox.namespace, sandbox=sandbox.name, pod_uid=sandbox.uid)
    except InvalidInput as error:
        raise Untrusted(f"{where}: {error}") from error
