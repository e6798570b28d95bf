"""Middleware services that say what a test wants them to say, over a real socket, and count what they are asked.

    with hosting() as host:
        service = host.serve(Script(manifest=...))
        service.endpoint, service.validated

Bytes in, bytes out: a service may be as wrong as it likes. They run in a thread of their own, plaintext or TLS.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from supervisor_middleware.middleware.service import http_binding, http_manifest
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.wire.codec import SERVICE, decode_validate_config, encode_manifest, encode_verdict

REJECTED_KEY: Final = "wrong"
REJECTION: Final = "wrong is not a key of mine"

_Result = TypeVar("_Result")


def a_manifest(*ids: str, max_body_bytes: int = 65536) -> bytes:
    """The bytes of a good manifest with these bindings."""
    bindings = (http_binding(i, max_body_bytes=max_body_bytes) for i in ids)
    return encode_manifest(http_manifest(*bindings, name="scripted", version="1.0.0"))


@dataclass(slots=True)
class Scripted:
    """What a service answers. `manifest` None: never; config with the key `wrong` is rejected."""

    manifest: bytes | None
    described: int = 0
    validated: list[JsonObject] = field(default_factory=list)
    endpoint: str = ""

    async def describe(self, _: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """`Describe`."""
        self.described += 1
        if self.manifest is None:
            await asyncio.Event().wait()
        return self.manifest or b""

    async def validate_config(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """`ValidateConfig`."""
        _, config = decode_validate_config(Dialect.RFC0009, data)
        self.validated.append(config)
        verdict = Rejected(REJECTION) if REJECTED_KEY in config else Accepted()
        return encode_verdict(Dialect.RFC0009, verdict)


class Host:
    """Where they run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._servers: dict[str, grpc.aio.Server] = {}

    def serve(self, service: Scripted, *, tls: Credentials | None = None) -> Scripted:
        """Start one; its endpoint is known then."""
        self._run(self._serve(service, tls))
        return service

    def stop(self, service: Scripted) -> None:
        """End one: its port is closed. Nothing happens if that was done."""
        if (server := self._servers.pop(service.endpoint, None)) is not None:
            self._run(server.stop(None))

    def restart(self, service: Scripted) -> None:
        """End one and start it again where it was: its connections are lost, as at a redeployment."""
        self.stop(service)
        self.resume(service)

    def resume(self, service: Scripted) -> None:
        """Start one again where it was; nothing happens if it runs."""
        if service.endpoint not in self._servers:
            self._run(self._serve(service, None, port=int(service.endpoint.rpartition(":")[2])))

    def stop_all(self) -> None:
        """End every one."""
        for server in self._servers.values():
            self._run(server.stop(None))

    async def _serve(self, service: Scripted, tls: Credentials | None, *, port: int = 0) -> None:
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(service.describe),
            "ValidateConfig": grpc.unary_unary_rpc_method_handler(service.validate_config),
        }
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if tls is None:
            service.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        else:
            pair = (tls.private_key_pem.reveal(), tls.certificate_chain_pem)
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
            service.endpoint = f"https://127.0.0.1:{port}"
        await server.start()
        self._servers[service.endpoint] = server

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@contextmanager
def hosting() -> Iterator[Host]:
    """A loop in a thread, until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="services")
    thread.start()
    host = Host(loop)
    try:
        yield host
    finally:
        host.stop_all()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
