"""Commands about formats and what they hold, as typer sees them: parameters and help."""

from typing import Annotated, Final

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


@commands.command(epilog="Example:  smw schema SandboxPolicy > sandboxpolicy.json")
def schema(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="A kind of ours; every one if absent.")] = None,
) -> None:
    """Print a JSON Schema of the resources, for editors.

    Name it on the first line of a file: # yaml-language-server: $schema=FILE
    """
    import json

    from supervisor_middleware.cli.editor_schema import schema_for

    typer.echo(json.dumps(schema_for(kind), indent=2))
