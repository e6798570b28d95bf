"""Mutual TLS of the SDK's server: who is let in, who the author learns it is, and certificates that change."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import pytest
import trustme

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware import (
    Caller,
    Evaluation,
    Middleware,
    Result,
    ServerTls,
    TlsFiles,
    any_caller,
    chosen,
    current_caller,
    http_binding,
    http_manifest,
    is_operator,
    members_of,
    sandbox_of,
    serve,
)
from supervisor_middleware.middleware.tls import CallerRule, TlsSource
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.secret import SecretBytes
from tests.middleware.builders import ALLOW, BINDING, an_evaluation, evaluate, tls_server
from tests.pki.builders import TRUST_DOMAIN, an_authority, an_identity, supervisor_credentials

NOW: Final = datetime.now(UTC)
AUTHORITY: Final = an_authority(now=NOW - timedelta(days=30))
STRANGER: Final = an_authority(now=NOW - timedelta(days=30))
SUPERVISOR: Final = supervisor_credentials(AUTHORITY, now=NOW)
SUPERVISOR_ID: Final = f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/coder"


class WhoAsks(Middleware):
    """Keeps who called."""

    manifest = http_manifest(http_binding(BINDING), name="who", version="1")

    def __init__(self) -> None:
        self.callers: list[str | None] = []

    async def evaluate(self, evaluation: Evaluation) -> Result:
        self.callers.append(current_caller().spiffe_id)
        return ALLOW


def server_credentials(authority: Authority = AUTHORITY) -> Credentials:
    return authority.issue_server(ip_addresses=[ip_address("127.0.0.1")], now=NOW)


def server_tls(server: Credentials, *, client_ca: bytes | None = AUTHORITY.certificate_pem) -> ServerTls:
    return ServerTls(
        certificate_chain_pem=server.certificate_chain_pem,
        private_key_pem=server.private_key_pem,
        client_ca_pem=client_ca,
    )


@asynccontextmanager
async def connected(
    port: int, client: Credentials | None, *, roots: bytes = AUTHORITY.certificate_pem
) -> AsyncIterator[grpc.aio.Channel]:
    credentials = grpc.ssl_channel_credentials(
        roots,
        private_key=None if client is None else client.private_key_pem.reveal(),
        certificate_chain=None if client is None else client.certificate_chain_pem,
    )
    # Every channel makes a handshake of its own.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        yield channel


async def outcome(
    port: int, client: Credentials | None, *, roots: bytes = AUTHORITY.certificate_pem
) -> grpc.StatusCode:
    async with connected(port, client, roots=roots) as channel:
        try:
            await evaluate(channel, an_evaluation())
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def outcome_with(
    client: Credentials | None, *, tls: ServerTls | TlsSource, rule: CallerRule | None = None
) -> grpc.StatusCode:
    async with tls_server(WhoAsks(), tls=tls, rule=rule) as port:
        return await outcome(port, client)


async def test_the_author_learns_the_callers_spiffe_id() -> None:
    service = WhoAsks()
    async with tls_server(service, tls=server_tls(server_credentials())) as port:
        assert await outcome(port, SUPERVISOR) is grpc.StatusCode.OK
        assert await outcome(port, AUTHORITY.issue_operator(namespace="system", now=NOW)) is grpc.StatusCode.OK
    assert service.callers == [SUPERVISOR_ID, f"spiffe://{TRUST_DOMAIN}/ns/system/operator"]


async def test_nobody_gets_in_without_a_client_certificate() -> None:
    assert await outcome_with(None, tls=server_tls(server_credentials())) is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_authority_is_refused() -> None:
    foreign = supervisor_credentials(STRANGER, now=NOW)
    assert await outcome_with(foreign, tls=server_tls(server_credentials())) is grpc.StatusCode.UNAVAILABLE


async def test_the_callers_roots_decide_whether_it_trusts_us() -> None:
    async with tls_server(WhoAsks(), tls=server_tls(server_credentials())) as port:
        assert await outcome(port, SUPERVISOR, roots=STRANGER.certificate_pem) is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_without_a_spiffe_id_is_refused_by_default_only() -> None:
    shared = trustme.CA()
    leaf = shared.issue_cert("client.example")
    client = Credentials(
        certificate_chain_pem=b"".join(pem.bytes() for pem in leaf.cert_chain_pems),
        private_key_pem=SecretBytes(leaf.private_key_pem.bytes()),
        trust_bundle_pem=AUTHORITY.certificate_pem,
    )
    tls = server_tls(server_credentials(), client_ca=shared.cert_pem.bytes())
    assert await outcome_with(client, tls=tls) is grpc.StatusCode.PERMISSION_DENIED
    assert await outcome_with(client, tls=tls, rule=any_caller) is grpc.StatusCode.OK


async def test_a_rule_can_ask_for_one_trust_domain() -> None:
    tls = server_tls(server_credentials())
    assert await outcome_with(SUPERVISOR, tls=tls, rule=members_of(TRUST_DOMAIN)) is grpc.StatusCode.OK
    assert await outcome_with(SUPERVISOR, tls=tls, rule=members_of("other.test")) is grpc.StatusCode.PERMISSION_DENIED


async def test_a_service_admits_only_the_sandboxes_it_chooses_and_the_operator() -> None:
    tls = server_tls(server_credentials())
    other = supervisor_credentials(AUTHORITY, identity=an_identity(sandbox="other"), now=NOW)
    elsewhere = supervisor_credentials(AUTHORITY, identity=an_identity(namespace="team-b"), now=NOW)
    operator = AUTHORITY.issue_operator(namespace="system", now=NOW)
    for rule, expected in (
        (chosen(TRUST_DOMAIN, sandboxes={"team-a/coder"}), [True, False, False, True]),
        (chosen(TRUST_DOMAIN, namespaces={"team-a"}), [True, True, False, True]),
        (chosen(TRUST_DOMAIN), [False, False, False, True]),
        (chosen("other.test", namespaces={"team-a", "team-b"}), [False] * 4),
    ):
        async with tls_server(WhoAsks(), tls=tls, rule=rule) as port:
            codes = [await outcome(port, client) for client in (SUPERVISOR, other, elsewhere, operator)]
        assert [code is grpc.StatusCode.OK for code in codes] == expected
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED}


async def test_a_choice_outlives_the_certificate_it_was_made_for_and_a_change_of_the_ca(tmp_path: Path) -> None:
    both = AUTHORITY.certificate_pem + STRANGER.certificate_pem
    write(tmp_path, server_credentials(), client_ca=AUTHORITY.certificate_pem)
    files = TlsFiles(directory=tmp_path, client_ca=tmp_path / "clients.pem")
    service = WhoAsks()
    async with tls_server(service, tls=files, rule=chosen(TRUST_DOMAIN, sandboxes={"team-a/coder"})) as port:
        assert await outcome(port, SUPERVISOR) is grpc.StatusCode.OK
        renewed = supervisor_credentials(AUTHORITY, now=NOW)
        assert await outcome(port, renewed) is grpc.StatusCode.OK
        (tmp_path / "clients.pem").write_bytes(both)
        of_the_next_root = supervisor_credentials(STRANGER, now=NOW)
        assert await outcome(port, of_the_next_root) is grpc.StatusCode.OK
        assert await outcome(port, renewed) is grpc.StatusCode.OK
        (tmp_path / "clients.pem").write_bytes(STRANGER.certificate_pem)
        assert await outcome(port, renewed) is grpc.StatusCode.UNAVAILABLE
        thief = supervisor_credentials(STRANGER, identity=an_identity(sandbox="thief"), now=NOW)
        assert await outcome(port, thief) is grpc.StatusCode.PERMISSION_DENIED
    assert service.callers == [SUPERVISOR_ID] * 4


@pytest.mark.parametrize(
    ("spiffe_id", "sandbox", "is_the_operator"),
    [
        (SUPERVISOR_ID, "team-a/coder", False),
        (f"spiffe://{TRUST_DOMAIN}/ns/system/operator", None, True),
        # A sandbox of that name is no operator, and an operator no sandbox.
        (f"spiffe://{TRUST_DOMAIN}/ns/system/sandbox/operator", "system/operator", False),
        (f"spiffe://{TRUST_DOMAIN}/ns/sandbox/operator", None, True),
        (f"spiffe://{TRUST_DOMAIN}", None, False),
        (f"spiffe://{TRUST_DOMAIN}/ns/a/sandbox/b/c", None, False),
        ("https://example.test/ns/a/sandbox/b", None, False),
        (None, None, False),
    ],
)
def test_callers_are_told_apart_by_their_whole_name(
    *, spiffe_id: str | None, sandbox: str | None, is_the_operator: bool
) -> None:
    caller = Caller(spiffe_id=spiffe_id)
    assert (sandbox_of(caller), is_operator(caller)) == (sandbox, is_the_operator)


async def test_without_a_client_authority_callers_are_anonymous() -> None:
    service = WhoAsks()
    async with tls_server(service, tls=server_tls(server_credentials(), client_ca=None)) as port:
        assert await outcome(port, None) is grpc.StatusCode.OK
    assert service.callers == [None]


def write(directory: Path, server: Credentials, *, client_ca: bytes) -> None:
    (directory / "tls.crt").write_bytes(server.certificate_chain_pem)
    (directory / "tls.key").write_bytes(server.private_key_pem.reveal())
    (directory / "clients.pem").write_bytes(client_ca)


async def test_certificates_change_without_a_restart(tmp_path: Path) -> None:
    write(tmp_path, server_credentials(), client_ca=AUTHORITY.certificate_pem)
    files = TlsFiles(directory=tmp_path, client_ca=tmp_path / "clients.pem")
    foreign = supervisor_credentials(STRANGER, now=NOW)
    async with tls_server(WhoAsks(), tls=files) as port, connected(port, SUPERVISOR) as old:
        await evaluate(old, an_evaluation())
        assert await outcome(port, foreign, roots=STRANGER.certificate_pem) is grpc.StatusCode.UNAVAILABLE
        write(tmp_path, server_credentials(STRANGER), client_ca=STRANGER.certificate_pem)
        assert await outcome(port, foreign, roots=STRANGER.certificate_pem) is grpc.StatusCode.OK
        assert await outcome(port, SUPERVISOR, roots=STRANGER.certificate_pem) is grpc.StatusCode.UNAVAILABLE
        await evaluate(old, an_evaluation())  # established connections stay


@pytest.mark.parametrize(
    "broken", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA", server_credentials().certificate_chain_pem]
)
async def test_broken_files_keep_the_last_good_ones(
    tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, server_credentials(), client_ca=AUTHORITY.certificate_pem)
    files = TlsFiles(directory=tmp_path, client_ca=tmp_path / "clients.pem")
    async with tls_server(WhoAsks(), tls=files) as port:
        (tmp_path / "tls.crt").write_bytes(broken)
        assert await outcome(port, SUPERVISOR) is grpc.StatusCode.OK
        assert "the last good ones stay" in caplog.text
        (tmp_path / "tls.key").unlink()
        assert await outcome(port, SUPERVISOR) is grpc.StatusCode.OK


async def test_requiring_certificates_cannot_be_lost_at_a_reload() -> None:
    given = [server_tls(server_credentials())]
    async with tls_server(WhoAsks(), tls=lambda: given[0]) as port:
        given[0] = replace(given[0], client_ca_pem=None)
        assert await outcome(port, None) is grpc.StatusCode.UNAVAILABLE
        assert await outcome(port, SUPERVISOR) is grpc.StatusCode.OK


async def test_bad_material_is_refused_at_the_start(tmp_path: Path) -> None:
    mine, other = server_credentials(), server_credentials()
    with pytest.raises(InvalidInput, match="belongs to another certificate"):
        ServerTls(certificate_chain_pem=mine.certificate_chain_pem, private_key_pem=other.private_key_pem)
    with pytest.raises(OSError, match=r"tls\.crt"):
        await serve(WhoAsks(), address="127.0.0.1:0", tls=TlsFiles(directory=tmp_path))
    assert "PRIVATE KEY" not in repr(server_tls(mine))
