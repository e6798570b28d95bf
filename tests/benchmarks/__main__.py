"""`make bench`: every benchmark, one line a figure, each beside a baseline of the same run."""

import asyncio

from e2e.controlplane.build import GoMissingError, ensure
from tests.benchmarks import admission, core, distribution, enrollment, fuzz, isolation, proxy, scale, validate
from tests.benchmarks.cluster import note


async def _all() -> None:
    for benchmark in (core, proxy, validate, fuzz):
        await benchmark.run()
    try:
        ensure(note)
    except GoMissingError as error:
        note(f"no figures of a cluster: {error}")
        return
    for benchmark in (admission, scale, isolation, enrollment, distribution):
        await benchmark.run()


if __name__ == "__main__":
    asyncio.run(_all())
