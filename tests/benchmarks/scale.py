"""A thousand policies applied to a real API server, and ten thousand: how soon all are Ready, and what they cost.

Fewer take less time: `python -m tests.benchmarks.scale 5000`.

The operator shares the processors with the API server, etcd and this client. The floor is what the API server takes
for as many ConfigMaps of the same size.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from e2e.objects import Document
from tests.benchmarks.cluster import (
    POLICIES,
    Client,
    a_benchmark_policy,
    a_namespace,
    at_once,
    client_of,
    installed,
    note,
    pid_of,
    processor_seconds,
    resident_bytes,
)
from tests.benchmarks.etcd import Etcd
from tests.benchmarks.figures import show

FEW, MANY = 1_000, 10_000
PER_NAMESPACE: Final = 100
AT_ONCE: Final = 20
SETTLED_SECONDS: Final = 3.0
_READY_SECONDS: Final = 600.0


@dataclass(slots=True)
class Watched:
    """What a watch told of policies, by UID."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ready: dict[str, float] = field(default_factory=dict)
    writes: Counter[str] = field(default_factory=Counter)
    _statuses: dict[str, Any] = field(default_factory=dict)

    async def follow(self, client: Client) -> None:
        """Until cancelled."""
        found = await client.get(POLICIES)
        since = found["metadata"]["resourceVersion"]
        while True:
            # A watch ends now and then, and goes on where it ended.
            async for kind, policy in client.watch(POLICIES, since=since):
                since = policy["metadata"]["resourceVersion"]
                if kind in {"ADDED", "MODIFIED"}:
                    self._take(policy)

    def _take(self, policy: Document) -> None:
        uid, status = policy["metadata"]["uid"], policy.get("status")
        if status != self._statuses.get(uid, _unwritten(status)):
            self.writes[uid] += 1
        self._statuses[uid] = status
        if _is_ready(policy):
            self.ready.setdefault(uid, time.perf_counter())
            self.changed.set()

    async def until_ready(self, count: int) -> None:
        """As many policies are Ready."""
        async with asyncio.timeout(_READY_SECONDS):
            while len(self.ready) < count:
                self.changed.clear()
                await self.changed.wait()


async def run(many: int = MANY) -> None:
    """The few, then as many as make the many."""
    with installed() as installation:
        async with client_of(installation.plane) as client:
            pid, etcd = pid_of(installation), Etcd(installation.plane)
            for i in range(many // PER_NAMESPACE):
                await client.apply(a_namespace(_namespace(i * PER_NAMESPACE)))
            show("scale_apply_1000_configmaps", await _floor(client), "s")
            await asyncio.sleep(SETTLED_SECONDS)
            idle = resident_bytes(pid)
            show("scale_operator_memory_idle", idle / 2**20, "MiB")
            watched = Watched()
            watching = asyncio.create_task(watched.follow(client))
            stored, used = etcd.compacted_bytes(), processor_seconds(pid)
            await _apply(client, watched, range(FEW))
            await asyncio.sleep(SETTLED_SECONDS)
            show("scale_operator_processor_per_policy", (processor_seconds(pid) - used) / FEW * 1e3, "ms")
            show("scale_status_writes_per_policy_average", watched.writes.total() / FEW, "writes")
            show("scale_status_writes_per_policy_max", max(watched.writes.values()), "writes")
            few = resident_bytes(pid)
            show("scale_operator_memory_1000", few / 2**20, "MiB")
            show("scale_etcd_per_policy_with_history", (etcd.bytes_in_use() - stored) / FEW, "bytes")
            show("scale_etcd_per_policy", (etcd.compacted_bytes() - stored) / FEW, "bytes")
            await _apply(client, watched, range(FEW, many))
            await asyncio.sleep(SETTLED_SECONDS)
            most = resident_bytes(pid)
            show(f"scale_operator_memory_{many}", most / 2**20, "MiB")
            show("scale_operator_memory_per_policy", (most - few) / (many - FEW), "bytes")
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _apply(client: Client, watched: Watched, numbers: range) -> None:
    note(f"policies {numbers.start} to {numbers.stop}")
    began = time.perf_counter()
    await at_once(AT_ONCE, numbers, lambda i: client.apply(a_benchmark_policy(i, _namespace(i))))
    ended = time.perf_counter()
    await watched.until_ready(numbers.stop)
    show(f"scale_apply_{len(numbers)}_policies", ended - began, "s")
    show(f"scale_ready_after_last_apply_of_{len(numbers)}", max(0.0, max(watched.ready.values()) - ended), "s")


async def _floor(client: Client) -> float:
    note(f"{FEW} ConfigMaps")
    began = time.perf_counter()
    await at_once(AT_ONCE, range(FEW), lambda i: client.apply(_config_map(i)))
    return time.perf_counter() - began


def _config_map(number: int) -> Document:
    policy = a_benchmark_policy(number, "default")
    data = {key: str(entry) for key, entry in policy["spec"]["networkMiddlewares"].items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": policy["metadata"], "data": data}


def _namespace(number: int) -> str:
    return f"team-{number // PER_NAMESPACE}"


def _unwritten(status: Any) -> Any:
    """What the CRD's default says before anybody wrote a status; a first sight of anything else is a write."""
    return status if not (status or {}).get("accepted") else None


def _is_ready(policy: Document) -> bool:
    status = policy.get("status", {})
    if status.get("observedGeneration") != policy["metadata"]["generation"]:
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))


if __name__ == "__main__":
    asyncio.run(run(*map(int, sys.argv[1:])))
