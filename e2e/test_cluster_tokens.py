"""What a token proves: a live, labelled Pod and nothing more, whatever the token's bearer says."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.cluster_support import a_pod, apply, kubectl, operator_kubeconfig
from e2e.controlplane.cluster import ControlPlane
from supervisor_middleware.errors import Unavailable, Untrusted
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.settings import AUDIENCE
from supervisor_middleware.sources.cluster_api import connect
from supervisor_middleware.sources.cluster_tokens import PodTokenReviewer


@pytest.fixture
async def reviewer(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[PodTokenReviewer]:
    async with await connect(operator_kubeconfig(control_plane, namespace, tmp_path)) as api:
        yield PodTokenReviewer(api, audience=AUDIENCE)


async def token(plane: ControlPlane, namespace: str, pod: str | None, audience: str | None = AUDIENCE) -> str:
    return await asyncio.to_thread(plane.token_for, "default", namespace, bound_pod=pod, audience=audience)


async def test_a_token_proves_the_sandbox_of_its_pod_as_often_as_it_is_shown(
    control_plane: ControlPlane, namespace: str, reviewer: PodTokenReviewer
) -> None:
    (pod,) = await apply(control_plane, a_pod("agent-0", namespace=namespace, sandbox="agent"))
    shown = await token(control_plane, namespace, "agent-0")
    expected = SandboxIdentity(namespace=namespace, sandbox="agent", pod_uid=pod["metadata"]["uid"])
    assert await reviewer.review(shown) == expected
    assert await reviewer.review(shown) == expected


@pytest.mark.parametrize(
    ("pod", "audience", "reason"),
    [
        ("agent-0", "somebody-else", "another audience"),
        ("agent-0", None, "another audience"),
        ("plain", AUDIENCE, "lacks a valid sandbox label"),
        ("misnamed", AUDIENCE, "lacks a valid sandbox label"),
        (None, AUDIENCE, "not bound to a Pod"),
    ],
)
async def test_a_token_that_proves_no_sandbox_is_refused(
    control_plane: ControlPlane,
    namespace: str,
    reviewer: PodTokenReviewer,
    pod: str | None,
    audience: str | None,
    reason: str,
) -> None:
    await apply(
        control_plane,
        a_pod("agent-0", namespace=namespace, sandbox="agent"),
        a_pod("plain", namespace=namespace),
        a_pod("misnamed", namespace=namespace, sandbox="Not_A_Name"),
    )
    shown = await token(control_plane, namespace, pod, audience)
    with pytest.raises(Untrusted, match=reason) as refusal:
        await reviewer.review(shown)
    assert shown not in str(refusal.value)


async def test_a_token_outlives_its_pod_for_nobody(
    control_plane: ControlPlane, namespace: str, reviewer: PodTokenReviewer
) -> None:
    pod = a_pod("agent-0", namespace=namespace, sandbox="agent")
    await apply(control_plane, pod)
    shown = await token(control_plane, namespace, "agent-0")
    assert await reviewer.review(shown)
    await kubectl(control_plane, "delete", "pod", "agent-0", f"--namespace={namespace}", "--force")
    with pytest.raises(Untrusted):
        await reviewer.review(shown)
    # Another Pod of the same name is another supervisor.
    await apply(control_plane, pod)
    with pytest.raises(Untrusted):
        await reviewer.review(shown)


async def test_a_pod_that_ended_is_no_sandbox(
    control_plane: ControlPlane, namespace: str, reviewer: PodTokenReviewer
) -> None:
    await apply(control_plane, a_pod("agent-0", namespace=namespace, sandbox="agent"))
    shown = await token(control_plane, namespace, "agent-0")
    patch = json.dumps({"status": {"phase": "Failed"}})
    arguments = ("pod", "agent-0", f"--namespace={namespace}", "--subresource=status", f"--patch={patch}")
    await kubectl(control_plane, "patch", *arguments)
    with pytest.raises(Untrusted, match="no live sandbox"):
        await reviewer.review(shown)


@pytest.mark.parametrize("text", ["", "nonsense", "a.b.c", "ü" * 10, "x" * 20_000])
async def test_what_is_no_token_is_refused(reviewer: PodTokenReviewer, text: str) -> None:
    with pytest.raises(Untrusted):
        await reviewer.review(text)


async def test_an_outage_is_no_refusal(fresh_control_plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = fresh_control_plane.kubeconfig
    async with await connect(kubeconfig) as api:
        await asyncio.to_thread(fresh_control_plane.stop_apiserver)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await PodTokenReviewer(api, audience=AUDIENCE).review("a.b.c")
