"""A network between a supervisor and the operator that can be cut: relays of TCP in a thread of their own.

Cut, it swallows every byte and closes nothing, also for those who connect meanwhile: a firewall that forgets.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_CHUNK = 65536


@dataclass(slots=True)
class Network:
    """Relays, by the port they lead to."""

    loop: asyncio.AbstractEventLoop
    passed: int = 0
    """How often something came through, in either direction."""
    _passes: asyncio.Event = field(default_factory=asyncio.Event)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def relay(self, port: int) -> int:
        """A port that leads to `port`."""
        bound: int = self._run(self._serve(port))
        return bound

    def cut(self) -> None:
        """Nothing passes."""
        self.loop.call_soon_threadsafe(self._passes.clear)

    def mend(self) -> None:
        """New connections pass; those of before are reset at last."""

        async def mend() -> None:
            self._passes.set()
            for writer in self._writers:
                writer.transport.abort()

        self._run(mend())

    async def close(self) -> None:
        """End all of it."""
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, port: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with contextlib.suppress(asyncio.CancelledError):  # asyncio's own callback takes it for an error
                await self._connect(reader, writer, port)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._writers.add(writer)
        try:
            there, onwards = await asyncio.open_connection("127.0.0.1", port)
            self._writers.add(onwards)
            pumps = [asyncio.ensure_future(p) for p in (self._pump(reader, onwards), self._pump(there, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                self._writers.discard(onwards)
                onwards.transport.abort()
        except OSError:
            pass  # the operator is away, which is not the network's fault
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if self._passes.is_set():
                    self.passed += 1
                    writer.write(data)
                    await writer.drain()
            await self._passes.wait()  # nobody hears of an end either
        except OSError:
            pass

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@contextmanager
def a_network() -> Iterator[Network]:
    """One that works, until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="network", daemon=True)
    thread.start()
    network = Network(loop)
    network.mend()
    try:
        yield network
    finally:
        asyncio.run_coroutine_threadsafe(network.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
