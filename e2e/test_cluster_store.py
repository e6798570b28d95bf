"""Decisions kept in a cluster: conflicts are retryable, epochs fence, revisions never change, writes are seen at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster_support import a_pod, a_policy, apply, kubectl, operator_kubeconfig
from e2e.controlplane.cluster import ControlPlane
from supervisor_middleware.errors import Bug, Unavailable
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.cluster import ClusterSource
from supervisor_middleware.sources.cluster_api import connect
from supervisor_middleware.sources.cluster_bodies import TRUST_BUNDLE
from supervisor_middleware.sources.cluster_store import ClusterStore, Fenced
from supervisor_middleware.telemetry import ControlMetrics
from tests.builders import a_revision, an_entry

_BUNDLE = b"-----BEGIN CERTIFICATE-----\n"


@dataclass(slots=True, kw_only=True)
class Edge:
    """A source that is synchronized by hand, and the store beside it."""

    source: ClusterSource
    store: ClusterStore
    namespace: str
    plane: ControlPlane

    async def policy(self, name: str = "redaction") -> Stored:
        (found,) = (p for p in (await self.snapshot()).policies if p.subject == self.subject(name))
        return found

    async def snapshot(self) -> Snapshot:
        return await self.source.snapshot()

    def subject(self, name: str = "redaction") -> Subject:
        return Subject(kind="SandboxPolicy", namespace=self.namespace, name=name)

    async def stored(self) -> dict[str, Any]:
        text = await kubectl(
            self.plane, "get", "sandboxpolicy", "redaction", f"--namespace={self.namespace}", "--output=json"
        )
        body: dict[str, Any] = json.loads(text)
        return body


@pytest.fixture
async def edge(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[Edge]:
    kubeconfig = operator_kubeconfig(control_plane, namespace, tmp_path)
    await apply(control_plane, a_policy("redaction", namespace=namespace))
    async with await connect(kubeconfig) as api:
        source = ClusterSource(api, metrics=ControlMetrics())
        await source.synchronize()
        store = ClusterStore(
            api, source=source, namespace=namespace, instance="operator-0", now=lambda: datetime.now(UTC)
        )
        yield Edge(source=source, store=store, namespace=namespace, plane=control_plane)


def accepted(epoch: int) -> dict[str, Any]:
    return {"accepted": {"revision": 1, "epoch": epoch, "generation": 1, "digest": "sha256:" + 64 * "0"}}


def stored_revision(policy: Stored, *, number: int = 1, order: int = 0) -> StoredRevision:
    made = replace(
        a_revision(an_entry(order=order)), policy=policy.subject, uid=policy.uid, created_at=policy.created_at
    )
    return StoredRevision(number=number, epoch=7, digest=made.digest, revision=made)


async def test_a_status_is_written_and_known_at_once_so_that_it_can_be_written_again(edge: Edge) -> None:
    for stages in (1, 2, 3):
        await edge.store.write_status(await edge.policy(), {"stages": stages})
    assert (await edge.policy()).status["stages"] == 3
    body = await edge.stored()
    assert body["status"]["stages"] == 3
    assert body["metadata"]["generation"] == 1
    assert body["spec"] == a_policy("", namespace="")["spec"] | {
        "networkMiddlewares": body["spec"]["networkMiddlewares"]
    }


async def test_a_status_of_an_object_that_changed_since_is_refused_as_retryable(edge: Edge) -> None:
    before = await edge.policy()
    await kubectl(
        edge.plane, "annotate", "sandboxpolicy", "redaction", f"--namespace={edge.namespace}", "touched=yes"
    )
    with pytest.raises(Unavailable, match="409 Conflict"):
        await edge.store.write_status(before, {"stages": 1})
    assert not (await edge.stored()).get("status", {}).get("stages")
    # Read again at once: the next attempt needs neither a watch nor a list.
    await edge.store.write_status(await edge.policy(), {"stages": 2})
    assert (await edge.stored())["status"]["stages"] == 2


async def test_a_status_of_an_object_that_is_gone_or_was_made_anew_is_refused_as_retryable(edge: Edge) -> None:
    before = await edge.policy()
    await kubectl(edge.plane, "delete", "sandboxpolicy", "redaction", f"--namespace={edge.namespace}")
    with pytest.raises(Unavailable, match="404"):
        await edge.store.write_status(before, {"stages": 1})
    await apply(edge.plane, a_policy("redaction", namespace=edge.namespace))
    with pytest.raises(Unavailable, match="409 Conflict"):
        await edge.store.write_status(before, {"stages": 1})


async def test_an_operator_of_an_older_epoch_is_fenced_off_by_the_api_server(edge: Edge) -> None:
    await edge.store.write_status(await edge.policy(), accepted(7))
    await edge.store.write_status(await edge.policy(), accepted(8))
    with pytest.raises(Fenced, match="newer epoch"):
        await edge.store.write_status(await edge.policy(), accepted(7))
    assert (await edge.stored())["status"]["accepted"]["epoch"] == 8
    assert (await edge.snapshot()).highest_epoch >= 8


async def test_a_status_that_does_not_fit_the_schema_is_our_bug(edge: Edge) -> None:
    with pytest.raises(Bug, match="422 Invalid"):
        await edge.store.write_status(await edge.policy(), {"stages": -1})


async def test_a_revision_is_created_once_and_read_back_as_it_was(edge: Edge) -> None:
    made = stored_revision(await edge.policy())
    try:
        await edge.store.save_revision(made)
        await edge.store.save_revision(made)
        assert made in (await edge.snapshot()).revisions
        await edge.source.synchronize()
        assert made in (await edge.snapshot()).revisions
        assert (await edge.snapshot()).highest_epoch >= 7
        with pytest.raises(Unavailable, match="says something else"):
            await edge.store.save_revision(stored_revision(await edge.policy(), order=5))
        patch = json.dumps({"spec": {"epoch": 99}})
        refused = await asyncio.to_thread(
            edge.plane.kubectl, "patch", "policyrevision", made.name, "--type=merge", f"--patch={patch}", check=False
        )
        assert "a PolicyRevision is never changed" in refused.stderr
    finally:
        await edge.store.delete_revision(made.name)
        await edge.store.delete_revision(made.name)
    await edge.source.synchronize()
    assert made not in (await edge.snapshot()).revisions


async def test_a_corrupt_revision_is_skipped_and_counted(edge: Edge) -> None:
    made = stored_revision(await edge.policy())
    await edge.store.save_revision(made)
    text = await kubectl(edge.plane, "get", "policyrevision", made.name, "--output=json")
    spec = json.loads(text)["spec"]
    forged = {
        "apiVersion": "middleware.openshell.io/v1alpha1",
        "kind": "PolicyRevision",
        "metadata": {"name": f"{edge.namespace}-9"},
        "spec": spec | {"content": "bm90IHpsaWI="},
    }
    try:
        await apply(edge.plane, forged)
        await edge.source.synchronize()
        snapshot = await edge.snapshot()
        assert made in snapshot.revisions
        assert not any(r.name == f"{edge.namespace}-9" for r in snapshot.revisions)
        assert edge.source._metrics.corrupt_revisions._value.get() == 1
    finally:
        await kubectl(edge.plane, "delete", "policyrevision", made.name, f"{edge.namespace}-9")


async def test_the_trust_bundle_is_in_every_namespace_with_sandboxes_and_written_only_when_it_changes(
    edge: Edge,
) -> None:
    other = await asyncio.to_thread(edge.plane.create_namespace, "sandboxes")
    await apply(edge.plane, a_pod("agent-0", namespace=other, sandbox="agent"))

    async def published(namespace: str) -> dict[str, Any]:
        text = await kubectl(
            edge.plane, "get", "configmap", TRUST_BUNDLE, f"--namespace={namespace}", "--output=json"
        )
        body: dict[str, Any] = json.loads(text)
        return body

    await edge.store.publish_bundle(_BUNDLE, namespaces=frozenset({other, "no-such-namespace"}))
    before = [await published(ns) for ns in (edge.namespace, other)]
    assert {b["data"]["ca.crt"] for b in before} == {_BUNDLE.decode()}
    await edge.store.publish_bundle(_BUNDLE, namespaces=frozenset({other}))
    edge.store._published.clear()
    await edge.store.publish_bundle(_BUNDLE, namespaces=frozenset({other}))
    after = [await published(ns) for ns in (edge.namespace, other)]
    assert [b["metadata"]["resourceVersion"] for b in after] == [b["metadata"]["resourceVersion"] for b in before]
    await edge.store.publish_bundle(_BUNDLE * 2, namespaces=frozenset({other}))
    assert (await published(other))["data"]["ca.crt"] == (_BUNDLE * 2).decode()
    await kubectl(edge.plane, "delete", "namespace", other, "--wait=false")


async def test_an_event_is_shown_with_its_object_and_not_repeated(edge: Edge) -> None:
    policy = await edge.policy()
    long = "é" * 2000
    for message in ("one", "one", long, "one"):
        await edge.store.notify(policy.subject, uid=policy.uid, reason="Invalid", message=message, weight="Warning")
    text = await kubectl(
        edge.plane, "get", "events.v1.events.k8s.io", f"--namespace={edge.namespace}", "--output=json"
    )
    events = [e for e in json.loads(text)["items"] if e["regarding"]["uid"] == policy.uid]
    assert len(events) == 3
    assert {e["type"] for e in events} == {"Warning"}
    described = await kubectl(edge.plane, "describe", "sandboxpolicy", "redaction", f"--namespace={edge.namespace}")
    assert "Invalid" in described
