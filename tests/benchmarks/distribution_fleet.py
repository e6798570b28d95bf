"""Supervisors by the thousand, in a few processes of their own, and the floor they are also connected to."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.harness import LOOPBACK, TRUST_DOMAIN

PROCESSES: Final = 4
_WAIT_SECONDS: Final = 180.0
_MAX_LINE: Final = 1024 * 1024

Certificate = tuple[str, str]
"""And its key, both PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A whole group runs `digest`, as of `at`; the offer had `size` bytes."""

    digest: str
    at: float
    size: int


class _Child:
    """A process that takes lines and tells lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @property
    def _streams(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("it has no pipes")
        return self.process.stdin, self.process.stdout

    async def send(self, line: str) -> None:
        writer, _ = self._streams
        writer.write(line.encode() + b"\n")
        await writer.drain()

    async def told(self) -> dict[str, Any]:
        line = await self._streams[1].readline()
        if not line:
            raise AssertionError(f"a process of the benchmark ended: {await self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def _child(module: str, *arguments: str) -> AsyncIterator[_Child]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MAX_LINE,
        # gRPC's core writes about streams that end, as all do here.
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
    )
    try:
        yield _Child(process)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


class Floor:
    """The bare server."""

    def __init__(self, child: _Child, port: int) -> None:
        self._child, self.address = child, f"{LOOPBACK}:{port}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.process.pid

    async def fan_out(self, size: int) -> float:
        """How long it took until every stream had answered."""
        await self._child.send(str(size))
        async with asyncio.timeout(_WAIT_SECONDS):
            told = await self._child.told()
        return float(told["ended"]) - float(told["began"])


@dataclass(slots=True)
class Fleet:
    """All client processes. A group is what they open at one operator."""

    children: list[_Child]
    roots: str
    _streams: dict[str, set[int]] = field(default_factory=dict)
    _arrivals: dict[str, dict[int, Arrival]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _problem: str = ""

    async def open(self, group: str, address: str, certificates: Sequence[Certificate]) -> None:
        """Have them open a stream for each certificate."""
        command = {"group": group, "address": address, "trust_domain": TRUST_DOMAIN, "roots": self.roots}
        known = self._streams.setdefault(group, set())
        for number, child in enumerate(self.children):
            if dealt := certificates[number :: len(self.children)]:
                known.add(number)
                self._arrivals.get(group, {}).pop(number, None)
                await child.send(json.dumps({**command, "certificates": dealt}))

    async def close(self, group: str) -> None:
        """End all streams of a group."""
        closing = self._streams.pop(group, set())
        for number in closing:
            await self.children[number].send(json.dumps({"close": group}))
        async with asyncio.timeout(_WAIT_SECONDS):
            while not closing.isdisjoint(self._arrivals.get(group, {})):
                self._changed.clear()
                await self._changed.wait()

    async def arrived(self, group: str, *, beyond: str = "") -> Arrival:
        """Once all of a group run the same generation, another one than `beyond`."""
        async with asyncio.timeout(_WAIT_SECONDS):
            while True:
                if self._problem:
                    raise AssertionError(self._problem)
                found = self._arrivals.get(group, {})
                if found.keys() == self._streams[group] and len({a.digest for a in found.values()}) == 1:
                    last = max(found.values(), key=lambda a: a.at)
                    if last.digest != beyond:
                        return last
                self._changed.clear()
                await self._changed.wait()

    async def listen(self, number: int) -> None:
        """Take what one process tells, until cancelled."""
        while True:
            told = await self.children[number].told()
            if "error" in told:
                self._problem = f"{told['group']}: {told['error']}"
            elif "closed" in told:
                self._arrivals[told["closed"]].pop(number, None)
            else:
                arrival = Arrival(digest=told["digest"], at=told["at"], size=told["size"])
                self._arrivals.setdefault(told["group"], {})[number] = arrival
            self._changed.set()


@asynccontextmanager
async def a_fleet(roots: str) -> AsyncIterator[Fleet]:
    """Client processes, without a stream yet."""
    async with AsyncExitStack() as stack:
        module = "tests.benchmarks.distribution_supervisors"
        children = [await stack.enter_async_context(_child(module)) for _ in range(PROCESSES)]
        fleet = Fleet(children, roots)
        listening = [asyncio.create_task(fleet.listen(number)) for number in range(PROCESSES)]
        try:
            yield fleet
        finally:
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)


@asynccontextmanager
async def a_floor(certificate: Path, key: Path) -> AsyncIterator[Floor]:
    """The bare server, with the same authority."""
    async with _child("tests.benchmarks.distribution_floor", TRUST_DOMAIN, str(certificate), str(key)) as child:
        yield Floor(child, (await child.told())["port"])
