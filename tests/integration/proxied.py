"""Real Envoy between a client and an upstream of our own, with a runtime that tests steer."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from supervisor_middleware.audit.events import Event
from supervisor_middleware.supervisor.envoy import EnvoyProcess
from supervisor_middleware.supervisor.envoy_config import (
    FixedUpstream,
    ProxyConfig,
    TcpAddress,
    UnixAddress,
    Upstream,
)
from supervisor_middleware.supervisor.ext_proc import ExtProcServer, Processor, RequestIdentity
from tests.fakes.ext_proc_runtime import FakeRuntime, a_stage, allow
from tests.fakes.http_peers import Client, Message, RecordingUpstream, a_client, an_upstream

NO_GRACE = timedelta(0)


@dataclass
class Proxied:
    runtime: FakeRuntime
    upstream: RecordingUpstream
    envoy: EnvoyProcess
    server: ExtProcServer
    port: int
    events: list[Event] = field(default_factory=list)

    def reset(self) -> None:
        self.runtime.stages, self.runtime.answer, self.runtime.gate = (a_stage(),), allow, None
        self.runtime.requests.clear()
        self.runtime.cancelled = 0
        self.upstream.requests.clear()
        self.upstream.refuse_upgrades = False
        self.events.clear()

    def client(self) -> AbstractAsyncContextManager[Client]:
        return a_client(self.port)

    async def send(self, *parts: bytes, method: str = "GET") -> Message:
        async with self.client() as client:
            for part in parts:
                await client.send(part)
            return await client.response(method)


@asynccontextmanager
async def a_proxy(
    upstream_of: Callable[[RecordingUpstream], Upstream] | None = None, *, runtime: FakeRuntime | None = None
) -> AsyncIterator[Proxied]:
    directory = Path(tempfile.mkdtemp(prefix="smw-"))
    socket = UnixAddress(str(directory / "ext-proc.sock"))
    runtime, events = runtime or FakeRuntime(), list[Event]()
    server = ExtProcServer(a_processor(runtime, events), address=socket)
    await server.start()
    try:
        async with an_upstream() as upstream:
            to = upstream_of(upstream) if upstream_of else FixedUpstream(TcpAddress("127.0.0.1", upstream.port))
            config = ProxyConfig(listen=TcpAddress("127.0.0.1", 0), processor=socket, upstream=to)
            envoy = EnvoyProcess(config, directory=directory)
            await envoy.start()
            try:
                port = (await envoy.listening()).port
                yield Proxied(runtime, upstream, envoy, server, port, events)
            finally:
                await envoy.stop()
    finally:
        await server.stop(NO_GRACE)
        shutil.rmtree(directory)


def a_processor(runtime: FakeRuntime, events: list[Event]) -> Processor:
    return Processor(
        runtime,
        identity=RequestIdentity(sandbox_id="team/agent", new_request_id=lambda: str(uuid4())),
        record=events.extend,
        body_patience=timedelta(seconds=1),
    )
