"""Places and turns: who is refused, who waits for how many others, and that a place is given back."""

import asyncio

import pytest

from supervisor_middleware.distribution.shares import Owner
from supervisor_middleware.distribution.turns import TooMany, Turns, caller_of
from supervisor_middleware.errors import Unavailable


class Crowd:
    """Calls that have their turn until they are told to go; `served` is who had one, in order."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.served = turns, list[str]()
        self._go = asyncio.Semaphore(0)

    async def come(self, *names: str) -> "list[asyncio.Task[None]]":
        """`a1`: a call of host 1 in network a."""
        calls = [asyncio.create_task(self._call(name)) for name in names]
        await settle()
        return calls

    async def end_one(self) -> None:
        self._go.release()
        await settle()

    async def end_all(self, *calls: "asyncio.Task[None]") -> None:
        while not all(c.done() for c in calls):
            await self.end_one()

    async def _call(self, name: str) -> None:
        async with self.turns.turn(Owner(group=name[0], member=name)):
            self.served.append(name)
            await self._go.acquire()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def refusals(calls: "list[asyncio.Task[None]]") -> list[str]:
    return [str(c.exception()) for c in calls if c.done() and c.exception() is not None]


async def test_so_many_are_at_work_and_the_rest_waits() -> None:
    crowd = Crowd(Turns(at_work=2, waiting=2))
    calls = await crowd.come("a1", "b1", "c1", "d1")
    assert crowd.served == ["a1", "b1"]
    await crowd.end_one()
    assert crowd.served == ["a1", "b1", "c1"]
    await crowd.end_all(*calls)
    assert crowd.served == ["a1", "b1", "c1", "d1"]
    assert not crowd.turns._present
    assert not crowd.turns._began
    assert not crowd.turns._waiting


async def test_who_comes_waits_for_one_turn_of_each_other_however_many_calls_they_have() -> None:
    hosts = [f"{network}{host}" for network in "abcd" for host in range(8)]
    crowd = Crowd(Turns(at_work=4, waiting=1000))
    flood = await crowd.come(*(hosts * 20))
    for _ in range(40):
        await crowd.end_one()
    before = len(crowd.served)
    (honest,) = await crowd.come("z1")
    await crowd.end_one()
    # A network that had no turn yet is the next of all.
    assert crowd.served[before:] == ["z1"]
    # In a network of others it is the next one of them, when it is that network's turn.
    (neighbour,) = await crowd.come("a9")
    for _ in range(4):
        await crowd.end_one()
    assert "a9" in crowd.served[before + 1 :]
    assert honest not in flood
    await crowd.end_all(*flood, honest, neighbour)


async def test_a_flood_that_comes_back_at_once_does_not_stay_ahead() -> None:
    crowd = Crowd(Turns(at_work=1, waiting=100))
    flood = await crowd.come(*(f"{network}1" for network in "abcdefgh"))
    (honest,) = await crowd.come("z1")
    for _ in range(8):
        await crowd.end_one()
        flood += await crowd.come(*(f"{network}1" for network in "abcdefgh"))
    assert "z1" in crowd.served
    await crowd.end_all(*flood, honest)


async def test_without_a_place_to_wait_in_whoever_has_the_most_loses_one() -> None:
    crowd = Crowd(Turns(at_work=1, waiting=4))
    flood = await crowd.come(*["a1"] * 5)
    honest = await crowd.come("b1", "b2")
    assert refusals(flood) == ["too many wait"] * 2
    # The newest of them; and then its own, where it has as many as anybody.
    assert [c.done() for c in flood] == [False, False, False, True, True]
    more = await crowd.come("b1")
    assert refusals(more) == ["too many wait"]
    await crowd.end_all(*flood, *honest)
    assert crowd.served == ["a1", "b1", "a1", "b2", "a1"]


async def test_one_owner_has_so_many() -> None:
    crowd = Crowd(Turns(at_work=1, waiting=10, of_one=2))
    calls = await crowd.come("a1", "a1", "a1", "a2")
    assert refusals(calls) == ["too many of yours are under way"]
    await crowd.end_all(*calls)


async def test_nobody_waits_or_is_worked_for_without_an_end() -> None:
    crowd = Crowd(Turns(at_work=1, waiting=10, patience=0.05))
    calls = await crowd.come("a1", "b1")
    await asyncio.wait(calls)
    with pytest.raises(Unavailable, match="took too long"):
        await calls[0]
    with pytest.raises((TooMany, Unavailable)):
        await calls[1]
    assert not crowd.turns._present
    assert crowd.turns._free == 1


async def test_who_waits_too_long_is_told_when_to_come_again() -> None:
    turns = Turns(at_work=1, waiting=10, patience=0.05)
    turns._free = 0
    with pytest.raises(TooMany, match="too many came before") as caught:
        async with turns.turn(Owner(group="a", member="a1")):
            pass
    assert caught.value.pause > 0


async def test_who_leaves_while_waiting_or_in_the_moment_of_its_turn_takes_no_place_along() -> None:
    crowd = Crowd(Turns(at_work=1, waiting=2))
    at_work, leaving, called = await crowd.come("a1", "b1", "c1")
    leaving.cancel()
    await settle()
    crowd._go.release()
    for _ in range(10):
        if crowd.turns._waiting:
            await asyncio.sleep(0)
    called.cancel()
    await asyncio.wait((at_work, leaving, called))
    assert crowd.turns._free == 1
    assert not crowd.turns._present
    assert crowd.served == ["a1"]


@pytest.mark.parametrize(
    ("peer", "owner"),
    [
        ("ipv4:10.0.0.1:4711", Owner(group="10.0.0.0/24", member="10.0.0.1")),
        ("ipv6:%5B::1%5D:4711", Owner(group="::/64", member="::1")),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4711", Owner(group="10.0.0.0/24", member="10.0.0.1")),
        ("unix:", Owner(group="unix:", member="unix:")),
    ],
)
def test_a_peer_is_its_host_in_its_network(peer: str, owner: Owner) -> None:
    assert caller_of(peer) == owner
