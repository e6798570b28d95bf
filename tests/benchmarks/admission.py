"""Admission through the real API server: writers beside a webhook that allows everything at once.

Both webhooks are asked about the same writes (dry runs) with the same rules, conditions and TLS, from one process
each, in turns: what the rest of the machine does meets both.
"""

import base64
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

from e2e.harness import OPERATOR_NAMESPACE, Installation, listens, service_credentials
from supervisor_middleware.cli.processes import Process, free_port, wait_until
from supervisor_middleware.pki.credential_files import FILE_NAMES, write_credentials
from supervisor_middleware.pki.credentials import Part
from tests.benchmarks.cluster import (
    Client,
    a_benchmark_policy,
    a_namespace,
    at_once,
    client_of,
    installed,
    note,
    pid_of,
    processor_seconds,
)
from tests.benchmarks.figures import percentile, show

WRITERS: Final = (1, 20, 100)
WRITES: Final = {1: 60, 20: 160, 100: 200}
"""Of each side a turn."""
TURNS: Final = 4
EXISTING: Final = 1_000
OURS, FLOOR = "reviewed", "allowed"
_OURS_NAME: Final = f"supervisor-middleware-{OPERATOR_NAMESPACE}"
_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@dataclass(slots=True)
class Side:
    """What one webhook's writers saw, in seconds."""

    namespace: str
    latencies: list[float] = field(default_factory=list)


async def run() -> None:
    """Writers against a cluster without policies, and against one with a thousand."""
    with installed() as installation, TemporaryDirectory() as folder:
        async with client_of(installation.plane) as client, _floor(installation, client, Path(folder)):
            await _warm_up(installation, client)
            for writers in WRITERS:
                await _compare(client, writers, name=f"admission_{writers}_writers")
            await _fill(client)
            began = processor_seconds(pid_of(installation)), _reviews(installation)
            await _compare(client, 20, name=f"admission_20_writers_beside_{EXISTING}_policies")
            used = processor_seconds(pid_of(installation)) - began[0]
            show("admission_processor_per_review", used / (_reviews(installation) - began[1]) * 1e3, "ms")


async def _compare(client: Client, writers: int, *, name: str) -> None:
    note(name)
    ours, floor = Side(OURS), Side(FLOOR)
    for turn in range(TURNS):
        for side in (ours, floor) if turn % 2 else (floor, ours):
            await _write(client, side, writers=writers)
    for side in (ours, floor):
        prefix = name if side is ours else f"{name}_floor"
        show(f"{prefix}_average", fmean(side.latencies) * 1e3, "ms")
        show(f"{prefix}_p50", percentile(side.latencies, 0.5) * 1e3, "ms")
        show(f"{prefix}_p99", percentile(side.latencies, 0.99) * 1e3, "ms")
        show(f"{prefix}_max", max(side.latencies) * 1e3, "ms")
    show(f"{name}_average_over_floor", fmean(ours.latencies) / fmean(floor.latencies), "ratio")


async def _write(client: Client, side: Side, *, writers: int) -> None:
    async def write(number: int) -> None:
        policy = a_benchmark_policy(number, side.namespace)
        policy["metadata"]["name"] = f"new-{number}"
        began = time.perf_counter()
        await client.try_create(policy)
        side.latencies.append(time.perf_counter() - began)

    await at_once(writers, range(WRITES[writers]), write)


async def _fill(client: Client) -> None:
    note(f"{EXISTING} policies")
    await at_once(20, range(EXISTING), lambda i: client.apply(a_benchmark_policy(i, OURS)))
    last = a_benchmark_policy(EXISTING - 1, OURS)["metadata"]["name"]
    path = f"/apis/middleware.openshell.io/v1alpha1/namespaces/{OURS}/sandboxpolicies"
    items = (await client.get(path))["items"]
    while not all("accepted" in item.get("status", {}) for item in items):
        items = (await client.get(path))["items"]
    if last not in {item["metadata"]["name"] for item in items}:
        raise AssertionError("not all policies are there")


@asynccontextmanager
async def _floor(installation: Installation, client: Client, folder: Path) -> AsyncIterator[None]:
    """The other webhook, asked in a namespace of its own about the same as ours."""
    port, credentials = free_port(), service_credentials()
    write_credentials(folder, credentials)
    process = Process(
        name="allowing",
        module="tests.benchmarks.allowing",
        arguments=(str(port), str(folder / FILE_NAMES[Part.CERTIFICATE]), str(folder / FILE_NAMES[Part.KEY])),
        log=folder / "allowing.log",
    )
    process.start()
    try:
        wait_until("the floor listens", lambda: listens("127.0.0.1", port), processes=(process,))
        for name in (OURS, FLOOR):
            await client.apply(a_namespace(name))
        await _divide(client, port=port, bundle=credentials.trust_bundle_pem)
        yield
    finally:
        process.stop()


async def _divide(client: Client, *, port: int, bundle: bytes) -> None:
    """Ours everywhere but in the floor's namespace, the floor there only."""
    ours = await client.get(f"{_CONFIGURATIONS}/{_OURS_NAME}")
    selectors = {
        operator: {
            "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": operator, "values": [FLOOR]}]
        }
        for operator in ("In", "NotIn")
    }
    webhook: dict[str, Any] = copy.deepcopy(ours["webhooks"][0])
    webhook["name"] = "floor.middleware.openshell.io"
    webhook["clientConfig"] = {
        "url": f"https://127.0.0.1:{port}/validate",
        "caBundle": base64.b64encode(bundle).decode(),
    }
    webhook["namespaceSelector"] = selectors["In"]
    floor = {"apiVersion": ours["apiVersion"], "kind": ours["kind"], "metadata": {"name": "floor"}}
    await client.create(_CONFIGURATIONS, {**floor, "webhooks": [webhook]})
    ours["webhooks"][0]["namespaceSelector"] = selectors["NotIn"]
    await client.merge(f"{_CONFIGURATIONS}/{_OURS_NAME}", {"webhooks": ours["webhooks"]})


async def _warm_up(installation: Installation, client: Client) -> None:
    """Until each webhook is asked about its own writes only, all connections are there, and verdicts known."""
    for side in (Side(FLOOR), Side(OURS)) * 2:
        await _write(client, side, writers=100)
    for _ in range(100):
        before = _reviews(installation)
        await _write(client, Side(FLOOR), writers=20)
        between = _reviews(installation)
        await _write(client, Side(OURS), writers=20)
        if (between - before, _reviews(installation) - between) == (0, WRITES[20]):
            return
    raise AssertionError("the webhooks cannot be told apart")


def _reviews(installation: Installation) -> int:
    name = "admission_review_duration_seconds_count"
    return int(sum(v for k, v in installation.metrics().items() if k.startswith(name)))


if __name__ == "__main__":
    import asyncio

    asyncio.run(run())
