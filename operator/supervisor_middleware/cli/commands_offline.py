"""Commands that only read files, as typer sees them: parameters and help; the work is in a module of its own."""

from pathlib import Path
from typing import Annotated, Final

import typer

from supervisor_middleware.cli.options import Form, LoopbackOption, Output, OutputOption
from supervisor_middleware.errors import InvalidInput

commands: Final = typer.Typer()


@commands.command(epilog="Example:  smw validate policies/ --manifests manifests.yaml")
def validate(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Files and folders of YAML; - is standard input.")
    ],
    manifests: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Manifests recorded with smw describe -o yaml; repeatable."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Ask the services themselves.")] = False,
    credentials: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Holds tls.crt, tls.key, ca.crt for --live.")
    ] = None,
    allow_loopback: LoopbackOption = False,
    form: Annotated[
        Form, typer.Option("--format", metavar="FORM", help="text, or github: annotations of a CI run.")
    ] = Form.TEXT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check registrations, policies and sandboxes.

    Every problem is shown at once; the exit code is 1 if there is one.
    """
    from supervisor_middleware.cli import validate_render
    from supervisor_middleware.cli.offline import Options
    from supervisor_middleware.cli.validate import run
    from supervisor_middleware.model.settings import Knowledge, Loopback

    if form is Form.GITHUB and output is not Output.TABLE:
        raise InvalidInput("--format github and --output exclude each other: annotations, or a value")
    shown = validate_render.Form.GITHUB if form is Form.GITHUB else validate_render.Form(output.value)
    options = Options(
        paths=tuple(paths),
        manifests=tuple(manifests or ()),
        knowledge=Knowledge.LIVE if live else Knowledge.OFFLINE,
        credentials=credentials,
        loopback=Loopback.ALLOWED if allow_loopback else Loopback.REFUSED,
    )
    raise typer.Exit(run(options, form=shown))
