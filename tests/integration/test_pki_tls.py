"""Issued certificates in real TLS: gRPC (BoringSSL) both ways, and Python's ssl in strict mode."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import pytest

from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.spiffe import operator_server_name, sandbox_identity
from tests.pki.builders import TRUST_DOMAIN, an_authority, an_identity, supervisor_credentials

NOW: Final = datetime.now(UTC)
LONG_AGO: Final = NOW - timedelta(days=30)
AUTHORITY: Final = an_authority(now=LONG_AGO)
STRANGER: Final = an_authority(now=LONG_AGO)
OPERATOR: Final = AUTHORITY.issue_operator(namespace="system", now=NOW)
SUPERVISOR: Final = supervisor_credentials(AUTHORITY, now=NOW)
SERVER: Final = AUTHORITY.issue_server(
    dns_names=["redactor.team-a.svc"], ip_addresses=[ip_address("127.0.0.1")], now=NOW
)
DEADLINE: Final = 5.0


@dataclass(kw_only=True)
class Peers:
    """What the server saw of its clients, and the credentials it presents to the next one."""

    port: int = 0
    current: Credentials
    seen: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)


def configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.private_key_pem.reveal(), credentials.certificate_chain_pem)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=credentials.trust_bundle_pem)


@asynccontextmanager
async def a_server(credentials: Credentials) -> AsyncIterator[Peers]:
    peers = Peers(current=credentials)

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        peers.seen += context.auth_context()["x509_pem_cert"]
        peers.names += context.auth_context()["x509_subject_alternative_name"]
        return request

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", handlers)])
    tls = grpc.dynamic_ssl_server_credentials(
        configuration(credentials),
        lambda: configuration(peers.current),
        require_client_authentication=True,
    )
    peers.port = server.add_secure_port("127.0.0.1:0", tls)
    await server.start()
    try:
        yield peers
    finally:
        await server.stop(None)


async def call(
    peers: Peers,
    client: Credentials | None,
    *,
    roots: Authority = AUTHORITY,
    name: str = operator_server_name(TRUST_DOMAIN),
) -> bytes:
    tls = grpc.ssl_channel_credentials(
        root_certificates=roots.certificate_pem if client is None else client.trust_bundle_pem,
        private_key=client.private_key_pem.reveal() if client else None,
        certificate_chain=client.certificate_chain_pem if client else None,
    )
    options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{peers.port}", tls, options=options) as channel:
        echo = channel.unary_unary("/test.Echo/Echo", request_serializer=bytes, response_deserializer=bytes)
        answered: bytes = await echo(b"hello", timeout=DEADLINE)
        return answered


async def refused(
    peers: Peers, client: Credentials | None, *, name: str = operator_server_name(TRUST_DOMAIN)
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(peers, client, name=name)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not peers.seen


async def test_the_server_learns_who_the_supervisor_is() -> None:
    async with a_server(OPERATOR) as peers:
        assert await call(peers, SUPERVISOR) == b"hello"
    assert peers.names == [f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/coder".encode()]
    assert sandbox_identity(peers.seen[0], trust_domain=TRUST_DOMAIN) == an_identity()


async def test_the_operator_is_a_client_of_services_too() -> None:
    async with a_server(SERVER) as peers:
        assert await call(peers, OPERATOR, name="redactor.team-a.svc") == b"hello"
    assert f"spiffe://{TRUST_DOMAIN}/ns/system/operator".encode() in peers.names


async def test_a_client_without_a_certificate_is_refused() -> None:
    async with a_server(OPERATOR) as peers:
        await refused(peers, None)


async def test_a_client_of_another_ca_is_refused() -> None:
    stranger = replace(supervisor_credentials(STRANGER, now=NOW), trust_bundle_pem=AUTHORITY.certificate_pem)
    async with a_server(OPERATOR) as peers:
        await refused(peers, stranger)


async def test_a_server_of_another_ca_is_refused() -> None:
    stranger = replace(
        STRANGER.issue_operator(namespace="system", now=NOW), trust_bundle_pem=AUTHORITY.certificate_pem
    )
    async with a_server(stranger) as peers:
        await refused(peers, SUPERVISOR)


async def test_an_expired_client_is_refused() -> None:
    async with a_server(OPERATOR) as peers:
        await refused(peers, supervisor_credentials(AUTHORITY, now=LONG_AGO))


async def test_an_expired_server_is_refused() -> None:
    async with a_server(AUTHORITY.issue_operator(namespace="system", now=LONG_AGO)) as peers:
        await refused(peers, SUPERVISOR)


async def test_a_servers_leaf_is_no_client() -> None:
    async with a_server(OPERATOR) as peers:
        await refused(peers, SERVER)


@pytest.mark.parametrize("name", [operator_server_name(TRUST_DOMAIN), "coder", "team-a"])
async def test_a_supervisors_leaf_is_no_server(name: str) -> None:
    async with a_server(SUPERVISOR) as peers:
        await refused(peers, SUPERVISOR, name=name)


async def test_a_plain_server_is_not_taken_for_the_operator() -> None:
    async with a_server(SERVER) as peers:
        await refused(peers, SUPERVISOR)


async def test_a_renewed_server_and_a_second_root_need_no_restart() -> None:
    both = AUTHORITY.certificate_pem + STRANGER.certificate_pem
    old, new = SUPERVISOR, replace(supervisor_credentials(STRANGER, now=NOW), trust_bundle_pem=both)
    async with a_server(OPERATOR) as peers:
        await refused(peers, new)
        peers.current = replace(AUTHORITY.issue_operator(namespace="system", now=NOW), trust_bundle_pem=both)
        assert await call(peers, old) == b"hello"
        assert await call(peers, new) == b"hello"


def a_context(purpose: ssl.Purpose, directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(directory / "ca.crt"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


async def ssl_exchange(server: Credentials, client: Credentials, *, name: str, directory: Path) -> bytes:
    write_credentials(directory / "server", server)
    write_credentials(directory / "client", client)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()

    server_side = a_context(ssl.Purpose.CLIENT_AUTH, directory / "server")
    client_side = a_context(ssl.Purpose.SERVER_AUTH, directory / "client")
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_side) as listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname=name)
        writer.write(b"hello")
        answered = await reader.read()
        writer.close()
        return answered


@pytest.mark.parametrize(
    ("server", "client", "name"),
    [
        (OPERATOR, SUPERVISOR, operator_server_name(TRUST_DOMAIN)),
        (SERVER, OPERATOR, "redactor.team-a.svc"),
        (SERVER, SUPERVISOR, "127.0.0.1"),
    ],
    ids=["supervisor-operator", "operator-service", "supervisor-service by address"],
)
async def test_strict_openssl_accepts_every_pair(
    server: Credentials, client: Credentials, name: str, tmp_path: Path
) -> None:
    assert await ssl_exchange(server, client, name=name, directory=tmp_path) == b"hello"


async def test_strict_openssl_refuses_a_supervisor_as_a_server(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await ssl_exchange(SUPERVISOR, SUPERVISOR, name=operator_server_name(TRUST_DOMAIN), directory=tmp_path)
