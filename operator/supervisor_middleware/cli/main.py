"""The command line. Exit codes: 0 good, 1 the answer is bad, 2 no answer (usage, I/O, unreachable)."""

import os
import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer

from supervisor_middleware.cli.commands import authority, formats, policies, services
from supervisor_middleware.errors import SupervisorMiddlewareError

_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
_EXTRAS: Final = {
    "aiohttp": "operator",
    "kopf": "operator",
    "kubernetes": "operator",
    "watchfiles": "operator",
    "envoy": "supervisor",
    "udpa": "supervisor",
    "validate": "supervisor",
    "xds": "supervisor",
}

app = typer.Typer(
    name="smw",
    help="Supervisor middleware (OpenShell RFC 0009): decide what may leave an AI agent's sandbox.",
    epilog="Exit codes:  0 good, 1 a bad answer, 2 no answer.\n\nBegin with:  smw demo",
    no_args_is_help=True,
    add_completion=True,
    context_settings=_CONTEXT,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(policies.commands)
app.add_typer(formats.commands)
app.add_typer(services.commands)
app.add_typer(authority.commands)


def main() -> None:
    """Entry point: errors of ours become one line and exit code 2, never a traceback."""
    # gRPC's core writes to stderr by itself, in a form of its own, what we say in ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app(prog_name="smw")
    except SupervisorMiddlewareError as error:
        _fail(str(error))
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    except ModuleNotFoundError as error:
        wanted = _EXTRAS.get((error.name or "").partition(".")[0])
        if wanted is None:
            raise
        _fail(f"this command needs more: pip install 'supervisor-middleware[{wanted}]'")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(problem: str) -> None:
    typer.echo(f"smw: {problem}", err=True)
    sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smw {version('supervisor-middleware')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Supervisor middleware (OpenShell RFC 0009): decide what may leave an AI agent's sandbox."""


if __name__ == "__main__":
    main()
