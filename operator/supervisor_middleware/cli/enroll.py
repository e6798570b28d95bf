"""`smw enroll`: flags to a manner, and exit codes: 1 the operator refuses, 2 there is no answer."""

from datetime import timedelta

import typer

from supervisor_middleware.apps.enroll import Manner, run_enroll
from supervisor_middleware.cli.running import run_until_stopped
from supervisor_middleware.errors import InvalidInput, Untrusted
from supervisor_middleware.model.durations import parse_deadline
from supervisor_middleware.settings import EnrollSettings


def run(settings: EnrollSettings, manner: Manner) -> int:
    """Enrol, and stay if `manner` says so.

    Raises:
        SupervisorMiddlewareError: there is no answer; see `run_enroll`.
    """
    try:
        run_until_stopped(run_enroll(settings, manner, tell=typer.echo), log_level=settings.log_level)
    except Untrusted as error:
        typer.echo(f"smw: {error}", err=True)
        return 1
    return 0


def manner_of(*, once: bool, keep: bool, patience: str | None) -> Manner:
    """How to try, of the flags.

    Raises:
        InvalidInput: they contradict each other, or the time is none.
    """
    if sum((once, keep, patience is not None)) > 1:
        raise InvalidInput("--once, --wait and --keep exclude each other")
    if once:
        return Manner(patience=None)
    if keep:
        return Manner(stays=True)
    if patience is None:
        return Manner()
    try:
        wanted = parse_deadline(patience)
    except ValueError as error:
        raise InvalidInput(f"--wait {error}") from None
    if wanted <= timedelta():
        raise InvalidInput("--wait must be some time; --once tries once")
    return Manner(patience=wanted)
