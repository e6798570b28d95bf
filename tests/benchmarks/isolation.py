"""One bad policy among a thousand, and one dead service among fifty: what the others' sandboxes notice of it.

Supervisors hold real streams. Latency is from the change of a policy, through admission, to the generation offered to
its sandbox; it is measured in turns, with the trouble there and with it gone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median
from typing import Final

from e2e.harness import Installation, a_pod
from e2e.objects import Document, a_policy, a_registration, an_entry
from e2e.services import Host, Scripted, a_manifest, hosting
from tests.benchmarks.cluster import (
    POLICIES,
    Client,
    a_benchmark_policy,
    a_namespace,
    at_once,
    client_of,
    installed,
    note,
)
from tests.benchmarks.figures import percentile, show
from tests.benchmarks.streams import Stream, opened

ALL: Final = 1_000
SERVICES: Final = 50
STREAMS: Final = 10
TURNS: Final = 6
EDITS: Final = 10
"""A turn."""
_TEAM, _SERVED = "team", "served"
_BAD, _DEAD = ALL - 1, SERVICES - 1
_WAIT: Final = 60.0
_POLL: Final = 0.5

Change = Callable[[int], Awaitable[None]]


async def run() -> None:
    """The bad policy first, then the dead service."""
    with installed() as installation, hosting() as host:
        async with client_of(installation.plane) as client:
            await _bad_policy(installation, client)
            await _dead_service(installation, client, host)


async def _bad_policy(installation: Installation, client: Client) -> None:
    note(f"{ALL} policies")
    await _prepare(client, _TEAM)
    await at_once(20, range(ALL), lambda i: client.apply(a_benchmark_policy(i, _TEAM)))
    await _until_accepted(client, _TEAM, count=ALL)
    edits = 0

    async def edit(number: int) -> None:
        nonlocal edits
        edits += 1
        await client.apply(a_benchmark_policy(number, _TEAM, edit=edits))

    async def spoil() -> None:
        bad = a_benchmark_policy(_BAD, _TEAM)
        bad["spec"]["networkMiddlewares"]["config0"]["config"] = {"mode": "no such mode"}
        bad["spec"]["networkMiddlewares"]["config1"]["middleware"] = "openshell/none-such"
        await client.force(bad)

    async def mend() -> None:
        await client.apply(a_benchmark_policy(_BAD, _TEAM, edit=edits))

    async with AsyncExitStack() as stack:
        streams = [await _stream(installation, client, stack, _TEAM, i) for i in range(STREAMS)]
        await _in_turns("bad_policy", client, streams, namespace=_TEAM, edit=edit, spoil=spoil, mend=mend)


async def _dead_service(installation: Installation, client: Client, host: Host) -> None:
    note(f"{SERVICES} services")
    await _prepare(client, _SERVED)
    services = [host.serve(Scripted(a_manifest(f"acme/service-{i}"))) for i in range(SERVICES)]
    for i, service in enumerate(services):
        await client.apply(a_registration(f"service-{i}", endpoint=service.endpoint))
    await _until_ready(client)
    await at_once(10, range(SERVICES), lambda i: client.apply(_served(i, edit=0)))
    await _until_accepted(client, _SERVED, count=SERVICES)
    edits = 0

    async def edit(number: int) -> None:
        nonlocal edits
        edits += 1
        await client.apply(_served(number, edit=edits))

    async def spoil() -> None:
        host.stop(services[_DEAD])
        # An edit that only the dead service could judge is under way all the time.
        await client.force(_served(_DEAD, edit=edits + 1))

    async def mend() -> None:
        host.resume(services[_DEAD])

    async with AsyncExitStack() as stack:
        streams = [await _stream(installation, client, stack, _SERVED, i) for i in range(STREAMS)]
        await _in_turns("dead_service", client, streams, namespace=_SERVED, edit=edit, spoil=spoil, mend=mend)


async def _in_turns(
    name: str,
    client: Client,
    streams: list[Stream],
    *,
    namespace: str,
    edit: Change,
    spoil: Callable[[], Awaitable[None]],
    mend: Callable[[], Awaitable[None]],
) -> None:
    """Latencies with the trouble and without, and how many generations moved that nobody edited."""
    latencies: dict[bool, list[float]] = {True: [], False: []}
    before = await _digests(client, namespace)
    await _edits(streams, edit)
    for turn in range(TURNS):
        is_troubled = bool(turn % 2)
        await (spoil() if is_troubled else mend())
        latencies[is_troubled] += await _edits(streams, edit)
    await spoil()
    after = await _digests(client, namespace)
    edited = {f"policy-{i}" for i in range(STREAMS)}
    troubled = f"policy-{_BAD if namespace == _TEAM else _DEAD}"
    moved = [n for n, digest in after.items() if digest != before[n] and n not in edited | {troubled}]
    show(f"isolation_{name}_generations_moved", len(moved) + sum(s.surprises for s in streams), "generations")
    for is_troubled, kind in ((False, "healthy"), (True, "troubled")):
        show(f"isolation_{name}_latency_{kind}_p50", median(latencies[is_troubled]) * 1e3, "ms")
        show(f"isolation_{name}_latency_{kind}_p99", percentile(latencies[is_troubled], 0.99) * 1e3, "ms")
    show(f"isolation_{name}_latency_ratio", median(latencies[True]) / median(latencies[False]), "ratio")


async def _edits(streams: list[Stream], edit: Change) -> list[float]:
    """Edit one sandbox's policy after another; from the edit to its offer."""
    found = []
    for number in range(EDITS):
        index = number % len(streams)
        began = time.perf_counter()
        async with asyncio.timeout(_WAIT), streams[index].awaited() as offered:
            await edit(index)
            await offered.wait()
        found.append(time.perf_counter() - began)
    return found


