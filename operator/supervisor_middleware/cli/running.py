"""Running a long-lived app from the command line: logging, signals, a clear end."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError
from supervisor_middleware.telemetry import configure_logging

_Settings = TypeVar("_Settings", bound=BaseSettings)


def settings_of(model: type[_Settings], **flags: Any) -> _Settings:
    """Settings from the environment and flags; flags win.

    Raises:
        InvalidInput: names every setting that is wrong and what is allowed, never its value.
    """
    try:
        return model(**flags)
    except ValidationError as error:
        prefix = str(model.model_config.get("env_prefix", ""))
        problems = "; ".join(
            f"{prefix}{'_'.join(str(p) for p in e['loc']).upper()}: {e['msg']}"
            for e in error.errors(include_input=False, include_url=False)
        )
        raise InvalidInput(f"settings: {problems}") from None


def run_until_stopped(work: Coroutine[Any, Any, None], *, log_level: str) -> None:
    """Run `work` until it ends, or SIGTERM or SIGINT asks it to; then it is cancelled and cleans up."""
    configure_logging(log_level)
    try:
        asyncio.run(_until_signal(work))
    except* SupervisorMiddlewareError as group:
        raise _first(group) from None


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


def _first(group: BaseExceptionGroup[SupervisorMiddlewareError]) -> SupervisorMiddlewareError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
