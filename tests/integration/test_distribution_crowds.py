"""Malicious clients with thousands of connections: they lose them, and nobody else notices.

They speak as much of HTTP/2 as they need, from many addresses of loopback.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from supervisor_middleware.distribution.doors import WAITED_FOR_OF_ONE_CERTIFICATE
from supervisor_middleware.distribution.reaper import Bounds
from supervisor_middleware.distribution.turns import WAITING
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.spiffe import SandboxIdentity, operator_server_name
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen import distribution_pb2_grpc as rpc
from tests.integration.distributing import (
    AUTHORITY,
    WAIT,
    Operator,
    a_channel,
    a_running_supervisor,
    a_sealed,
    an_operator,
    credentials_of,
    enroll,
)
from tests.pki.builders import TRUST_DOMAIN
from tests.waiting import eventually

ONE, TWO = a_sealed("one"), a_sealed("two")
_PACKAGE: Final = "supervisor_middleware.distribution.v1alpha1"
RENEW, ENROLL = f"/{_PACKAGE}.Renewal/Renew", f"/{_PACKAGE}.Enrollment/Enroll"
NEVER: Final = 3600.0


class Client:
    """One connection: an HTTP/2 client that reads nothing but its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._stream = 1

    def begin(self, method: str, *frames: bytes) -> None:
        """A call; its message is missing unless it is given."""
        headers = [
            (":method", "POST"),
            (":scheme", "https"),
            (":path", method),
            (":authority", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        block = b"".join(
            b"\0" + b"".join(bytes((len(part),)) + part.encode() for part in header) for header in headers
        )
        self._writer.write(_frame(1, 4, self._stream, block) + b"".join(frames))
        self._stream += 2

    def make(self, method: str, message: bytes) -> None:
        """A whole call."""
        data = b"\0" + len(message).to_bytes(4, "big") + message
        self.begin(method, _frame(0, 1, self._stream, data))

    def take_back(self) -> None:
        """The last call."""
        self._writer.write(_frame(3, 0, self._stream - 2, (8).to_bytes(4, "big")))

    async def end(self) -> None:
        """Return when the operator ended it."""
        while True:
            try:
                if not await self._reader.read(65536):
                    return
            except OSError:
                return

    def close(self) -> None:
        self._writer.transport.abort()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Attacker:
    """Connects again and again."""

    def __init__(self, directory: Path, client: Credentials | None) -> None:
        self._tls = ssl.create_default_context(cadata=AUTHORITY.certificate_pem.decode())
        if client is not None:
            pem = directory / "client.pem"
            pem.write_bytes(client.private_key_pem.reveal() + client.certificate_chain_pem)
            self._tls.load_cert_chain(pem)
        self._tls.set_alpn_protocols(["h2"])
        self.clients = list[Client]()

    async def connect(self, port: int, *, host: str = "127.0.0.1") -> Client:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            port,
            ssl=self._tls,
            server_hostname=operator_server_name(TRUST_DOMAIN),
            local_addr=(host, 0),
        )
        client = Client(reader, writer)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        self.clients.append(client)
        return client

    async def connect_often(self, port: int, times: int, *, host: str = "127.0.0.1") -> list[Client]:
        return [await self.connect(port, host=host) for _ in range(times)]


@asynccontextmanager
async def an_attacker(directory: Path, client: Credentials | None = None) -> AsyncIterator[Attacker]:
    attacker = Attacker(directory, client)
    try:
        yield attacker
    finally:
        for one in attacker.clients:
            one.close()


def nothing(_: Client) -> None:
    """Silent."""


def begun(client: Client) -> None:
    """As many calls as a connection may have, none of which is ever made."""
    for _ in range(64):
        client.begin(RENEW)


def unknown(client: Client) -> None:
    client.begin("/of/Nobody")


def taken_back(client: Client) -> None:
    client.begin(RENEW)
    client.take_back()


# ------------------------------------------------------------------------------------------- with a good certificate


@pytest.mark.parametrize(
    ("times", "acts"),
    [(300, nothing), (150, begun), (150, unknown), (150, taken_back)],
    ids=lambda v: getattr(v, "__name__", v),
)
async def test_connections_of_one_certificate_that_carry_no_call_end_and_others_go_on(
    tmp_path: Path, times: int, acts: Callable[[Client], None]
) -> None:
    bounds = Bounds(patience=1, of_one=1000, of_all=1000)
    async with an_operator() as operator, an_attacker(tmp_path, credentials_of("a")) as attacker:
        await operator.publish({"uid-a": ONE, "uid-b": ONE})
        async with a_running_supervisor(operator, "a") as its_own, a_running_supervisor(operator, "b") as other:
            for supervisor in (its_own, other):
                await supervisor.runs((await supervisor.offer()).digest)
            clients = await attacker.connect_often(operator.port, times)
            async with asyncio.timeout(40), operator.reaped(bounds):  # gRPC itself takes a minute
                ends = [asyncio.ensure_future(client.end()) for client in clients]
                while not all(end.done() for end in ends):
                    for client, end in zip(clients, ends, strict=True):
                        if not end.done():
                            acts(client)
                    await asyncio.wait(ends, timeout=0.2)
                await operator.publish({"uid-a": TWO, "uid-b": TWO})
                for supervisor in (its_own, other):
                    assert (await supervisor.offer()).digest == TWO.digest


async def test_of_very_many_connections_the_oldest_end_at_once_and_a_handshake_that_is_never_made_is_one(
    tmp_path: Path,
) -> None:
    async with an_operator() as operator, an_attacker(tmp_path, credentials_of("a")) as attacker:
        await operator.publish({"uid-b": ONE})
        async with a_running_supervisor(operator, "b") as other:
            await other.offer()
            mute = [await asyncio.open_connection("127.0.0.1", operator.port) for _ in range(60)]
            await eventually(lambda: operator.doors[0].arrivals >= 60)
            clients = await attacker.connect_often(operator.port, 80)
            # Those that came last are in one look with those that came first, or in a later one.
            async with operator.reaped(Bounds(patience=NEVER, of_one=100, of_all=1000)):
                await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in mute[:20])), WAIT)
            assert not [c for c in clients if c._reader.at_eof()]
            for _, writer in mute:
                writer.transport.abort()
            await other.hears_nothing()


