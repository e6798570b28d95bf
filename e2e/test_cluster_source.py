"""The cluster as a source: what is created is seen, what is lost is found out, what cannot be read is unknown."""

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path

import pytest

from e2e.cluster_support import (
    a_pod,
    a_policy,
    a_registration,
    apply,
    kubectl,
    operator_kubeconfig,
    running,
)
from e2e.controlplane.cluster import ControlPlane
from supervisor_middleware.handlers import watch
from supervisor_middleware.model.snapshot import BundleKey, Kind, Snapshot
from supervisor_middleware.sources.cluster import ClusterSource
from supervisor_middleware.sources.cluster_api import connect
from supervisor_middleware.telemetry import ControlMetrics

_CRD = "sandboxpolicies.middleware.openshell.io"
_ALL = frozenset(kind.value for kind in Kind)


@pytest.fixture
def kubeconfig(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Path:
    return operator_kubeconfig(control_plane, namespace, tmp_path)


def heard_of(metrics: ControlMetrics) -> dict[str, float]:
    """When each kind was last heard of, in seconds."""
    samples = (s for m in metrics.watch_last_event.collect() for s in m.samples)
    return {s.labels["kind"]: s.value for s in samples}


def told_unknown(metrics: ControlMetrics) -> set[str]:
    """The kinds that the metric for an alert calls unknown."""
    samples = (s for m in metrics.kind_unknown.collect() for s in m.samples)
    return {s.labels["kind"] for s in samples if s.value}


def names(snapshot: Snapshot, namespace: str) -> set[str]:
    return {p.subject.name for p in snapshot.policies if p.subject.namespace == namespace}


async def test_what_is_created_is_in_a_snapshot_within_a_second_and_gone_after_its_deletion(
    control_plane: ControlPlane, namespace: str, kubeconfig: Path
) -> None:
    async with running(kubeconfig) as cluster:
        await cluster.until(lambda s: not s.unknown)
        pod = a_pod("agent-0", namespace=namespace, sandbox="agent")
        objects = (a_policy("redaction", namespace=namespace), a_registration(namespace), pod)
        started = len(cluster.changes)
        await apply(control_plane, *objects, a_pod("other", namespace=namespace))
        snapshot = await cluster.until(
            lambda s: "redaction" in names(s, namespace) and any(x.namespace == namespace for x in s.sandboxes),
            seconds=1.0,
        )
        (sandbox,) = (s for s in snapshot.sandboxes if s.namespace == namespace)
        assert sandbox.name == "agent"
        assert any(r.subject.name == namespace for r in snapshot.registrations)
        assert len(cluster.changes) > started

        await kubectl(control_plane, "delete", "pod", "agent-0", f"--namespace={namespace}", "--force")
        await kubectl(control_plane, "delete", "sandboxpolicy", "redaction", f"--namespace={namespace}")
        await kubectl(control_plane, "delete", "supervisormiddleware", namespace)
        await cluster.until(
            lambda s: (
                not names(s, namespace)
                and not any(x.namespace == namespace for x in s.sandboxes)
                and not any(r.subject.name == namespace for r in s.registrations)
            ),
            seconds=1.0,
        )


async def test_a_namespaces_labels_are_news_and_nothing_else_of_it(
    control_plane: ControlPlane, namespace: str, kubeconfig: Path
) -> None:
    async with running(kubeconfig) as cluster:
        before = await cluster.until(lambda s: not s.unknown and namespace in s.namespaces)
        await kubectl(control_plane, "annotate", "namespace", namespace, "note=seen")
        await kubectl(control_plane, "label", "namespace", namespace, "tier=prod")
        after = await cluster.until(lambda s: s.namespaces[namespace].get("tier") == "prod", seconds=1.0)
        assert after.namespaces["default"] is before.namespaces["default"]
        await kubectl(control_plane, "annotate", "namespace", namespace, "note=again", "--overwrite")
        await apply(control_plane, a_policy("later", namespace=namespace))
        later = await cluster.until(lambda s: "later" in names(s, namespace))
        assert later.namespaces[namespace] is after.namespaces[namespace]


async def test_nothing_is_put_on_the_objects(control_plane: ControlPlane, namespace: str, kubeconfig: Path) -> None:
    async with running(kubeconfig) as cluster:
        policy = a_policy("untouched", namespace=namespace)
        (before,) = await apply(control_plane, policy)
        await apply(control_plane, a_pod("agent-0", namespace=namespace, sandbox="agent"))
        await cluster.until(lambda s: "untouched" in names(s, namespace))
        await asyncio.sleep(1.0)
        after = json.loads(
            await kubectl(
                control_plane, "get", "sandboxpolicy", "untouched", f"--namespace={namespace}", "--output=json"
            )
        )
        pod = json.loads(
            await kubectl(control_plane, "get", "pod", "agent-0", f"--namespace={namespace}", "--output=json")
        )
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    for body in (after, pod):
        assert "finalizers" not in body["metadata"]
        assert "annotations" not in body["metadata"]


async def test_what_is_deleted_while_no_watch_is_open_is_dropped_by_the_next_list(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = fresh_control_plane
    namespace = await asyncio.to_thread(plane.create_namespace, "ghosts")
    kubeconfig = await asyncio.to_thread(operator_kubeconfig, plane, namespace, tmp_path)
    # A source whose watcher is held while the API server goes down, comes back and deletes: the events are lost.
    metrics, stop = ControlMetrics(), asyncio.Event()
    async with await connect(kubeconfig) as api:
        source = ClusterSource(api, metrics=metrics, list_interval=timedelta(seconds=1))
        watcher = asyncio.create_task(watch(source, credentials=api.credentials, stop=stop))
        lister = asyncio.create_task(source.run())
        await apply(plane, a_policy("ghost", namespace=namespace), a_policy("kept", namespace=namespace))
        await _until(source, lambda s: names(s, namespace) == {"ghost", "kept"} and not s.unknown)
        stop.set()
        await watcher
        lister.cancel()
        await asyncio.wait([lister])

        await asyncio.to_thread(plane.restart_apiserver)
        await kubectl(plane, "delete", "sandboxpolicy", "ghost", f"--namespace={namespace}")
        assert names(await source.snapshot(), namespace) == {"ghost", "kept"}

        stop.clear()
        watcher = asyncio.create_task(watch(source, credentials=api.credentials, stop=stop))
        await asyncio.sleep(1.0)
        # kopf's own list does not tell what is missing from it.
        assert names(await source.snapshot(), namespace) == {"ghost", "kept"}
        lister = asyncio.create_task(source.run())
        await _until(source, lambda s: names(s, namespace) == {"kept"}, seconds=2.0)
        lister.cancel()
        stop.set()
        await asyncio.wait([lister, watcher])


async def test_an_outage_of_the_api_server_makes_nothing_unknown_and_ends_by_itself(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = fresh_control_plane
    namespace = await asyncio.to_thread(plane.create_namespace, "outage")
    kubeconfig = await asyncio.to_thread(operator_kubeconfig, plane, namespace, tmp_path)
    async with running(kubeconfig, list_interval=timedelta(seconds=1)) as cluster:
        await apply(plane, a_policy("before", namespace=namespace))
        await cluster.until(lambda s: names(s, namespace) == {"before"} and not s.unknown)
        await asyncio.to_thread(plane.stop_apiserver)
        heard = heard_of(cluster.metrics)
        await asyncio.sleep(2.0)
        snapshot = await cluster.source.snapshot()
        assert names(snapshot, namespace) == {"before"}
        assert not snapshot.unknown
        assert all(heard_of(cluster.metrics)[k] - at < 1.0 for k, at in heard.items())

        await asyncio.to_thread(plane.start_apiserver)
        await apply(plane, a_policy("after", namespace=namespace))
        await cluster.until(lambda s: names(s, namespace) == {"before", "after"}, seconds=15.0)
        # And by the watch, not by lists alone.
        cluster.source._list_interval = timedelta(hours=1)
        await asyncio.sleep(3.0)
        await apply(plane, a_policy("watched", namespace=namespace))
        await cluster.until(lambda s: "watched" in names(s, namespace), seconds=1.0)


async def test_a_kind_that_may_not_be_read_is_unknown(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.user_kubeconfig("nobody-in-particular")
    async with await connect(kubeconfig) as api:
        metrics = ControlMetrics()
        source = ClusterSource(api, metrics=metrics)
        assert (await source.snapshot()).unknown == _ALL
        assert not await source.synchronize()
        assert (await source.snapshot()).unknown == _ALL
        assert set(heard_of(metrics)) == _ALL
        assert told_unknown(metrics) == _ALL


async def test_a_right_that_is_taken_away_makes_its_kind_unknown_and_keeps_what_was_known(
    control_plane: ControlPlane, namespace: str, kubeconfig: Path
) -> None:
    await apply(control_plane, a_policy("redaction", namespace=namespace))
    role = f"supervisor-middleware-{namespace}"
    async with await connect(kubeconfig) as api:
        metrics = ControlMetrics()
        source = ClusterSource(api, metrics=metrics)
        assert await source.synchronize()
        assert "redaction" in names(await source.snapshot(), namespace)
        whole = await kubectl(control_plane, "get", "clusterrole", role, "--output=json")
        patch = json.dumps([{"op": "remove", "path": "/rules/0"}])
        await kubectl(control_plane, "patch", "clusterrole", role, "--type=json", f"--patch={patch}")
        deadline = time.monotonic() + 5
        while await source.synchronize():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        snapshot = await source.snapshot()
        assert snapshot.unknown == {"SupervisorMiddleware", "SandboxPolicy", "ClusterSandboxPolicy"}
        assert told_unknown(metrics) == snapshot.unknown
        assert "redaction" in names(snapshot, namespace)

        rules = json.dumps({"rules": json.loads(whole)["rules"]})
        await kubectl(control_plane, "patch", "clusterrole", role, "--type=merge", f"--patch={rules}")
        while not await source.synchronize():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert not (await source.snapshot()).unknown
        assert told_unknown(metrics) == set()


async def test_a_kind_that_is_removed_is_unknown_before_any_of_its_objects_is_missed(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = fresh_control_plane
    namespace = await asyncio.to_thread(plane.create_namespace, "removal")
    kubeconfig = await asyncio.to_thread(operator_kubeconfig, plane, namespace, tmp_path)
    async with running(kubeconfig) as cluster:
        await apply(plane, *(a_policy(f"policy-{i}", namespace=namespace) for i in range(20)))
        await cluster.until(lambda s: len(names(s, namespace)) == 20 and not s.unknown)
        definition = await kubectl(plane, "get", "crd", _CRD, "--output=json")

        seen: list[tuple[int, bool]] = []

        async def look() -> None:
            while True:
                snapshot = await cluster.source.snapshot()
                seen.append((len(names(snapshot, namespace)), "SandboxPolicy" in snapshot.unknown))
                await asyncio.sleep(0.002)

        looking = asyncio.create_task(look())
        await kubectl(plane, "delete", "crd", _CRD)
        await cluster.until(lambda s: s.unknown == {"SandboxPolicy"})
        await asyncio.sleep(1.0)
        looking.cancel()
        assert {count for count, _ in seen} == {20}
        assert seen[-1] == (20, True)

        body = json.loads(definition)
        await apply(plane, {k: body[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": {"name": _CRD}})
        await cluster.until(lambda s: not s.unknown and not names(s, namespace), seconds=10.0)
        await kubectl(plane, "wait", "--for=condition=Established", f"crd/{_CRD}")
        await apply(plane, a_policy("anew", namespace=namespace))
        await cluster.until(lambda s: names(s, namespace) == {"anew"}, seconds=5.0)


async def test_a_ca_bundle_is_read_where_it_is_kept_and_again_when_it_changes(
    control_plane: ControlPlane, namespace: str, kubeconfig: Path
) -> None:
    reference = {"kind": "ConfigMap", "namespace": namespace, "name": "roots"}
    key = BundleKey("ConfigMap", namespace, "roots", "ca.crt")
    await apply(control_plane, a_registration(namespace, tls={"caBundleRef": reference}))
    try:
        async with await connect(control_plane.kubeconfig) as api:
            source = ClusterSource(api, metrics=ControlMetrics())
            await source.synchronize()
            assert key not in (await source.snapshot()).bundles
            roots = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "roots", "namespace": namespace}}
            await apply(control_plane, roots | {"data": {"ca.crt": "one"}})
            await source.synchronize()
            assert (await source.snapshot()).bundles[key] == "one"
            await apply(control_plane, roots | {"data": {"ca.crt": "two"}})
            assert (await source.snapshot()).bundles[key] == "one"
            await source.synchronize()
            assert (await source.snapshot()).bundles[key] == "two"
        async with await connect(kubeconfig) as api:
            # The operator reads no ConfigMap but those it is granted; one it may not read is absent.
            source = ClusterSource(api, metrics=ControlMetrics())
            await source.synchronize()
            assert key not in (await source.snapshot()).bundles
    finally:
        await kubectl(control_plane, "delete", "supervisormiddleware", namespace)


async def test_a_watcher_that_ends_by_itself_is_an_error(control_plane: ControlPlane) -> None:
    from supervisor_middleware.errors import Unavailable

    class Nobody:
        is_deaf = asyncio.Event()

        def observe(self, kind: object, event: object, body: object) -> None: ...

    async def credentials() -> object:
        raise Unavailable("no token today")

    with pytest.raises(Unavailable, match="the watcher ended"):
        await asyncio.wait_for(watch(Nobody(), credentials=credentials, stop=asyncio.Event()), 20)  # type: ignore[arg-type]


async def _until(source: ClusterSource, condition: object, *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition(await source.snapshot()):  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)
