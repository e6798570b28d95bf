"""Places and turns: who is refused, who waits, and that a place is given back."""

import asyncio

import pytest

from supervisor_middleware.distribution.turns import TooMany, Turns, host_of


async def taken(turns: Turns, peer: str, *, until: asyncio.Event) -> None:
    async with turns.turn(peer):
        await until.wait()


async def test_one_peer_cannot_take_the_places_of_others() -> None:
    turns, end = Turns(at_work=2, in_all=4, of_one_peer=2), asyncio.Event()
    held = [asyncio.ensure_future(taken(turns, "a", until=end)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooMany):
        await taken(turns, "a", until=end)
    waiting = [asyncio.ensure_future(taken(turns, peer, until=end)) for peer in "bc"]
    await asyncio.sleep(0)
    with pytest.raises(TooMany):
        await taken(turns, "d", until=end)
    end.set()
    await asyncio.gather(*held, *waiting)
    await taken(turns, "d", until=end)
    assert not turns._present


async def test_who_leaves_while_waiting_frees_the_place() -> None:
    turns, end = Turns(at_work=1, in_all=2, of_one_peer=2), asyncio.Event()
    held, waiting = (asyncio.ensure_future(taken(turns, "a", until=end)) for _ in range(2))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert turns._present == {"a": 1}
    end.set()
    await held


@pytest.mark.parametrize(
    ("peer", "host"), [("ipv4:10.0.0.1:4711", "ipv4:10.0.0.1"), ("ipv6:%5B::1%5D:4711", "ipv6:%5B::1%5D")]
)
def test_a_peer_is_its_host(peer: str, host: str) -> None:
    assert host_of(peer) == host
