"""Commands that only read files, as typer sees them: parameters and help; the work is in a module of its own."""

from typing import Annotated, Final

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

_SandboxOption = Annotated[
    str, typer.Option("--sandbox", metavar="NAME", help="NAMESPACE/NAME, a namespace, or a title as smw shows it.")
]


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


@commands.command(name="compile", epilog="Example:  smw compile policies/ --sandbox team-a/coder -o table")
def compile_policies(
    paths: PathsArgument,
    sandbox: _SandboxOption = "",
    show_configs: Annotated[
        bool, typer.Option("--show-configs", help="Show configs and CA bundles whole, instead of their digests.")
    ] = False,
    manifests: ManifestsOption = None,
    live: LiveOption = False,
    credentials: CredentialsOption = None,
    allow_loopback: LoopbackOption = False,
    output: OutputOption = Output.YAML,
) -> None:
    """Print what each sandbox would run.

    Its generation: stages in order, services, limits, digest and size; equal ones once. Configs show as digests.
    """
    from supervisor_middleware.cli.compile import Configs, Options, run

    options = Options(
        world=offline_options(
            paths, manifests=manifests, live=live, credentials=credentials, allow_loopback=allow_loopback
        ),
        sandbox=sandbox,
        output=output,
        configs=Configs.WHOLE if show_configs else Configs.DIGESTS,
    )
    raise typer.Exit(run(options))


@commands.command(epilog="Example:  smw explain api.example.com policies/")
def explain(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Such as api.example.com.")],
    paths: PathsArgument,
    sandbox: _SandboxOption = "",
    manifests: ManifestsOption = None,
    live: LiveOption = False,
    credentials: CredentialsOption = None,
    allow_loopback: LoopbackOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain what happens to requests to a host.

    The chain in order, why each stage is in it or not, its limits and what they come from, what happens when it
    fails, and how long all of it may take.
    """
    from supervisor_middleware.cli.explain.command import Options, run

    options = Options(
        host=host,
        world=offline_options(
            paths, manifests=manifests, live=live, credentials=credentials, allow_loopback=allow_loopback
        ),
        sandbox=sandbox,
        output=output,
    )
    raise typer.Exit(run(options))
