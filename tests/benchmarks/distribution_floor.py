"""The floor of distribution: a bare grpc.aio server over mutual TLS that fans a blob out, for benchmarks.

It knows nothing: each line on stdin is the size of a blob to hand to every stream, and a line of JSON goes out with
when that began and when the last stream's answer to it had come.
"""

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from supervisor_middleware.distribution.connections import raise_descriptor_limit
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.benchmarks.distribution_supervisors import SERVICE


class _Floor:
    def __init__(self) -> None:
        self._streams: dict[int, asyncio.Queue[bytes]] = {}
        self._blob = _a_blob(1024)
        self._missing = 0
        self._arrived = asyncio.Event()

    async def watch(self, reports: AsyncIterator[bytes], context: Any) -> None:
        """The method: a blob at once, then each as it comes."""
        await anext(aiter(reports))
        queue = self._streams[id(reports)] = asyncio.Queue()
        queue.put_nowait(self._blob)
        reading = asyncio.create_task(self._read(reports))
        try:
            while True:
                await context.write(await queue.get())
        finally:
            reading.cancel()
            del self._streams[id(reports)]

    async def _read(self, reports: AsyncIterator[bytes]) -> None:
        async for _ in reports:
            self._missing -= 1
            if not self._missing:
                self._arrived.set()

    async def fan_out(self, size: int) -> tuple[float, float]:
        """From when to when it took."""
        self._blob = _a_blob(size)
        self._arrived.clear()
        began = time.monotonic()
        self._missing = len(self._streams)
        for queue in self._streams.values():
            queue.put_nowait(self._blob)
        await self._arrived.wait()
        return began, time.monotonic()


def _a_blob(size: int) -> bytes:
    payload = os.urandom(size)
    return pb.GenerationOffer(
        epoch=1, digest=f"sha256:{hashlib.sha256(payload).hexdigest()}", payload=payload
    ).SerializeToString()


async def _main(authority: Authority) -> None:
    raise_descriptor_limit()
    own = authority.issue_operator(namespace="floor", now=datetime.now(UTC))
    server = aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            # Supervisors ping more often than gRPC lets them by default.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.bdp_probe", 0),
        ]
    )
    floor = _Floor()
    method = grpc.stream_stream_rpc_method_handler(floor.watch)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Watch": method}),))
    tls = grpc.ssl_server_credentials(
        [(own.private_key_pem.reveal(), own.certificate_chain_pem)],
        root_certificates=authority.certificate_pem,
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", tls)
    await server.start()
    _tell(port=port)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        began, ended = await floor.fan_out(int(line))
        _tell(began=began, ended=ended)
    await server.stop(None)


def _tell(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _trust_domain, _certificate, _key = sys.argv[1:]
    asyncio.run(
        _main(
            Authority.load(
                Path(_certificate).read_bytes(),
                SecretBytes(Path(_key).read_bytes()),
                trust_domain=_trust_domain,
                now=datetime.now(UTC),
            )
        )
    )
