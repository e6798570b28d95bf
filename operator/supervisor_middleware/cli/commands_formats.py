"""Commands about formats and what they hold, as typer sees them: parameters and help."""

from typing import Final

import typer

from supervisor_middleware.cli.options import Output, OutputOption

commands: Final = typer.Typer()


@commands.command(epilog="Example:  smw capabilities -o json")
def capabilities(output: OutputOption = Output.TABLE) -> None:
    """Show limits, built-ins, and what is not supported.

    Every limit is the one that CRDs, webhook, supervisor and SDK hold to.
    """
    from supervisor_middleware.cli.capabilities_render import run

    run(output=output)
