"""What surrounds the webhook in a replica: the test that it is asked, and who completes a handshake."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.apps.webhook_service import SELF_TEST_INTERVAL, keep_testing, server_context
from supervisor_middleware.errors import InvalidInput
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
