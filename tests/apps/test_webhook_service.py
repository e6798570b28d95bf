"""What surrounds the webhook in a replica: the test that it is asked, and who completes a handshake."""

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.apps.webhook_certificate import load_into
from supervisor_middleware.apps.webhook_service import (
    SELF_TEST_INTERVAL,
    keep_client_ca,
    keep_testing,
    server_context,
)
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.telemetry import ControlMetrics


async def test_the_self_test_tells_in_metrics_always_and_in_the_log_when_it_changes() -> None:
    outcomes = [None, None, "nobody asks", "nobody asks", "somebody else refused", None]
    metrics, slept, seen = ControlMetrics(), list[float](), list[float]()

    async def problem() -> str | None:
        return outcomes[len(seen)]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 1:
            seen.append(metrics.webhook_selftest._value.get())
        if len(seen) == len(outcomes):
            raise KeyboardInterrupt

    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        await keep_testing(problem, metrics, sleep=sleep)
    assert seen == [1, 1, 0, 0, 0, 1]
    assert set(slept[1:]) == {SELF_TEST_INTERVAL}
    assert [log.get("problem") for log in logs] == [None, "nobody asks", "somebody else refused", None]
    assert metrics.webhook_selftest_at._value.get() > 0


def test_a_client_ca_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    for name in ("ca.crt", "absent.crt"):
        with pytest.raises(InvalidInput, match=f"{name}: no PEM certificates there \\(SMW_WEBHOOK_CLIENT_CA\\)"):
            server_context(tmp_path / name)


async def test_a_client_ca_that_is_added_is_believed_without_a_restart(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first, second = (Authority.create(trust_domain=f"{n}.example", now=now) for n in ("first", "second"))
    path, served = tmp_path / "ca.crt", first.issue_server(dns_names=("webhook",), now=now)
    path.write_bytes(first.certificate_pem)
    tls = server_context(path)
    load_into(tls, served.certificate_chain_pem, served.private_key_pem)
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            path.write_text("half of")
        if looks == 4:
            assert await _is_heard(tls, first, trusting=first)
            assert not await _is_heard(tls, second, trusting=first)
            path.write_bytes(first.certificate_pem + second.certificate_pem)
        if looks == 6:
            raise KeyboardInterrupt

    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        await keep_client_ca(tls, path, sleep=sleep)
    assert await _is_heard(tls, first, trusting=first)
    assert await _is_heard(tls, second, trusting=first)
    assert [log["event"] for log in logs] == [
        "the CA of webhook clients cannot be read again",
        "the CA of webhook clients was read again",
    ]


async def _is_heard(tls: ssl.SSLContext, client: Authority, *, trusting: Authority) -> bool:
    """Whether one with a certificate of `client` gets an answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(5))
        writer.close()

    issued = client.issue_operator(namespace="system", now=datetime.now(UTC))
    ours = ssl.create_default_context(cadata=trusting.certificate_pem.decode())
    load_into(ours, issued.certificate_chain_pem, issued.private_key_pem)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ours, server_hostname="webhook")
            writer.write(b"hello")
            heard = await reader.read(5)
        except (ssl.SSLError, ConnectionError):
            return False
        writer.close()
        return heard == b"hello"
