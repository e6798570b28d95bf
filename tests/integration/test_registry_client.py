"""`Describe` and `ValidateConfig` over real connections: every answer, and every way of not getting one."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from supervisor_middleware.middleware import Dialect, ServerTls, serve
from supervisor_middleware.middleware.terms import Terms
from supervisor_middleware.model.limits import MAX_GRPC_MESSAGE_BYTES
from supervisor_middleware.model.manifest import Operation, Phase
from supervisor_middleware.model.registration import ClientAuthentication, Connection
from supervisor_middleware.model.verdict import (
    Accepted,
    Described,
    Description,
    Outage,
    Rejected,
    Undescribable,
    Unreachable,
    Verdict,
)
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.registry.client import RegistryClient
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.channels import ClientIdentity
from supervisor_middleware.wire.codec import SERVICE, encode_manifest, encode_verdict
from tests.builders import a_binding, a_connection, a_manifest
from tests.pki.builders import an_authority
from tests.waiting import eventually

NOW: Final = datetime.now(UTC)
AUTHORITY: Final = an_authority(now=NOW)
STRANGER: Final = an_authority(now=NOW)
SERVER: Final = AUTHORITY.issue_server(dns_names=["terms.acme.svc"], ip_addresses=[ip_address("127.0.0.1")], now=NOW)
OPERATOR: Final = AUTHORITY.issue_operator(namespace="system", now=NOW)
GOOD: Final = {"terms": ["canary"], "action": "redact"}
SECOND: Final = timedelta(seconds=1)

Answer = Callable[[bytes, Any], Awaitable[bytes]]


def identity_of(credentials: Credentials) -> ClientIdentity:
    return ClientIdentity(
        certificate_chain_pem=credentials.certificate_chain_pem,
        private_key_pem=credentials.private_key_pem.reveal(),
    )


@asynccontextmanager
async def a_client(*, current: Callable[[], Credentials] = lambda: OPERATOR) -> AsyncIterator[RegistryClient]:
    client = RegistryClient(lambda: identity_of(current()))
    try:
        yield client
    finally:
        await client.close()


def to(
    port: int, *, scheme: str = "https", roots: Authority = AUTHORITY, server_name: str = "", **fields: Any
) -> Connection:
    return a_connection(
        f"{scheme}://127.0.0.1:{port}",
        ca_bundle_pem=roots.certificate_pem.decode() if scheme == "https" else "",
        server_name=server_name,
        **{"timeout": timedelta(seconds=3), **fields},
    )


@asynccontextmanager
async def terms(
    *,
    dialect: Dialect = Dialect.RFC0009,
    client_ca: Authority | None = AUTHORITY,
    is_plain: bool = False,
    credentials: Credentials = SERVER,
) -> AsyncIterator[int]:
    """A real service made with the SDK."""
    tls = ServerTls(
        certificate_chain_pem=credentials.certificate_chain_pem,
        private_key_pem=credentials.private_key_pem,
        client_ca_pem=None if client_ca is None else client_ca.certificate_pem,
    )
    server = await serve(Terms(dialect=dialect), address="127.0.0.1:0", tls=None if is_plain else tls)
    try:
        yield server.port
    finally:
        await server.stop(0)


@asynccontextmanager
async def hostile(answer: Answer) -> AsyncIterator[int]:
    """A service in plaintext that answers every method with whatever `answer` makes."""
    server = grpc.aio.server(options=(("grpc.max_send_message_length", 2 * MAX_GRPC_MESSAGE_BYTES),))
    methods = {name: grpc.unary_unary_rpc_method_handler(answer) for name in ("Describe", "ValidateConfig")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def saying(data: bytes) -> Answer:
    async def answer(_: bytes, __: Any) -> bytes:
        return data

    return answer


def failing(code: grpc.StatusCode, details: str = "canary") -> Answer:
    async def answer(_: bytes, context: Any) -> bytes:
        await context.abort(code, details)
        raise AssertionError

    return answer


async def describe(connection: Connection) -> Description:
    async with a_client() as client:
        return await client.describe(connection, registration_name="acme")


async def validate(
    connection: Connection,
    config: Any = GOOD,
    *,
    dialect: Dialect = Dialect.RFC0009,
    deadline: timedelta = timedelta(seconds=3),
) -> Verdict:
    async with a_client() as client:
        return await client.validate_config(
            connection, dialect=dialect, binding="acme/terms", config=config, deadline=deadline
        )


# ------------------------------------------------------------------------------------------------------------ answers


async def test_a_service_of_the_rfc_is_described() -> None:
    async with terms() as port:
        description = await describe(to(port))
    assert isinstance(description, Described)
    assert description.manifest.dialect is Dialect.RFC0009
    assert [b.id for b in description.manifest.bindings] == ["acme/terms"]


async def test_a_released_service_gets_its_registrations_name_for_a_binding() -> None:
    async with terms(dialect=Dialect.RELEASED) as port:
        description = await describe(to(port))
    assert isinstance(description, Described)
    assert description.manifest.dialect is Dialect.RELEASED
    (binding,) = description.manifest.bindings
    assert (binding.id, binding.operation, binding.phase) == (
        "acme",
        Operation.HTTP_REQUEST,
        Phase.PRE_CREDENTIALS,
    )


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_a_config_is_accepted_or_rejected_with_a_reason(dialect: Dialect) -> None:
    async with terms(dialect=dialect) as port:
        assert await validate(to(port), dialect=dialect) == Accepted()
        verdict = await validate(to(port), {"terms": [], "action": "redact"}, dialect=dialect)
    assert isinstance(verdict, Rejected)
    assert verdict.reason.startswith("terms must be")


async def test_a_reason_is_cut_and_cleaned() -> None:
    said = Rejected("line\none\x1b[31m " + "x" * 1000)
    async with hostile(saying(encode_verdict(Dialect.RFC0009, said))) as port:
        verdict = await validate(to(port, scheme="http"))
    assert isinstance(verdict, Rejected)
    assert verdict.reason.startswith("line one [31m xxx")
    assert len(verdict.reason) == 160


async def test_plaintext_is_spoken_where_the_registration_says_so() -> None:
    async with terms(is_plain=True) as port:
        assert isinstance(await describe(to(port, scheme="http")), Described)


async def test_a_server_name_is_verified_in_place_of_the_host() -> None:
    async with terms() as port:
        assert isinstance(await describe(to(port, server_name="terms.acme.svc")), Described)


# ------------------------------------------------------------------------------------------------------------- outages


async def test_nobody_listens() -> None:
    async with terms() as port:
        pass
    assert await describe(to(port)) == Unreachable(Outage.CONNECTION_FAILED)
    assert await validate(to(port)) == Unreachable(Outage.CONNECTION_FAILED)


async def test_a_name_that_does_not_resolve_is_a_failed_connection() -> None:
    connection = a_connection("https://nowhere.invalid:443", timeout=timedelta(seconds=3))
    assert await describe(connection) in {
        Unreachable(Outage.CONNECTION_FAILED),
        Unreachable(Outage.DEADLINE_EXCEEDED),
    }


async def test_a_service_that_takes_too_long() -> None:
    async def answer(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with hostile(answer) as port:
        began = time.monotonic()
        connection = to(port, scheme="http", timeout=timedelta(seconds=0.1))
        assert await describe(connection) == Unreachable(Outage.DEADLINE_EXCEEDED)
        verdict = await validate(connection, deadline=timedelta(seconds=0.1))
        assert verdict == Unreachable(Outage.DEADLINE_EXCEEDED)
        assert time.monotonic() - began < 2


async def test_a_peer_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        for scheme in ("https", "http"):
            connection = to(port, scheme=scheme, timeout=timedelta(seconds=0.2))
            assert await describe(connection) == Unreachable(Outage.DEADLINE_EXCEEDED)


@pytest.mark.parametrize(
    ("roots", "server_name"),
    [(STRANGER, ""), (AUTHORITY, "other.acme.svc")],
    ids=["another CA", "another server name"],
)
async def test_a_certificate_that_cannot_be_verified(roots: Authority, server_name: str) -> None:
    async with terms() as port:
        connection = to(port, roots=roots, server_name=server_name)
        assert await describe(connection) == Unreachable(Outage.TLS_VERIFICATION_FAILED)
        assert await validate(connection) == Unreachable(Outage.TLS_VERIFICATION_FAILED)


async def test_an_expired_certificate() -> None:
    old = NOW - timedelta(days=30)
    authority = an_authority(now=old)
    expired = authority.issue_server(ip_addresses=[ip_address("127.0.0.1")], now=old)
    async with terms(credentials=expired, client_ca=None) as port:
        assert await describe(to(port, roots=authority)) == Unreachable(Outage.TLS_VERIFICATION_FAILED)


async def test_a_server_that_speaks_no_tls() -> None:
    async with terms(is_plain=True) as port:
        assert await describe(to(port)) in {
            Unreachable(Outage.TLS_VERIFICATION_FAILED),
            Unreachable(Outage.CONNECTION_FAILED),
        }


async def test_a_service_whose_client_ca_is_another_refuses_us() -> None:
    async with terms(client_ca=STRANGER) as port:
        for _ in range(5):
            assert await describe(to(port)) == Unreachable(Outage.CLOSED_AFTER_HANDSHAKE)


async def test_a_service_that_wants_a_certificate_where_none_is_to_be_shown() -> None:
    async with terms() as port:
        connection = to(port, client_authentication=ClientAuthentication.NONE)
        for _ in range(5):
            assert await describe(connection) == Unreachable(Outage.CLOSED_AFTER_HANDSHAKE)


@pytest.mark.parametrize(
    ("code", "outage"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, Outage.NOT_IMPLEMENTED),
        (grpc.StatusCode.PERMISSION_DENIED, Outage.CREDENTIALS_REFUSED),
        (grpc.StatusCode.UNAUTHENTICATED, Outage.CREDENTIALS_REFUSED),
        (grpc.StatusCode.UNAVAILABLE, Outage.CONNECTION_FAILED),
        (grpc.StatusCode.INTERNAL, Outage.CALL_FAILED),
        (grpc.StatusCode.INVALID_ARGUMENT, Outage.CALL_FAILED),
        (grpc.StatusCode.CANCELLED, Outage.CALL_FAILED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Outage.CALL_FAILED),
        (grpc.StatusCode.UNKNOWN, Outage.CALL_FAILED),
    ],
)
async def test_a_status_is_told_in_our_own_words(code: grpc.StatusCode, outage: Outage) -> None:
    async with hostile(failing(code)) as port:
        assert await describe(to(port, scheme="http")) == Unreachable(outage)
        assert await validate(to(port, scheme="http")) == Unreachable(outage)


# ------------------------------------------------------------------------------------------------------ hostile answers


@pytest.mark.parametrize("data", [b"\xff" * 64, b"\x0a\xff", b""], ids=["garbage", "cut", "nothing"])
async def test_garbage_is_no_manifest(data: bytes) -> None:
    async with hostile(saying(data)) as port:
        description = await describe(to(port, scheme="http"))
    assert isinstance(description, Undescribable | Described)
    if isinstance(description, Described):
        assert description.manifest.bindings == ()


async def test_garbage_is_no_verdict() -> None:
    async with hostile(saying(b"\xff" * 64)) as port:
        assert await validate(to(port, scheme="http")) == Unreachable(Outage.CALL_FAILED)


async def test_a_manifest_larger_than_any_is_not_read() -> None:
    many = a_manifest(*(a_binding(f"acme/{'x' * 100}{n}") for n in range(1000)))
    async with hostile(saying(encode_manifest(many))) as port:
        assert isinstance(await describe(to(port, scheme="http")), Undescribable)


async def test_an_answer_over_the_message_limit_is_told_apart() -> None:
    async with hostile(saying(b"x" * (MAX_GRPC_MESSAGE_BYTES + 1))) as port:
        assert await describe(to(port, scheme="http")) == Unreachable(Outage.ANSWER_OVER_LIMIT)


# ------------------------------------------------------------------------------------------------------------ channels


async def test_a_channel_is_kept_and_rebuilt_when_our_certificate_changes() -> None:
    current = OPERATOR
    peers = set()

    async def answer(_: bytes, context: Any) -> bytes:
        peers.add(context.peer())
        return encode_manifest(a_manifest())

    async with hostile(answer) as port, a_client(current=lambda: current) as client:
        connection = to(port, scheme="http")
        for _ in range(3):
            assert isinstance(await client.describe(connection, registration_name="acme"), Described)
        assert len(peers) == 1
        current = AUTHORITY.issue_operator(namespace="system", now=NOW)
        assert isinstance(await client.describe(connection, registration_name="acme"), Described)
        assert len(peers) == 2


async def test_a_call_under_way_ends_on_the_certificate_it_began_with() -> None:
    current, is_asked, may_answer = OPERATOR, asyncio.Event(), asyncio.Event()

    async def answer(_: bytes, __: Any) -> bytes:
        if not is_asked.is_set():
            is_asked.set()
            await may_answer.wait()
        return encode_manifest(a_manifest())

    async with hostile(answer) as port, a_client(current=lambda: current) as client:
        connection = to(port, scheme="http")
        first = asyncio.create_task(client.describe(connection, registration_name="acme"))
        await is_asked.wait()
        current = AUTHORITY.issue_operator(namespace="system", now=NOW)
        assert isinstance(await client.describe(connection, registration_name="acme"), Described)
        client.forget(frozenset())
        assert not client._channels
        await asyncio.sleep(0.05)
        assert not first.done()
        may_answer.set()
        assert isinstance(await first, Described)
        await until_drained(client)


async def until_drained(client: RegistryClient) -> None:
    async with asyncio.timeout(3):
        while client._draining:  # noqa: ASYNC110 - tasks of the client's own
            await asyncio.sleep(0.005)


async def test_forget_leaves_what_is_needed_and_nothing_else() -> None:
    async with terms() as one, terms() as two, a_client() as client:
        for port in (one, two):
            await client.describe(to(port), registration_name="acme")
        client.forget(frozenset({to(one)}))
        assert set(client._channels) == {to(one)}
        assert set(client._permits) == {to(one).endpoint}
        await until_drained(client)
        assert isinstance(await client.describe(to(two), registration_name="acme"), Described)


async def test_a_connection_that_ends_is_told_of_and_one_that_we_end_is_not() -> None:
    lost = list[Connection]()
    async with a_client() as client:
        client.lost = lost.append
        async with hostile(saying(encode_manifest(a_manifest()))) as port:
            gone = to(port, scheme="http")
            assert isinstance(await client.describe(gone, registration_name="acme"), Described)
        await eventually(lambda: lost == [gone])
        # It was no connection yet: that nobody listens is the call's own answer.
        assert isinstance(await client.describe(gone, registration_name="acme"), Unreachable)
        async with hostile(saying(encode_manifest(a_manifest()))) as port:
            forgotten, closed = to(port, scheme="http"), to(port, scheme="http", timeout=SECOND)
            for connection in (forgotten, closed):
                assert isinstance(await client.describe(connection, registration_name="acme"), Described)
            client.forget(frozenset({closed}))
            await until_drained(client)
            await client.close()
            await eventually(lambda: not client._watches)
    assert lost == [gone]


async def test_close_ends_calls_under_way_and_leaves_no_task() -> None:
    is_asked = asyncio.Event()

    async def answer(_: bytes, __: Any) -> bytes:
        is_asked.set()
        await asyncio.sleep(60)
        return b""

    async with hostile(answer) as port:
        client = RegistryClient(lambda: None)
        connection = to(port, scheme="http")
        calls = [asyncio.create_task(client.describe(connection, registration_name="acme")) for _ in range(2)]
        await is_asked.wait()
        client.forget(frozenset())
        await client.close()
        async with asyncio.timeout(2):
            assert await asyncio.gather(*calls) == [Unreachable(Outage.CALL_FAILED)] * 2
        assert not client._draining
        await client.close()


async def test_a_service_is_asked_eight_questions_at_a_time() -> None:
    now = most = 0

    async def answer(_: bytes, __: Any) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return encode_manifest(a_manifest())

    async with hostile(answer) as port, a_client() as client:
        connection = to(port, scheme="http")
        await asyncio.gather(*(client.describe(connection, registration_name="acme") for _ in range(40)))
    assert most == 8


async def test_waiting_for_a_turn_counts_against_the_deadline() -> None:
    async def answer(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(0.2)
        return encode_manifest(a_manifest())

    async with hostile(answer) as port, a_client() as client:
        connection = to(port, scheme="http", timeout=timedelta(seconds=0.3))
        calls = (client.describe(connection, registration_name="acme") for _ in range(20))
        answers = await asyncio.gather(*calls)
    assert answers.count(Unreachable(Outage.DEADLINE_EXCEEDED)) == 12


async def test_outcomes_are_counted() -> None:
    metrics = ControlMetrics()
    client = RegistryClient(lambda: identity_of(OPERATOR), metrics=metrics)
    async with terms() as port:
        await client.describe(to(port), registration_name="acme")
        await client.describe(to(port, roots=STRANGER), registration_name="acme")
        for config in (GOOD, {}):
            await client.validate_config(
                to(port), dialect=Dialect.RFC0009, binding="acme/terms", config=config, deadline=SECOND
            )
    async with hostile(saying(b"\xff" * 64)) as port:
        await client.describe(to(port, scheme="http"), registration_name="acme")
    await client.close()
    text = metrics.render().decode()
    for line in (
        'describe_total{outcome="described"} 1.0',
        'describe_total{outcome="tls_verification_failed"} 1.0',
        'describe_total{outcome="undescribable"} 1.0',
        'validate_config_duration_seconds_count{outcome="accepted"} 1.0',
        'validate_config_duration_seconds_count{outcome="rejected"} 1.0',
    ):
        assert line in text


async def test_two_timeouts_of_one_endpoint_are_two_connections() -> None:
    async with terms() as port, a_client() as client:
        for connection in (to(port), replace(to(port), timeout=timedelta(seconds=4))):
            assert isinstance(await client.describe(connection, registration_name="acme"), Described)
        assert len(client._channels) == 2
