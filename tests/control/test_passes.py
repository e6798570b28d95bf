"""When passes are made: at once, and then as the last one and their reason allow."""

import asyncio
from datetime import timedelta

from supervisor_middleware.control.measures import Measures
from supervisor_middleware.control.passes import PACE_SECONDS, STANDINGS_SECONDS, Passes
from supervisor_middleware.telemetry import ControlMetrics
from tests.builders import NOW

LONG = 10 * PACE_SECONDS


class Work:
    """Passes that wait for something and use some processor."""

    def __init__(self, *, waits: float = 0.0, works: float = 0.0) -> None:
        self.waits, self.works = waits, works
        self.worked = 0.0
        self.began: list[float] = []
        self.ended: list[float] = []
        self.passes = Passes(
            self.work,
            due=lambda: NOW + timedelta(hours=1),
            now=lambda: NOW,
            measures=Measures(ControlMetrics()),
            worked=lambda: self.worked,
        )

    async def work(self) -> None:
        clock = asyncio.get_running_loop().time
        self.began.append(clock())
        await asyncio.sleep(self.waits)
        self.worked += self.works
        self.ended.append(clock())

    async def run(self, *, passes: int, standings: bool = False) -> list[float]:
        """Until so many passes, one always wanted; the pauses between them."""
        running = asyncio.create_task(self.passes.run())
        while len(self.ended) < passes:
            await asyncio.sleep(0.001)
            if standings:
                self.passes.request_standings()
            else:
                self.passes.request()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return [began - ended for began, ended in zip(self.began[1:], self.ended, strict=False)]


async def test_a_pass_that_waited_long_for_the_store_does_not_put_off_the_next() -> None:
    pauses = await Work(waits=LONG, works=0.0).run(passes=3)
    assert min(pauses) < LONG


async def test_a_pass_that_worked_long_leaves_the_loop_to_others_for_as_long() -> None:
    pauses = await Work(waits=LONG, works=LONG).run(passes=3)
    assert min(pauses) >= LONG * 0.9


async def test_what_other_threads_worked_meanwhile_counts_no_longer_than_the_pass_took() -> None:
    pauses = await Work(waits=0.0, works=60.0).run(passes=3)
    assert min(pauses) < LONG


async def test_supervisors_that_answer_all_the_time_are_looked_at_now_and_then() -> None:
    work = Work()
    await work.run(passes=5, standings=True)
    # The first is the start's. One that is late makes the next no later.
    assert work.began[4] - work.began[1] >= STANDINGS_SECONDS * 2


async def test_a_change_does_not_wait_for_the_next_look_at_standings() -> None:
    work = Work()
    running = asyncio.create_task(work.passes.run())
    for request in (work.passes.request_standings, work.passes.request_standings, work.passes.request):
        before = len(work.ended)
        request()
        while len(work.ended) == before:  # noqa: ASYNC110 - a pass that is about to begin
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(work.ended) >= 3