async def test_a_call_that_is_begun_and_never_made_ends_and_one_certificate_has_so_many() -> None:
    async with an_operator(message_wait=0.5) as operator:
        async with (
            a_channel(operator.port, credentials_of("a")) as mine,
            a_channel(operator.port, credentials_of("b")) as another,
        ):
            begin: Any = mine.stream_stream
            calls = [begin(RENEW)() for _ in range(2 * WAITED_FOR_OF_ONE_CERTIFICATE)]
            codes = await asyncio.wait_for(asyncio.gather(*(call.code() for call in calls)), WAIT)
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == WAITED_FOR_OF_ONE_CERTIFICATE
            assert codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == WAITED_FOR_OF_ONE_CERTIFICATE
            empty = begin(RENEW)()
            await empty.done_writing()
            assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await begin("/of/Nobody")().code() is grpc.StatusCode.UNIMPLEMENTED
            made: Any = rpc.RenewalStub(another)
            _, csr = new_key_and_csr()
            operator.reviewer.tokens["token-b"] = SandboxIdentity(namespace="team-a", sandbox="b", pod_uid="uid-b")
            assert (await made.Renew(pb.RenewRequest(csr_pem=csr), timeout=WAIT)).certificate_chain_pem
        await eventually(lambda: not operator.doors[0].calls)
        assert not operator.doors[0]._waited_for


# ------------------------------------------------------------------------------------------------- without one, at all

FLOODING: Final = [f"127.0.{n}.1" for n in range(1, 33)]


class Turnstile:
    """A reviewer that lets one pass at a time, and counts."""

    def __init__(self, operator: Operator) -> None:
        self._reviewer = operator.reviewer
        self.passes, self.reviewed = asyncio.Semaphore(0), list[str]()

    async def review(self, token: str, *, holder: Callable[[], str]) -> SandboxIdentity:
        await self.passes.acquire()
        self.reviewed.append(token)
        return await self._reviewer.review(token, holder=holder)


async def test_a_pod_enrols_after_one_turn_of_each_host_that_floods(tmp_path: Path) -> None:
    key, csr = new_key_and_csr()
    assert key
    async with an_operator() as operator, an_attacker(tmp_path) as attacker:
        operator.enrollment._reviewer = turnstile = Turnstile(operator)
        message = pb.EnrollRequest(csr_pem=csr, token="guess").SerializeToString()
        for host in FLOODING:
            client = await attacker.connect(operator.enrollment_port, host=host)
            for _ in range(WAITING // 20):
                client.make(ENROLL, message)
        turns = operator.enrollment._turns
        await eventually(lambda: len(turns._waiting) == WAITING)
        enrolling = asyncio.ensure_future(enroll(operator, csr, "token-a"))
        await eventually(lambda: any(w.owner.member == "127.0.0.1" for w in turns._waiting))
        while not enrolling.done():
            turnstile.passes.release()
            for client in attacker.clients:  # whoever had a turn comes again
                client.make(ENROLL, message)
            await asyncio.wait((enrolling,), timeout=0.01)
        assert (await enrolling).certificate_chain_pem
        assert turnstile.reviewed.index("token-a") <= len(FLOODING) + 16


async def test_a_pod_enrols_while_many_hosts_have_taken_all_connections(tmp_path: Path) -> None:
    _, csr = new_key_and_csr()
    full = (("grpc.max_allowed_incoming_connections", 160),)
    async with an_operator(options=full) as operator, an_attacker(tmp_path) as attacker:
        for host in FLOODING:
            await attacker.connect_often(operator.enrollment_port, 5, host=host)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await enroll(operator, csr, "token-a")
        async with operator.reaped(Bounds(patience=NEVER, of_one=100, of_all=64)):
            ends = [asyncio.ensure_future(client.end()) for client in attacker.clients]
            await eventually(lambda: sum(end.done() for end in ends) == 96)
            assert (await enroll(operator, csr, "token-a")).certificate_chain_pem
            for end in ends:
                end.cancel()


async def test_a_stream_is_no_connection_without_a_call(tmp_path: Path) -> None:
    """However many there are, and however often is looked."""
    async with an_operator() as operator, an_attacker(tmp_path, credentials_of("a")) as attacker:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            await attacker.connect_often(operator.port, 130)
            async with operator.reaped(Bounds(patience=NEVER, of_one=0, of_all=0)):
                await asyncio.gather(*(client.end() for client in attacker.clients))
                await supervisor.hears_nothing()
