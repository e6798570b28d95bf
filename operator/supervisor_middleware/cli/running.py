"""Running a long-lived app from the command line: settings, logging, signals, a clear end."""

import asyncio
import gc
import signal
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings

from supervisor_middleware.errors import Bug, InvalidInput, SupervisorMiddlewareError
from supervisor_middleware.telemetry import configure_logging, where

_Settings = TypeVar("_Settings", bound=BaseSettings)
_COLLECT_AFTER: Final = (20_000, 20, 20)
"""Thresholds of Python's collector of cycles. Each of a thousand streams makes a few objects that live for a moment;
by default the collector walks them, and all that lives as long, hundreds of times for one change."""
_FLAGS: Final = {"operators": "--operator", "loopback": "--allow-loopback"}


def settings_of(model: type[_Settings], **flags: Any) -> _Settings:
    """Settings from the environment and flags; flags win. A flag that is None was not given.

    Raises:
        InvalidInput: names every setting that is wrong and what is allowed, never its value.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return model(**given)
    except ValidationError as error:
        prefix = str(model.model_config.get("env_prefix", ""))
        problems = sorted(
            f"{_spelled(e, prefix=prefix, given=given, flags=flags)}: {_problem(e)}"
            for e in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise InvalidInput(f"settings: {'; '.join(problems)}") from None


def run_until_stopped(work: Coroutine[Any, Any, None], *, log_level: str) -> None:
    """Run `work` until it ends, or SIGTERM or SIGINT asks it to; then it is cancelled and cleans up.

    Of several errors at once the first is raised.

    Raises:
        Bug: an error nobody has foreseen: where it was raised, without its text, which may quote a config.
    """
    configure_logging(log_level)
    gc.freeze()  # what is imported stays
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        asyncio.run(_until_signal(work))
    except (Exception, BaseExceptionGroup) as raised:  # noqa: BLE001 - the last boundary: see Raises
        error = _first(raised) if isinstance(raised, BaseExceptionGroup) else raised
        if isinstance(error, SupervisorMiddlewareError | OSError | ImportError) or not isinstance(error, Exception):
            raise error from None
        raise Bug(f"this is a bug, please report it: {where(error)}") from None


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    is_asked = False

    def stop() -> None:
        nonlocal is_asked
        is_asked = True
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not is_asked:
            raise


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _spelled(error: ErrorDetails, *, prefix: str, given: dict[str, Any], flags: dict[str, Any]) -> str:
    """As it was, or can be, given."""
    name = str(error["loc"][0])
    variable, flag = f"{prefix}{name.upper()}", _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if name in given:
        return flag
    return f"{flag} or {variable}" if name in flags and error["type"] == "missing" else variable


def _problem(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return "is required"
    message = error["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
