"""Commands about policies in files, as typer sees them: parameters and help; the work is in modules of their own."""

from pathlib import Path
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
    Strictness,
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


@commands.command(epilog="Example:  smw simulate policies/ --cases cases.yaml")
def simulate(
    paths: PathsArgument,
    cases: Annotated[
        list[Path] | None,
        typer.Option("--cases", metavar="FILE", help="Requests and what is expected of them; repeatable."),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="One request instead of cases: to this host.")] = "",
    method: Annotated[str, typer.Option(metavar="NAME", help="GET, or POST with a body, if absent.")] = "",
    path: Annotated[str, typer.Option(metavar="PATH", help="Path and query.")] = "/",
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="LINE", help="'name: value'; repeatable.")
    ] = None,
    body: Annotated[str | None, typer.Option(metavar="TEXT", help="The body.")] = None,
    body_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Holds the body.")] = None,
    sandbox: Annotated[
        str, typer.Option(metavar="NAME", help="Whose: NAMESPACE/NAME, a namespace, or a title that smw shows.")
    ] = "",
    show_bodies: Annotated[
        bool, typer.Option("--show-bodies", help="Show bodies, header values and metadata too.")
    ] = False,
    manifests: ManifestsOption = None,
    live: LiveOption = False,
    credentials: CredentialsOption = None,
    allow_loopback: LoopbackOption = False,
    form: FormatOption = Form.TEXT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow requests through the chain, stage by stage.

    Built-ins run; services answer as the cases say, or for themselves with --live. With --cases each request is
    compared with what is expected of it, and the exit code is 1 if one differs.
    """
    from supervisor_middleware.cli.simulate.command import Options, given_case, run
    from supervisor_middleware.cli.simulate.render import Bodies

    shown = form_of(form, output)
    case = given_case(host, method=method, path=path, headers=header or (), body=body, body_file=body_file)
    options = Options(
        world=offline_options(
            paths, manifests=manifests, live=live, credentials=credentials, allow_loopback=allow_loopback
        ),
        files=tuple(cases or ()),
        case=case,
        sandbox=sandbox,
        form=shown,
        bodies=Bodies.SHOWN if show_bodies else Bodies.HIDDEN,
    )
    raise typer.Exit(run(options))


@commands.command(epilog="Example:  smw coverage policies/ --fail-uncovered")
def coverage(
    paths: PathsArgument,
    fail_uncovered: Annotated[
        bool, typer.Option("--fail-uncovered", help="Exit 1 if an endpoint is not inspected as a whole.")
    ] = False,
    manifests: ManifestsOption = None,
    live: LiveOption = False,
    credentials: CredentialsOption = None,
    allow_loopback: LoopbackOption = False,
    form: FormatOption = Form.TEXT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show which endpoints no middleware looks at.

    Endpoints of networkPolicies against the stages that select them, and configs that look at nothing.
    """
    from supervisor_middleware.cli.coverage.command import Options, run

    shown = form_of(form, output)
    options = Options(
        world=offline_options(
            paths, manifests=manifests, live=live, credentials=credentials, allow_loopback=allow_loopback
        ),
        form=shown,
        strictness=Strictness.FAIL if fail_uncovered else Strictness.TELL,
    )
    raise typer.Exit(run(options))


@commands.command(epilog="Example:  smw plan ../base/policies policies --fail-on-loss")
def plan(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="File or folder of YAML as it is.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="File or folder of YAML as it is to be.")],
    common: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="PATH", help="Read on both sides, such as sandboxes.yaml; repeatable."),
    ] = None,
    fail_on_loss: Annotated[
        bool,
        typer.Option("--fail-on-loss", help="Exit 1 if a host loses inspection or an onError is weakened."),
    ] = False,
    manifests: ManifestsOption = None,
    allow_loopback: LoopbackOption = False,
    form: FormatOption = Form.TEXT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a change does, sandbox by sandbox.

    Stages added, removed, reordered and changed, hosts that gain or lose inspection, services that receive content,
    and how long requests may wait. Configs show as digests.
    """
    from supervisor_middleware.cli.plan.command import Options, run

    shown = form_of(form, output)
    sides = [
        offline_options([p, *(common or ())], manifests=manifests, allow_loopback=allow_loopback)
        for p in (before, after)
    ]
    options = Options(
        before=sides[0],
        after=sides[1],
        form=shown,
        strictness=Strictness.FAIL if fail_on_loss else Strictness.TELL,
    )
    raise typer.Exit(run(options))
