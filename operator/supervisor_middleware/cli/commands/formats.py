"""Commands about formats and what they hold, as typer sees them: parameters and help."""

from pathlib import Path
from typing import Annotated, Final

import typer

from supervisor_middleware.cli.conversion.targets import Target
from supervisor_middleware.cli.options import Output, OutputOption, Written

commands: Final = typer.Typer()


@commands.command(epilog="Example:  smw convert gateway.toml policy.yaml --namespace team-a")
def convert(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Gateway TOML, policy YAML or resources; - is stdin.")
    ],
    to: Annotated[
        Target | None,
        typer.Option("--to", metavar="FORM", help="resources (of OpenShell's files), toml or openshell (back)."),
    ] = None,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Namespace of the policies.")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the policy; after its file if absent.")] = "",
    output: Annotated[
        Written,
        typer.Option("--output", "-o", metavar="FORM", help="yaml: files (or TOML); json: documents and report."),
    ] = Written.YAML,
) -> None:
    """Turn OpenShell's files into resources, and back.

    What the other form cannot hold is reported on stderr; then the exit code is 1, and the result written anyway.
    """
    from supervisor_middleware.cli.conversion.command import Options, run
    from supervisor_middleware.cli.conversion.pipeline import Names

    names = Names(name=name, namespace=namespace)
    raise typer.Exit(run(Options(paths=tuple(paths), to=to, names=names, written=output)))


@commands.command(epilog="Example:  smw capabilities -o json")
def capabilities(output: OutputOption = Output.TABLE) -> None:
    """Show limits, built-ins, and what is not supported.

    Every limit is the one that CRDs, webhook, supervisor and SDK hold to.
    """
    from supervisor_middleware.cli.capabilities.render import run

    run(output=output)


@commands.command(epilog="Example:  smw schema SandboxPolicy > sandboxpolicy.json")
def schema(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="A kind, or cases; every kind if absent.")
    ] = None,
) -> None:
    """Print a JSON Schema of resources or cases, for editors.

    Name it on the first line of a file: # yaml-language-server: $schema=FILE
    """
    import json

    from supervisor_middleware.cli.editor_schema import schema_for

    typer.echo(json.dumps(schema_for(kind), indent=2))
