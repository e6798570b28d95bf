"""`make bench`: every benchmark, one line a figure, each beside a baseline of the same run."""

import asyncio

from tests.benchmarks import core, fuzz, proxy, validate


async def _all() -> None:
    for benchmark in (core, proxy, validate, fuzz):
        await benchmark.run()


if __name__ == "__main__":
    asyncio.run(_all())
