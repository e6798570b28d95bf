"""Ends connections that carry no call. Anybody may open some, each costs up to 40 KiB, and who opens is not known.

gRPC ends those that are silent. But a call that is taken back at once, refused, or of a method that there is not
keeps a connection from that, and whoever opens thousands need not wait. So it is looked at the sockets: what carries
no call that somebody here works on ends after a while; of too many, those of whoever has the most end first, at once.
Who has a call has a place that somebody else bounds: streams by certificate, questions by turns.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from supervisor_middleware.distribution.complaints import Complaints
from supervisor_middleware.distribution.connections import Address, connections, cut_all, descriptors
from supervisor_middleware.distribution.doors import Door
from supervisor_middleware.distribution.shares import owner_of, yielding

_RUSH: Final = 256
"""Connections that make a look due at once."""
_WORTH: Final = 128
"""Open files without a call, of every kind. Fewer are no burden; a look at all there are is one, of thousands."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """On connections without a call: in seconds, of one host, and of all. Handshakes under way are among them."""

    patience: float = 30.0
    of_one: int
    of_all: int


class Idle:
    """The connections of one port that carry no call. PURE but for what it remembers: since when."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._since: dict[Address, float] = {}

    def surplus(self, connected: Collection[Address], *, carrying: Collection[Address], now: float) -> set[Address]:
        """Which of those that are connected are to end."""
        before, since = self._since, dict[Address, float]()
        for address in connected:
            if address not in carrying:
                since[address] = before.get(address, now)
        self._since = since
        ends = {address for address, at in since.items() if now - at >= self._bounds.patience}
        ends.update(_over(sorted((a for a in since if a not in ends), key=since.__getitem__), self._bounds))
        return ends


class Reaper:
    """Looks at the connections of all doors."""

    def __init__(self, doors: Sequence[tuple[Door, Bounds]], *, interval: float = 10.0, pause: float = 1.0) -> None:
        """In seconds: `interval` between two looks, `pause` at least when many connect."""
        self._doors = [(door, Idle(bounds)) for door, bounds in doors]
        self._interval, self._pause = interval, pause
        self._complaints = Complaints()

    async def run(self) -> None:
        """For ever."""
        clock = asyncio.get_running_loop().time
        looked_at, seen = clock(), 0
        while True:
            await asyncio.sleep(self._pause)
            arrivals = sum(door.arrivals for door, _ in self._doors)
            if arrivals - seen >= _RUSH or clock() - looked_at >= self._interval:
                looked_at, seen = clock(), arrivals
                await self._look()

    async def _look(self) -> None:
        carrying = sum(len(door.calls) for door, _ in self._doors)
        if await asyncio.to_thread(descriptors) - carrying < _WORTH:
            return
        found = await asyncio.to_thread(connections)
        now = asyncio.get_running_loop().time()
        for door, idle in self._doors:
            connected = [peer for port, peer in found if port == door.port]
            ends = idle.surplus(connected, carrying=door.calls.keys(), now=now)
            if ends:
                ended = await asyncio.to_thread(cut_all, ends, port=door.port)
                ((host, most),) = Counter(host for host, _ in ends).most_common(1)
                event = "ended connections that carried no call"
                self._complaints.tell(_log.warning, event, port=door.port, connections=ended, most_of=host, its=most)


def _over(oldest_first: Sequence[Address], bounds: Bounds) -> Iterator[Address]:
    kept, of_hosts = list[Address](), Counter(host for host, _ in oldest_first)
    for address in oldest_first:
        if of_hosts[address[0]] > bounds.of_one:
            of_hosts[address[0]] -= 1
            yield address
        else:
            kept.append(address)
    if (over := len(kept) - bounds.of_all) > 0:
        for position in yielding([owner_of(host) for host, _ in kept])[:over]:
            yield kept[position]
