"""Commands that only read files, as typer sees them: parameters and help; the work is in a module of its own."""

from typing import Final

import typer

from supervisor_middleware.cli.options import (
    CredentialsOption,
    Form,
    FormatOption,
    LiveOption,
    LoopbackOption,
    ManifestsOption,
    Output,
    OutputOption,
    PathsArgument,
    form_of,
    offline_options,
)

commands: Final = typer.Typer()


@commands.command(epilog="Example:  smw validate policies/ --manifests manifests.yaml")
def validate(
    paths: PathsArgument,
    manifests: ManifestsOption = None,
    live: LiveOption = False,
    credentials: CredentialsOption = None,
    allow_loopback: LoopbackOption = False,
    form: FormatOption = Form.TEXT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check registrations, policies and sandboxes.

    Every problem is shown at once; the exit code is 1 if there is one.
    """
    from supervisor_middleware.cli.validate import run

    shown = form_of(form, output)
    options = offline_options(
        paths, manifests=manifests, live=live, credentials=credentials, allow_loopback=allow_loopback
    )
    raise typer.Exit(run(options, form=shown))