async def _prepare(client: Client, namespace: str) -> None:
    await client.apply(a_namespace(namespace))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}
    await client.apply(account)


async def _stream(
    installation: Installation, client: Client, stack: AsyncExitStack, namespace: str, number: int
) -> Stream:
    pod = a_pod(f"pod-{number}", namespace=namespace, sandbox=f"sandbox-{number}", labels={"app": f"app-{number}"})
    await client.apply(pod)
    return await stack.enter_async_context(
        opened(installation, client, namespace=namespace, sandbox=f"sandbox-{number}", pod=f"pod-{number}")
    )


def _served(number: int, *, edit: int) -> Document:
    entry = an_entry(f"acme/service-{number}", config={"edit": edit}, onError="FailClosed")
    return a_policy(f"policy-{number}", namespace=_SERVED, selector={"app": f"app-{number}"}, stage=entry)


async def _digests(client: Client, namespace: str) -> dict[str, str]:
    items = (await client.get(_policies(namespace)))["items"]
    return {i["metadata"]["name"]: i.get("status", {}).get("accepted", {}).get("digest", "") for i in items}


async def _until_accepted(client: Client, namespace: str, *, count: int) -> None:
    async with asyncio.timeout(_WAIT):
        while sum(map(bool, (await _digests(client, namespace)).values())) < count:  # noqa: ASYNC110 - the API server tells by lists
            await asyncio.sleep(_POLL)


async def _until_ready(client: Client) -> None:
    path = POLICIES.replace("sandboxpolicies", "supervisormiddlewares")
    async with asyncio.timeout(_WAIT):
        while not all("accepted" in i.get("status", {}) for i in (await client.get(path))["items"]):  # noqa: ASYNC110 - as above
            await asyncio.sleep(_POLL)


def _policies(namespace: str) -> str:
    group, _, plural = POLICIES.rpartition("/")
    return f"{group}/namespaces/{namespace}/{plural}"


if __name__ == "__main__":
    asyncio.run(run())
