"""What the bearer of a token may see of supervisors. Structurally distribution's `Access`.

The API server vouches for the token and decides by its own roles, so reading how supervisors stand is granted as
everything else is. Two kinds of tokens count: those made for this (`kubectl create token --audience`), and those
that the API server itself takes, as people have them in their kubeconfigs. What a Pod enrols with is neither.
"""

from typing import Final, Protocol

from supervisor_middleware.errors import Untrusted
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.model.sandbox import GROUP
from supervisor_middleware.sources.cluster_kinds import ACCESS_REVIEWS, TOKEN_REVIEWS

_RESOURCE: Final = "sandboxpolicies"
_SUBRESOURCE: Final = "supervisors"


class Api(Protocol):
    """Who is asked; a `ClusterApi`."""

    async def create(self, path: str, body: ParsedJson) -> ParsedJson:
        """Have a review answered."""


class ClusterAccess:
    """TokenReview, then SubjectAccessReview."""

    def __init__(self, api: Api, *, audience: str) -> None:
        """`audience` is what tokens made for this were requested for."""
        self._api, self._audience = api, audience

    async def viewer(self, token: str, *, namespace: str) -> str | None:
        """The bearer's name, if it may list the supervisors of `namespace`, or of all if it is empty; None if not.

        Raises:
            Untrusted: the API server does not know the token, or it is meant for somebody else.
            Unavailable: the API server is.
        """
        user = await self._user(token, audiences=[self._audience]) or await self._user(token, audiences=[])
        if user is None:
            raise Untrusted("the API server does not know the token, or it expired, or is for another audience")
        return str(user["username"]) if await self._may_list(user, namespace=namespace) else None

    async def _user(self, token: str, *, audiences: list[str]) -> ParsedJson | None:
        """Whose token it is; none are the API server's own audiences."""
        answer = await self._api.create(
            TOKEN_REVIEWS,
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": {"token": token, **({"audiences": audiences} if audiences else {})},
            },
        )
        status = answer.get("status") or {}
        user = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return None
        if audiences and not set(audiences) & set(status.get("audiences") or ()):
            # An authenticator that knows no audiences answers without any: then the second question counts.
            return None
        return user

    async def _may_list(self, user: ParsedJson, *, namespace: str) -> bool:
        attributes = {
            "group": GROUP,
            "resource": _RESOURCE,
            "subresource": _SUBRESOURCE,
            "verb": "list",
            **({"namespace": namespace} if namespace else {}),
        }
        answer = await self._api.create(
            ACCESS_REVIEWS,
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": user["username"],
                    **{key: user[key] for key in ("uid", "groups", "extra") if user.get(key)},
                    "resourceAttributes": attributes,
                },
            },
        )
        status = answer.get("status") or {}
        return status.get("allowed") is True and status.get("denied") is not True
