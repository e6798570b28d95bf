"""No trust on first use: a false operator sees not one byte of a token and gives no policy.

Asserted at the false operator's side, by a TLS server that keeps whatever it can decrypt.
"""

import asyncio
import ssl
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import grpc
import pytest

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.spiffe import supervisor_id
from supervisor_middleware.supervisor.enrollment import Enroller, TokenRefused
from supervisor_middleware.supervisor.renewal import RenewalRefused, Renewer
from supervisor_middleware.supervisor.trust import TrustBundle
from tests.fakes.echo_generations import AUTHORITY, STRANGER
from tests.fakes.operator_server import FakeOperator
from tests.fakes.supervisor_control import a_supervisor, prepare_folder
from tests.integration.forgeries import by_a_twin_of
from tests.pki.builders import TRUST_DOMAIN, an_identity, supervisor_credentials
from tests.waiting import eventually

NOW: Final = datetime.now(UTC)
TOKEN: Final = "canary-token-0123456789"
OWNER: Final = str(supervisor_id(TRUST_DOMAIN, namespace="team-a", sandbox="coder"))
SHARED: Final = Authority(
    trust_domain="other.test", certificate=AUTHORITY.certificate, private_key=AUTHORITY.private_key
)

FALSE_OPERATORS: Final[Mapping[str, Callable[[], Credentials]]] = {
    "of its own CA, under the right name": lambda: STRANGER.issue_operator(namespace="system", now=NOW),
    "a supervisor": lambda: supervisor_credentials(AUTHORITY, identity=an_identity(sandbox="thief"), now=NOW),
    "a service": lambda: AUTHORITY.issue_server(dns_names=["service.team-a.svc"], now=NOW),
    "the operator of another trust domain": lambda: SHARED.issue_operator(namespace="system", now=NOW),
    "an operator of long ago": lambda: AUTHORITY.issue_operator(
        namespace="system", now=NOW - timedelta(hours=3), lifetime=timedelta(hours=1)
    ),
    "of a twin of our CA": lambda: by_a_twin_of(AUTHORITY, NOW),
}


class Recorder:
    """Whatever a client says once TLS has let it."""

    def __init__(self) -> None:
        self.port = 0
        self.heard = b""
        self.connections = 0


@asynccontextmanager
async def recording(folder: Path, credentials: Credentials | None) -> AsyncIterator[Recorder]:
    """A server that speaks TLS with `credentials`, or none at all, and writes down what it reads."""
    recorder = Recorder()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorder.connections += 1
        try:
            # What every HTTP/2 server says first: a client that waited for it would speak now.
            writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            while data := await reader.read(65_536):
                recorder.heard += data
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=_context(folder, credentials))
    recorder.port = server.sockets[0].getsockname()[1]
    try:
        yield recorder
    finally:
        server.close()
        await server.wait_closed()


def _context(folder: Path, credentials: Credentials | None) -> ssl.SSLContext | None:
    if credentials is None:
        return None
    write_credentials(folder / "server", credentials)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server" / "tls.crt", folder / "server" / "tls.key")
    context.set_alpn_protocols(["h2"])
    return context


def an_enroller(folder: Path, port: int) -> Enroller:
    (folder / "token").write_text(TOKEN)
    (folder / "trust.crt").write_bytes(AUTHORITY.certificate_pem)
    return Enroller(
        addresses=(f"127.0.0.1:{port}",),
        trust_domain=TRUST_DOMAIN,
        trust=TrustBundle(folder / "trust.crt"),
        owner=OWNER,
        token_file=folder / "token",
    )


async def test_the_recorder_hears_a_token_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor_middleware.supervisor.enrollment.ENROLL_TIMEOUT", 1.0)
    real = AUTHORITY.issue_operator(namespace="system", now=NOW)
    async with recording(tmp_path, real) as recorder:
        with pytest.raises(Unavailable):
            await an_enroller(tmp_path, recorder.port).enroll(attempt=0)
        assert TOKEN.encode() in recorder.heard


@pytest.mark.parametrize("which", FALSE_OPERATORS)
async def test_a_false_operator_sees_no_byte_of_a_token(tmp_path: Path, which: str) -> None:
    async with recording(tmp_path, FALSE_OPERATORS[which]()) as recorder:
        enroller = an_enroller(tmp_path, recorder.port)
        renewer = Renewer(addresses=enroller.addresses, trust_domain=TRUST_DOMAIN, trust=enroller.trust, owner=OWNER)
        with pytest.raises(Unavailable) as refused:
            await enroller.enroll(attempt=0)
        assert TOKEN not in str(refused.value)
        with pytest.raises(Unavailable):
            await renewer.renew(supervisor_credentials(AUTHORITY, now=NOW), attempt=0)
        assert recorder.heard == b""


async def test_a_server_without_tls_sees_no_byte_of_a_token(tmp_path: Path) -> None:
    async with recording(tmp_path, None) as recorder:
        with pytest.raises(Unavailable):
            await an_enroller(tmp_path, recorder.port).enroll(attempt=0)
        assert recorder.connections > 0
        assert TOKEN.encode() not in recorder.heard
        assert b"HTTP/2" not in recorder.heard


@pytest.mark.parametrize("which", FALSE_OPERATORS)
async def test_a_false_operator_gives_no_policy_and_no_trust(tmp_path: Path, which: str) -> None:
    async with FakeOperator.serving(AUTHORITY, an_identity()) as real:
        prepare_folder(tmp_path, real)
        false = FakeOperator.serving(AUTHORITY, an_identity(), credentials=FALSE_OPERATORS[which]())
        async with false as impostor:
            await impostor.offer(Generation())
            impostor.enrollment_addresses = real.enrollment_addresses
            async with a_supervisor(tmp_path, impostor) as supervisor:
                await eventually(lambda: supervisor.identity.credentials.value is not None)
                await asyncio.sleep(0.3)
                assert (impostor.hellos, impostor.renewals, impostor.tokens) == ([], [], [])
                assert supervisor.runtime.pin() is None
        assert (tmp_path / "bundle.pem").read_bytes() == AUTHORITY.certificate_pem


async def test_whatever_is_raised_shows_neither_token_nor_key_even_with_every_variable(tmp_path: Path) -> None:
    async with FakeOperator.serving(AUTHORITY, an_identity()) as operator:
        enroller = an_enroller(tmp_path, int(operator.enrollment_addresses[0].rpartition(":")[2]))
        with pytest.raises(TokenRefused) as refused:
            await enroller.enroll(attempt=0)
        operator.renewal_refusal = grpc.StatusCode.UNAUTHENTICATED
        client = supervisor_credentials(AUTHORITY, now=NOW)
        renewer = Renewer(addresses=operator.addresses, trust_domain=TRUST_DOMAIN, trust=enroller.trust, owner=OWNER)
        with pytest.raises(RenewalRefused) as not_renewed:
            await renewer.renew(client, attempt=0)
    for raised in (refused.value, not_renewed.value):
        error: BaseException | None = raised
        while error is not None:
            shown = "".join(
                traceback.TracebackException.from_exception(error, capture_locals=True).format(chain=False)
            )
            ours = [line for line in shown.splitlines() if "self = <grpc" not in line]
            assert TOKEN not in "\n".join(ours)
            assert "PRIVATE KEY" not in shown
            error = error.__cause__ or error.__context__
    assert operator.tokens == [TOKEN]
    assert TOKEN not in repr(enroller)
    assert "PRIVATE KEY" not in repr(client)
