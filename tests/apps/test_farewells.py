"""Farewells go on by themselves, and whoever ends the process waits for them."""

import asyncio

from supervisor_middleware.apps.farewells import Farewells


async def test_a_farewell_has_begun_and_is_not_waited_for_until_the_end() -> None:
    farewells, end, said = Farewells(), asyncio.Event(), list[str]()

    async def farewell() -> None:
        said.append("begun")
        await end.wait()
        said.append("over")

    await farewells.add(farewell())
    assert said == ["begun"]
    closing = asyncio.ensure_future(farewells.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    end.set()
    await closing
    assert said == ["begun", "over"]
    await farewells.aclose()


async def test_one_that_is_short_is_over_at_once() -> None:
    farewells = Farewells()
    await farewells.add(asyncio.sleep(0))
    assert not farewells._tasks
