"""Settings as an administrator gives them, and the end of a long-lived command."""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor_middleware.cli.running import settings_of
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.settings import OperatorSettings, StandaloneSettings, SupervisorSettings
from tests.cli.commands import in_a_process

RUN = """
import asyncio
from supervisor_middleware.cli.running import run_until_stopped
from supervisor_middleware.errors import Unavailable

async def work():
{body}

run_until_stopped(work(), log_level="INFO")
"""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("SMW_")]:
        monkeypatch.delenv(name)


def test_a_flag_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(StandaloneSettings, state=None).state == Path(".state/standalone")
    monkeypatch.setenv("SMW_STATE", "/var/lib/smw")
    assert settings_of(StandaloneSettings, state=None).state == Path("/var/lib/smw")
    assert settings_of(StandaloneSettings, state=Path("here")).state == Path("here")


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMW_AUDIT_FILE", "")
    monkeypatch.setenv("SMW_DISCOVERY_PORT", "")
    settings = settings_of(StandaloneSettings)
    assert (settings.audit_file, settings.discovery_port) == (None, 8444)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", timedelta(days=1)),
        ("168h", timedelta(days=7)),
        ("90s", timedelta(seconds=90)),
        ("PT24H", timedelta(days=1)),
        ("01:00:00", timedelta(hours=1)),
    ],
)
def test_durations_are_spelled_as_everywhere(monkeypatch: pytest.MonkeyPatch, text: str, expected: timedelta) -> None:
    monkeypatch.setenv("SMW_LEAF_LIFETIME", text)
    assert settings_of(StandaloneSettings).leaf_lifetime == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", ("a",)), ("a, b,", ("a", "b")), ('["a", "b"]', ("a", "b")), (' ["10.0.0.1"]', ("10.0.0.1",))],
)
def test_lists_are_commas_or_json(monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[str, ...]) -> None:
    monkeypatch.setenv("SMW_OPERATORS", text)
    monkeypatch.setenv("SMW_WEBHOOK_NAMES", text)
    assert settings_of(SupervisorSettings, sandbox="agent").operators == expected
    assert settings_of(OperatorSettings).webhook_names == expected


def test_the_log_level_may_be_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMW_LOG_LEVEL", "warning")
    assert settings_of(StandaloneSettings).log_level == "WARNING"


def test_every_wrong_setting_is_named_at_once_and_no_value_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "LOG_LEVEL": "CANARY",
        "TRUST_DOMAIN": "Canary!",
        "ENROLLMENT_PORT": "canary",
        "DISCOVERY_PORT": "70000",
        "HEALTH_PORT": "-1",
        "LEAF_LIFETIME": "canary",
        "UNSELECTED": "canary",
        "LOOPBACK": "canary",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(f"SMW_{name}", value)
    with pytest.raises(InvalidInput) as caught:
        settings_of(StandaloneSettings)
    message = str(caught.value)
    assert [p.partition(":")[0] for p in message.removeprefix("settings: ").split("; ")] == sorted(
        f"SMW_{name}" for name in wrong
    )
    assert "canary" not in message.lower()
    assert "70000" not in message
    assert "'Allow' or 'Deny'" in message


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("listen", "canary", "--listen: must be HOST:PORT"),
        ("listen", "canary:99999", "--listen: must be HOST:PORT"),
        ("listen", "canary:" + "9" * 5000, "--listen: must be HOST:PORT"),
        ("upstream", ":80", "--upstream: must be HOST:PORT"),
        ("namespace", "Canary", "--namespace: must be a lower-case DNS label of at most 63 characters"),
        ("sandbox", "canary_", "--sandbox: must be a lower-case DNS name"),
        ("operators", (), "--operator: value should have at least 1 item"),
    ],
)
def test_a_wrong_flag_is_named_as_it_was_typed(flag: str, value: object, problem: str) -> None:
    with pytest.raises(InvalidInput, match="settings: ") as caught:
        settings_of(SupervisorSettings, **{"sandbox": "agent", flag: value})
    assert problem in str(caught.value)
    assert "canary" not in str(caught.value).lower()


