"""What a token may see when the API server's answers are odd; the usual ones are tested on a real one in e2e."""

from typing import Any

import pytest

from supervisor_middleware.errors import Untrusted
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.sources.cluster_access import ClusterAccess

Body = dict[str, Any]

_USER: Body = {"username": "jane", "uid": "u-1", "groups": ["team-a"], "extra": {"scope": ["x"]}}
_KNOWN: Body = {"authenticated": True, "user": _USER}
_OURS: Body = _KNOWN | {"audiences": ["status"]}
_UNKNOWN: Body = {"authenticated": False}


class Answers:
    """An API server that answers reviews of tokens in turn, and then one of access."""

    def __init__(self, *tokens: Body, access: Body | None = None) -> None:
        self.tokens, self.access, self.asked = (
            list(tokens),
            {"allowed": True} if access is None else access,
            list[Body](),
        )

    async def create(self, path: str, body: ParsedJson) -> Body:
        self.asked.append(body["spec"])
        is_token = path.endswith("/tokenreviews")
        return {**body, "status": self.tokens.pop(0) if is_token else self.access}


async def viewer(answers: Answers, *, namespace: str = "team-a") -> str | None:
    return await ClusterAccess(answers, audience="status").viewer("a.b.c", namespace=namespace)


async def test_a_token_made_for_this_is_asked_about_once() -> None:
    answers = Answers(_OURS)
    assert await viewer(answers) == "jane"
    assert [sorted(spec) for spec in answers.asked] == [
        ["audiences", "token"],
        ["extra", "groups", "resourceAttributes", "uid", "user"],
    ]


async def test_the_api_servers_own_token_counts_too() -> None:
    answers = Answers(_UNKNOWN, _KNOWN | {"audiences": ["https://kubernetes.default.svc"]})
    assert await viewer(answers) == "jane"
    assert "audiences" not in answers.asked[1]


async def test_an_authenticator_without_audiences_is_asked_as_the_api_server_is() -> None:
    answers = Answers(_KNOWN, _KNOWN)
    assert await viewer(answers) == "jane"
    assert len(answers.asked) == 3


@pytest.mark.parametrize(
    "status", [{}, _UNKNOWN, _KNOWN | {"authenticated": "true"}, _KNOWN | {"user": {}}, _KNOWN | {"user": None}]
)
async def test_what_proves_nobody_is_untrusted(status: Body) -> None:
    answers = Answers(status, status)
    with pytest.raises(Untrusted):
        await viewer(answers)
    assert len(answers.asked) == 2


async def test_the_question_is_about_the_namespace_or_about_all() -> None:
    for namespace, within in (("team-a", {"namespace": "team-a"}), ("", {})):
        answers = Answers(_OURS)
        await viewer(answers, namespace=namespace)
        assert answers.asked[-1]["resourceAttributes"] == {
            "group": "middleware.openshell.io",
            "resource": "sandboxpolicies",
            "subresource": "supervisors",
            "verb": "list",
            **within,
        }
        assert answers.asked[-1]["extra"] == {"scope": ["x"]}


@pytest.mark.parametrize("access", [{}, {"allowed": False}, {"allowed": "true"}, {"allowed": True, "denied": True}])
async def test_only_a_plain_yes_is_one(access: Body) -> None:
    assert await viewer(Answers(_OURS, access=access)) is None
