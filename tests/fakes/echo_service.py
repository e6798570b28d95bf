"""A middleware service on loopback that says in each answer with which config it was asked.

    async with EchoService.serving(credentials, clients=bundle) as service:
        service.port, service.described, service.peers

Bytes in, bytes out, over mutual TLS; `manifest` None makes `Describe` fail, `answers` cleared makes it hang. A config
with a `header` has the answer write what else it says into that header.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from supervisor_middleware.model.evaluation import Decision, ExistingHeader, Result, WriteHeader
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.wire.codec import METHODS, SERVICE, decode_evaluation, encode_manifest, encode_result

BINDING = "acme/echo"
LIMIT = 65536


def echo_binding(identifier: str = BINDING, *, max_body_bytes: int = LIMIT) -> Binding:
    return Binding(
        id=identifier, operation=Operation.HTTP_REQUEST, phase=Phase.PRE_CREDENTIALS, max_body_bytes=max_body_bytes
    )


def echo_manifest(*bindings: Binding) -> Manifest:
    return Manifest(name="echo", service_version="1", dialect=Dialect.RFC0009, bindings=bindings or (echo_binding(),))


class EchoService:
    def __init__(self) -> None:
        self.manifest: Manifest | None = echo_manifest()
        self.by_turns: Iterator[Manifest] | None = None
        """What is answered to `Describe` in place of `manifest`, one after the other."""
        self.described = 0
        self.peers: set[str] = set()
        self.port = 0
        self.answers = asyncio.Event()
        self.answers.set()

    @classmethod
    @asynccontextmanager
    async def serving(
        cls, credentials: Credentials, *, clients: bytes, port: int = 0
    ) -> AsyncIterator["EchoService"]:
        service = cls()
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(service._describe),
            METHODS.evaluate_http_request.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(service._evaluate),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        pair = (credentials.private_key_pem.reveal(), credentials.certificate_chain_pem)
        tls = grpc.ssl_server_credentials([pair], root_certificates=clients, require_client_auth=True)
        service.port = server.add_secure_port(f"127.0.0.1:{port}", tls)
        await server.start()
        try:
            yield service
        finally:
            await server.stop(None)

    async def _describe(self, _request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        self.described += 1
        await self.answers.wait()
        self.peers.add(context.peer())
        manifest = self.manifest if self.by_turns is None else next(self.by_turns)
        if manifest is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "rolling")
            raise AssertionError
        return encode_manifest(manifest)

    async def _evaluate(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        self.peers.add(context.peer())
        evaluation = decode_evaluation(Dialect.RFC0009, request)
        mark, name = str(evaluation.config["generation"]), evaluation.config.get("header")
        header = WriteHeader(name=str(name), value=mark, on_existing=ExistingHeader.APPEND)
        result = Result(
            decision=Decision.ALLOW, metadata={"generation": mark}, mutations=() if name is None else (header,)
        )
        return encode_result(Dialect.RFC0009, result)