def test_a_list_that_is_broken_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMW_OPERATORS", '["canary"')
    with pytest.raises(InvalidInput, match="SMW_OPERATORS: must be a list: a, b or a JSON array"):
        settings_of(SupervisorSettings, sandbox="agent")


def test_what_is_needed_and_absent_is_named_with_both_its_names() -> None:
    with pytest.raises(InvalidInput, match=r"^settings: --sandbox or SMW_SANDBOX: is required$"):
        settings_of(SupervisorSettings, sandbox=None)


@pytest.mark.parametrize("command", ["operator", "standalone", "supervisor"])
def test_a_command_ends_with_one_line_about_all_its_settings(command: str, tmp_path: Path) -> None:
    arguments = ("standalone", str(tmp_path)) if command == "standalone" else (command,)
    shown = in_a_process(*arguments, cwd=tmp_path, SMW_LOG_LEVEL="canary", SMW_DISCOVERY_PORT="canary")
    assert (shown.code, shown.out) == (2, "")
    (line,) = shown.err.splitlines()
    assert line.startswith("smw: settings: ")
    assert "SMW_LOG_LEVEL: " in line
    assert "SMW_DISCOVERY_PORT: " in line
    assert "canary" not in line


# ----------------------------------------------------------------------------------------------------------- running


def python(body: str) -> tuple[str, ...]:
    return (sys.executable, "-c", RUN.format(body=body))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_clean_up_and_is_a_good_end(number: signal.Signals) -> None:
    body = f"""
    import os
    os.kill(os.getpid(), {int(number)})
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("cleaned up")
"""
    shown = in_a_process(command=python(body))
    assert (shown.code, shown.out, shown.err) == (0, "cleaned up\n", "")


def test_the_first_of_several_errors_is_the_one_that_is_told() -> None:
    body = """
    async def fail():
        raise Unavailable("the port is taken")
    try:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(asyncio.Event().wait())
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fail())
    except BaseExceptionGroup as group:
        assert isinstance(group.exceptions[0], BaseExceptionGroup)
        raise
"""
    shown = in_a_process(command=python(body))
    assert shown.err.splitlines()[-1] == "supervisor_middleware.errors.Unavailable: the port is taken"


def test_an_error_nobody_has_foreseen_ends_with_its_place_and_without_its_text() -> None:
    shown = in_a_process(command=python("    raise ValueError('canary')"))
    assert shown.code != 0
    last = shown.err.splitlines()[-1]
    assert last.startswith("supervisor_middleware.errors.Bug: this is a bug, please report it: ValueError < work:")
    assert "ValueError: canary" not in shown.err


def test_a_cancellation_nobody_asked_for_is_no_good_end() -> None:
    shown = in_a_process(command=python("    raise asyncio.CancelledError"))
    assert shown.code != 0


def test_logs_hold_an_exceptions_type_and_place_but_not_its_text() -> None:
    body = """
    import logging, structlog
    try:
        raise ValueError("canary")
    except ValueError:
        structlog.get_logger().exception("ours")
        structlog.get_logger().error("without")
        logging.getLogger("theirs").exception("theirs")
        logging.getLogger("theirs").info("not shown")
        logging.getLogger("supervisor_middleware.x").info("shown")
"""
    shown = in_a_process(command=python(body))
    lines = [json.loads(line) for line in shown.err.splitlines()]
    assert [line["event"] for line in lines] == ["ours", "without", "theirs", "shown"]
    assert ["error" in line for line in lines] == [True, False, True, False]
    assert lines[0]["error"].startswith("ValueError < work:")
    assert [line["level"] for line in lines] == ["error", "error", "error", "info"]
    assert "canary" not in shown.err
