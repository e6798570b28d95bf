"""A watch that fell silent, was ended or is too old: noticed by age, connected anew, and what it missed is found."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from e2e.cluster_support import Running, a_policy, apply, kubectl, operator_kubeconfig, running
from e2e.controlplane.cluster import ControlPlane
from e2e.flaky_proxy import FlakyProxy, Gone
from supervisor_middleware.handlers import SILENCE
from supervisor_middleware.model.snapshot import Kind, Snapshot

# A client that hangs up on a peer that says nothing leaves its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

_SECOND = timedelta(seconds=1)
_NEVER = timedelta(hours=1)
_PATIENCE = 60.0


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What is left behind is found here, not in somebody else's test."""
    yield
    gc.collect()


@asynccontextmanager
async def following(
    plane: ControlPlane, namespace: str, directory: Path, *, silence: timedelta = SILENCE
) -> AsyncIterator[tuple[FlakyProxy, Running]]:
    """A source that follows the cluster through a proxy, synced, with every kind watched."""
    path = await asyncio.to_thread(operator_kubeconfig, plane, namespace, directory)
    with FlakyProxy(plane.url, authority=plane.authority) as proxy:
        document = yaml.safe_load(path.read_text())
        document["clusters"][0]["cluster"]["server"] = proxy.url
        path.write_text(yaml.safe_dump(document))
        async with running(path, list_interval=_SECOND, silence=silence) as cluster:
            await cluster.until(lambda s: not s.unknown, seconds=_PATIENCE)
            await watches(proxy, more_than=0)
            yield proxy, cluster


async def watches(proxy: FlakyProxy, *, more_than: int) -> None:
    """Until each of our kinds was watched so many times and once more."""
    plurals = ("sandboxpolicies", "supervisormiddlewares", "policyrevisions", "namespaces", "pods")
    await until(lambda: all(watched(proxy, plural) > more_than for plural in plurals))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not is_so():  # noqa: ASYNC110 - the proxy is in another thread
            await asyncio.sleep(0.05)


def watched(proxy: FlakyProxy, plural: str) -> int:
    """How often a watch of that kind was asked for."""
    return proxy.count(lambda seen: seen.is_watch and seen.path.endswith(f"/{plural}"))


def names(snapshot: Snapshot, namespace: str) -> set[str]:
    return {p.subject.name for p in snapshot.policies if p.subject.namespace == namespace}


async def told_by_the_watch_alone(plane: ControlPlane, cluster: Running, *, namespace: str, name: str) -> None:
    """Lists end, and yet the policy is seen."""
    cluster.source._list_interval = _NEVER
    # The last list that was begun with the short interval has ended by then.
    await asyncio.sleep(2 * _SECOND.total_seconds())
    await apply(plane, a_policy(name, namespace=namespace))
    await cluster.until(lambda s: name in names(s, namespace), seconds=_PATIENCE)


async def test_a_watch_that_does_not_tell_what_a_list_did_is_started_anew(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    async with following(control_plane, namespace, tmp_path) as (proxy, cluster):
        before = watched(proxy, "sandboxpolicies")
        proxy.swallow_open_connections()
        await apply(control_plane, a_policy("listed", namespace=namespace))
        await cluster.until(lambda s: "listed" in names(s, namespace), seconds=_PATIENCE)
        await watches(proxy, more_than=before)
        await told_by_the_watch_alone(control_plane, cluster, namespace=namespace, name="told")
        assert not (await cluster.source.snapshot()).unknown


async def test_a_watch_that_says_nothing_for_too_long_is_connected_anew_although_nothing_changes(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    async with following(control_plane, namespace, tmp_path, silence=timedelta(seconds=4)) as (proxy, cluster):
        cluster.source._list_interval = _NEVER
        before = max(watched(proxy, plural) for plural in ("pods", "namespaces", "sandboxpolicies"))
        proxy.swallow_open_connections()
        await watches(proxy, more_than=before)
        assert cluster.source.alive() is None, "a quiet cluster is not a stale one"
        await told_by_the_watch_alone(control_plane, cluster, namespace=namespace, name="told")


@pytest.mark.parametrize("how", list(Gone))
async def test_what_was_missed_while_a_version_was_too_old_is_found_and_watching_goes_on(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, how: Gone
) -> None:
    async with following(control_plane, namespace, tmp_path) as (proxy, cluster):
        await apply(control_plane, a_policy("ghost", namespace=namespace), a_policy("kept", namespace=namespace))
        await cluster.until(lambda s: names(s, namespace) == {"ghost", "kept"}, seconds=_PATIENCE)
        before = watched(proxy, "sandboxpolicies")
        proxy.expire_watches(how)
        await kubectl(control_plane, "delete", "sandboxpolicy", "ghost", f"--namespace={namespace}")
        await apply(control_plane, a_policy("new", namespace=namespace))
        await watches(proxy, more_than=before)
        await cluster.until(lambda s: names(s, namespace) == {"kept", "new"}, seconds=_PATIENCE)
        # No new watch to wait for: one that is on its way may be let through already.
        proxy.calm()
        await told_by_the_watch_alone(control_plane, cluster, namespace=namespace, name="told")
        assert not (await cluster.source.snapshot()).unknown


async def test_an_outage_of_the_network_is_told_by_age_and_keeps_everything(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    async with following(control_plane, namespace, tmp_path) as (proxy, cluster):
        await apply(control_plane, a_policy("before", namespace=namespace))
        await cluster.until(lambda s: names(s, namespace) == {"before"}, seconds=_PATIENCE)
        proxy.black_hole()
        await until(lambda: Kind.SUPERVISOR_MIDDLEWARE in cluster.source._troubled)
        stale = heard_of(cluster)
        snapshot = await cluster.source.snapshot()
        assert names(snapshot, namespace) == {"before"}
        assert not snapshot.unknown
        await kubectl(control_plane, "delete", "sandboxpolicy", "before", f"--namespace={namespace}")
        assert heard_of(cluster) == stale, "the age of what is known grows: an alert can see it"

        before = watched(proxy, "sandboxpolicies")
        proxy.calm()
        await apply(control_plane, a_policy("after", namespace=namespace))
        await cluster.until(lambda s: names(s, namespace) == {"after"}, seconds=_PATIENCE)
        assert heard_of(cluster) > stale
        await watches(proxy, more_than=before)
        await told_by_the_watch_alone(control_plane, cluster, namespace=namespace, name="told")


def heard_of(cluster: Running) -> float:
    """When policies were last heard of."""
    gauge = cluster.metrics.watch_last_event.labels(Kind.SANDBOX_POLICY.value)
    return next(iter(gauge.collect())).samples[0].value
