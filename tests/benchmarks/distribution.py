"""Generations on their way to a thousand supervisors and more: how soon, and at what cost.

Supervisors are real mutual TLS streams from a few client processes on the same machine (`distribution_supervisors`).
The clock of a change runs from the API server's answer to the last `active` that the operator took. The floor beside
it is a bare grpc.aio server that hands as many streams, from the same processes, a blob of the same size, and the two
writes to the API server by which a change is persisted before anybody is told, of objects as small as can be.

`python -m tests.benchmarks.distribution 1 100` measures these numbers of supervisors alone, fewer first.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from tests.benchmarks.cluster import Client, note, processor_seconds, resident_bytes
from tests.benchmarks.distribution_stage import AT_ONCE, BARE, FLEET, OTHERS, Stage, fleet_policy, labels_of, staged
from tests.benchmarks.figures import percentile, show

COUNTS: Final = (1, 100, 1_000, 5_000)
MANY: Final = 1_000
"""What connecting, memory and rest are measured from."""
CHANGES: Final = 25
PAUSE_SECONDS: Final = 0.3
"""Between a change and the next blob."""
CHANGING: Final = 10
"""Other policies, each with a supervisor, that change each second beside the one that is measured."""
REST_SECONDS: Final = 30.0
SETTLED_SECONDS: Final = 3.0


async def run(*counts: int) -> None:
    """With so many supervisors; fewer first."""
    async with staged() as stage:
        others = await stage.sandboxes(OTHERS, range(CHANGING))
        for number in range(CHANGING):
            await stage.client.apply(_policy_of_another(number, edit=0))
        await stage.fleet.open(OTHERS, stage.address, others)
        await stage.client.apply(fleet_policy("all", FLEET))
        await _rest(stage, CHANGING)
        for count in counts or COUNTS:
            note(f"{count} supervisors")
            await _connect(stage, count)
            await _changes(stage, count)
            if count >= MANY:
                await _rest(stage, count)


async def _connect(stage: Stage, count: int) -> None:
    """All of them; a thousand at once."""
    before = len(stage.certificates)
    for group in (FLEET, BARE):
        await stage.fleet.close(group)
    await stage.certify(count)
    await asyncio.sleep(SETTLED_SECONDS)
    memory = resident_bytes(stage.pid)
    ours = await stage.connect()
    least = await stage.connect_to_floor()
    if count < MANY:
        return
    await asyncio.sleep(SETTLED_SECONDS)
    how = "at_once" if count <= AT_ONCE else "by_thousands"
    show(f"distribution_connect_{count}_{how}", ours, "s")
    show(f"distribution_connect_{count}_{how}_floor", least, "s")
    # What earlier streams left is used again, so it is counted in full for the others.
    used = (resident_bytes(stage.pid) - memory) / (count - before)
    show(f"distribution_memory_per_stream_{count}", used / 1024, "KiB")


async def _changes(stage: Stage, count: int) -> None:
    """Changes and blobs in turns; then changes while other policies change too."""
    await stage.change()
    writes, fanned, idle = list[float](), list[float](), list[float]()
    encodings, used, used_by_floor = stage.notes.encodings, 0.0, 0.0
    for _ in range(CHANGES):
        await asyncio.sleep(PAUSE_SECONDS)
        before = processor_seconds(stage.floor.pid)
        fanned.append(await stage.floor.fan_out(stage.size))
        used_by_floor += processor_seconds(stage.floor.pid) - before
        await asyncio.sleep(PAUSE_SECONDS)
        writes.append(await stage.two_writes())
        await asyncio.sleep(PAUSE_SECONDS)
        before = processor_seconds(stage.pid)
        idle.append(await stage.change())
        used += processor_seconds(stage.pid) - before
    _show(f"distribution_change_{count}", idle)
    _show(f"distribution_change_{count}_floor", [a + b for a, b in zip(writes, fanned, strict=True)])
    _show(f"distribution_change_{count}_floor_streams", fanned)
    _show(f"distribution_change_{count}_floor_writes", writes)
    show(f"distribution_change_{count}_ratio", median(idle) / (median(writes) + median(fanned)), "ratio")
    show(f"distribution_change_{count}_processor", used / CHANGES * 1e3, "ms")
    show(f"distribution_change_{count}_processor_floor", used_by_floor / CHANGES * 1e3, "ms")
    show(f"distribution_change_{count}_encodings", (stage.notes.encodings - encodings) / CHANGES, "encodings")
    busy = list[float]()
    before, began = processor_seconds(stage.pid), time.monotonic()
    async with _others_changing(stage.client) as changes:
        for _ in range(CHANGES):
            await asyncio.sleep(PAUSE_SECONDS)
            busy.append(await stage.change())
    took = time.monotonic() - began
    _show(f"distribution_change_{count}_busy", busy)
    show(f"distribution_change_{count}_busy_others", changes[0] / took, "changes/s")
    show(
        f"distribution_change_{count}_busy_processor", 100 * (processor_seconds(stage.pid) - before) / took, "percent"
    )


async def _rest(stage: Stage, count: int) -> None:
    """Nothing changes."""
    note("at rest")
    await asyncio.sleep(SETTLED_SECONDS)
    pids = stage.pid, stage.floor.pid
    before = [processor_seconds(pid) for pid in pids]
    await asyncio.sleep(REST_SECONDS)
    ours, least = (100 * (processor_seconds(pid) - b) / REST_SECONDS for pid, b in zip(pids, before, strict=True))
    show(f"distribution_rest_{count}_processor", ours, "percent")
    show(f"distribution_rest_{count}_processor_floor", least, "percent")


@asynccontextmanager
async def _others_changing(client: Client) -> AsyncIterator[list[int]]:
    """Yields how many changes were made so far, in a list of one."""
    made = [0]

    async def change() -> None:
        began = time.monotonic()
        while True:
            await client.apply(_policy_of_another(made[0] % CHANGING, edit=made[0]))
            made[0] += 1
            await asyncio.sleep(max(0.0, began + made[0] / CHANGING - time.monotonic()))

    changing = asyncio.create_task(change())
    try:
        yield made
    finally:
        changing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await changing


def _policy_of_another(number: int, *, edit: int) -> dict[str, object]:
    return fleet_policy(f"policy-{number}", OTHERS, selector=labels_of(number), edit=edit)


def _show(name: str, seconds: list[float]) -> None:
    for kind, value in (("p50", median(seconds)), ("p99", percentile(seconds, 0.99)), ("max", max(seconds))):
        show(f"{name}_{kind}", value * 1e3, "ms")


if __name__ == "__main__":
    asyncio.run(run(*map(int, sys.argv[1:])))
