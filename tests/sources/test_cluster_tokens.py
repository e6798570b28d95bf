"""What a token proves when the API server's answers are odd; the usual ones are tested on a real one in e2e."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from supervisor_middleware.errors import Untrusted
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.model.sandbox import SANDBOX_LABEL
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.settings import AUDIENCE
from supervisor_middleware.sources.cluster_tokens import PodTokenReviewer

Body = dict[str, Any]

_EXTRA = {"authentication.kubernetes.io/pod-name": ["agent-0"], "authentication.kubernetes.io/pod-uid": ["u-1"]}
_USER: Body = {"username": "system:serviceaccount:team-a:agents", "extra": _EXTRA}
_STATUS: Body = {"authenticated": True, "audiences": ["supervisor-middleware"], "user": _USER}
_METADATA: Body = {"name": "agent-0", "namespace": "team-a", "uid": "u-1", "labels": {SANDBOX_LABEL: "agent"}}
_POD: Body = {"metadata": _METADATA, "spec": {"serviceAccountName": "agents"}, "status": {"phase": "Running"}}
_OTHER: Body = _POD | {"metadata": _METADATA | {"name": "agent-1", "uid": "u-2"}}


class Answers:
    """An API server that answers one review and one Pod."""

    def __init__(self, *, status: Body = _STATUS, pod: Body = _POD) -> None:
        self.status, self.pod, self.paths = status, pod, list[str]()

    async def create(self, path: str, body: ParsedJson) -> Body:
        self.paths.append(path)
        return {**body, "status": self.status}

    async def get(self, path: str) -> Body:
        self.paths.append(path)
        return self.pod

    async def pages(self, path: str, *, selector: str = "") -> AsyncIterator[Body]:
        self.paths.append(f"{path}?{selector}")
        yield {}
        yield {"items": [_OTHER, self.pod]}


async def review(answers: Answers) -> SandboxIdentity:
    return await PodTokenReviewer(answers, audience=AUDIENCE).review("a.b.c")


async def test_the_pod_is_read_live() -> None:
    answers = Answers()
    assert await review(answers) == SandboxIdentity(namespace="team-a", sandbox="agent", pod_uid="u-1")
    assert answers.paths[-1] == "/api/v1/namespaces/team-a/pods/agent-0"


@pytest.mark.parametrize(
    "status",
    [
        {},
        _STATUS | {"authenticated": "true"},
        _STATUS | {"audiences": []},
        _STATUS | {"audiences": None},
        _STATUS | {"user": None},
        _STATUS | {"user": _USER | {"username": "jane"}},
        _STATUS | {"user": _USER | {"username": "system:serviceaccount:team-a/../x:agents"}},
        _STATUS | {"user": _USER | {"extra": None}},
        _STATUS | {"user": _USER | {"extra": _EXTRA | {"authentication.kubernetes.io/pod-uid": ["a", "b"]}}},
        _STATUS | {"user": _USER | {"extra": _EXTRA | {"authentication.kubernetes.io/pod-name": ["../../x"]}}},
    ],
)
async def test_an_answer_that_leaves_a_doubt_is_refused_before_any_pod_is_read(status: Body) -> None:
    answers = Answers(status=status)
    with pytest.raises(Untrusted):
        await review(answers)
    assert len(answers.paths) == 1


@pytest.mark.parametrize(
    "pod",
    [
        _POD | {"metadata": _METADATA | {"uid": "u-2"}},
        _POD | {"metadata": _METADATA | {"namespace": "team-b"}},
        _POD | {"metadata": _METADATA | {"labels": None}},
        _POD | {"metadata": _METADATA | {"deletionTimestamp": "2026-03-01T12:00:00Z"}},
        _POD | {"spec": {"serviceAccountName": "others"}},
        _POD | {"spec": {}},
        _POD | {"status": {"phase": "Succeeded"}},
        {},
    ],
)
async def test_another_pod_than_the_tokens_is_refused(pod: Body) -> None:
    with pytest.raises(Untrusted):
        await review(Answers(pod=pod))


AGENT = SandboxIdentity(namespace="team-a", sandbox="agent", pod_uid="u-1")


async def test_a_pod_that_is_live_is_vouched_for_by_what_its_certificate_names() -> None:
    answers = Answers()
    await PodTokenReviewer(answers, audience=AUDIENCE).vouch(AGENT)
    assert answers.paths == [f"/api/v1/namespaces/team-a/pods?{SANDBOX_LABEL}=agent"]


@pytest.mark.parametrize(
    "pod",
    [
        _POD | {"metadata": _METADATA | {"uid": "u-3"}},
        _POD | {"metadata": _METADATA | {"deletionTimestamp": "2026-03-01T12:00:00Z"}},
        _POD | {"metadata": _METADATA | {"labels": {SANDBOX_LABEL: "another"}}},
        _POD | {"metadata": _METADATA | {"labels": {}}},
        _POD | {"status": {"phase": "Succeeded"}},
        _POD | {"status": {"phase": "Failed"}},
    ],
)
async def test_a_pod_that_is_no_live_sandbox_of_that_name_and_uid_is_not(pod: Body) -> None:
    with pytest.raises(Untrusted, match="no live Pod of sandbox team-a/agent has UID u-1"):
        await PodTokenReviewer(Answers(pod=pod), audience=AUDIENCE).vouch(AGENT)
