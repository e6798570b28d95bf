"""`make bench`: every benchmark, one line a figure, each beside a baseline of the same run."""

import asyncio

from tests.benchmarks import core, proxy


async def _all() -> None:
    for benchmark in (core, proxy):
        await benchmark.run()


if __name__ == "__main__":
    asyncio.run(_all())
