"""Commands about who is believed, as typer sees them: join tokens, and the root of identities."""

from pathlib import Path
from typing import Annotated, Final

import typer

from supervisor_middleware.cli.options import Output, OutputOption, StateOption

commands: Final = typer.Typer()
token_commands: Final = typer.Typer(no_args_is_help=True, help="Join tokens for supervisors outside a cluster.")
commands.add_typer(token_commands, name="token")
ca_commands: Final = typer.Typer(no_args_is_help=True, help="The CA of identities, and the rotation of its root.")
commands.add_typer(ca_commands, name="ca")

_StateOption = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help="State directory of smw standalone.")
]
_KubeconfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Of a cluster; as kubectl finds it if absent.")
]
_NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="Where the operator runs.")]
_OPERATORS: Final = "supervisor-middleware"


@ca_commands.command(epilog="Example:  smw ca status --watch")
def status(
    state: _StateOption = None,
    kubeconfig: _KubeconfigOption = None,
    namespace: _NamespaceOption = _OPERATORS,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show changes, until interrupted.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the roots, and where a rotation stands.

    What the stage waits for, and when it ends at the latest. The exit code is 1 if it is overdue, or if a CA that was
    supplied cannot be used.
    """
    from supervisor_middleware.cli.ca.command import Shown, show
    from supervisor_middleware.cli.ca.places import Target

    target = Target(state=state, kubeconfig=kubeconfig, namespace=namespace)
    raise typer.Exit(show(target, Shown(output=output, is_watched=watch)))


@ca_commands.command(epilog="Example:  smw ca rotate")
def rotate(
    state: _StateOption = None,
    kubeconfig: _KubeconfigOption = None,
    namespace: _NamespaceOption = _OPERATORS,
    force: Annotated[
        bool, typer.Option("--force", help="End the present stage, whatever it waits for; audited.")
    ] = False,
) -> None:
    """Replace the root by a new one, in stages.

    Nothing is interrupted: the new root is trusted everywhere before it issues, and the old one until nobody needs
    it. Needs the right to patch the CA's Secret. The exit code is 1 if the request did nothing.
    """
    from supervisor_middleware.cli.ca.command import rotate as ask
    from supervisor_middleware.cli.ca.places import Target

    raise typer.Exit(ask(Target(state=state, kubeconfig=kubeconfig, namespace=namespace), force=force))


@token_commands.command("create", epilog="Example:  smw token create quickstart/agent > token")
def token_create(
    sandbox: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The sandbox the token is for.")],
    state: StateOption = None,
    lifetime: Annotated[
        str, typer.Option(metavar="TIME", help="How long it may be used: an integer with s, m or h.")
    ] = "10m",
) -> None:
    """Print a join token, good for one enrolment."""
    from supervisor_middleware.cli.running import settings_of
    from supervisor_middleware.cli.tokens import create
    from supervisor_middleware.settings import StandaloneSettings

    settings = settings_of(StandaloneSettings, state=state)
    typer.echo(create(sandbox, state=settings.state, lifetime=lifetime))


@token_commands.command("revoke", epilog="Example:  smw token revoke quickstart/agent")
def token_revoke(
    sandbox: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The sandbox that loses access.")],
    state: StateOption = None,
) -> None:
    """End the tokens of a sandbox, and the access they bought.

    A running control plane closes the supervisor's stream within seconds. The exit code is 1 if there was nothing.
    """
    from supervisor_middleware.cli.running import settings_of
    from supervisor_middleware.cli.tokens import revoke
    from supervisor_middleware.settings import StandaloneSettings

    ended = revoke(sandbox, state=settings_of(StandaloneSettings, state=state).state)
    typer.echo(f"{sandbox}: {ended} ended" if ended else f"{sandbox}: has no token and has not joined")
    raise typer.Exit(0 if ended else 1)
