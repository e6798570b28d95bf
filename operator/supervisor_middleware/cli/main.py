"""The command line. Exit codes: 0 good, 1 the answer is bad, 2 no answer (usage, I/O, unreachable)."""

import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from supervisor_middleware.errors import SupervisorMiddlewareError

app = typer.Typer(
    name="smw",
    help="Supervisor middleware (OpenShell RFC 0009): decide what may leave an AI agent's sandbox.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
token_app = typer.Typer(no_args_is_help=True, help="Join tokens for supervisors outside a cluster.")
app.add_typer(token_app, name="token")


class Output(StrEnum):
    """How an answer is shown."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Form(StrEnum):
    """How a report is shown."""

    TEXT = "text"
    GITHUB = "github"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people or for machines.")]
StateOption = Annotated[Path, typer.Option("--state", help="Where the CA, revisions and status are kept.")]


def main() -> None:
    """Entry point: errors of ours become one line and exit code 2, never a traceback."""
    try:
        app()
    except SupervisorMiddlewareError as error:
        typer.echo(f"smw: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = {"kopf": "operator", "kubernetes": "operator", "aiohttp": "operator", "envoy": "supervisor"}
        wanted = extra.get((error.name or "").partition(".")[0])
        if wanted is None:
            raise
        typer.echo(f"smw: this command needs more: pip install 'supervisor-middleware[{wanted}]'", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smw {version('supervisor-middleware')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Supervisor middleware (OpenShell RFC 0009): decide what may leave an AI agent's sandbox."""


@app.command()
def validate(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders of YAML; - is standard input.")],
    manifests: Annotated[
        list[Path] | None, typer.Option(help="Manifests recorded with smw describe -o yaml; repeat for more.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Ask the services themselves.")] = False,
    credentials: Annotated[Path | None, typer.Option(help="Folder with tls.crt, tls.key, ca.crt for --live.")] = None,
    allow_loopback: Annotated[bool, typer.Option(help="Accept loopback endpoints (one machine, tests).")] = False,
    form: Annotated[Form, typer.Option("--format", help="github annotates a CI run.")] = Form.TEXT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check registrations, policies and sandboxes: every problem at once.

    Exit code 1 if something is wrong. Example: `smw validate policies/ --manifests manifests.yaml`
    """
    from supervisor_middleware.cli import validate_render
    from supervisor_middleware.cli.validate import Options, run
    from supervisor_middleware.model.settings import Knowledge, Loopback

    shown = validate_render.Form.GITHUB if form is Form.GITHUB else validate_render.Form(output.value)
    options = Options(
        paths=tuple(paths),
        manifests=tuple(manifests or ()),
        knowledge=Knowledge.LIVE if live else Knowledge.OFFLINE,
        credentials=credentials,
        loopback=Loopback.ALLOWED if allow_loopback else Loopback.REFUSED,
        form=shown,
    )
    raise typer.Exit(run(options))


@app.command()
def standalone(
    folder: Annotated[Path, typer.Argument(help="Folder of YAML: registrations, policies, sandboxes.")],
    state: StateOption = Path(".state/standalone"),
) -> None:
    """Run the control plane over a folder, without a cluster.

    Settings come from the environment (SMW_...). Example: `smw standalone examples/quickstart`
    """
    from supervisor_middleware.apps.standalone import run_standalone
    from supervisor_middleware.cli.running import run_until_stopped, settings_of
    from supervisor_middleware.settings import StandaloneSettings

    settings = settings_of(StandaloneSettings, state=state)
    run_until_stopped(run_standalone(folder, settings), log_level=settings.log_level)


@app.command()
def operator(
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Outside a cluster; in-cluster credentials if absent.")
    ] = None,
    allow_loopback: Annotated[bool, typer.Option(help="Accept loopback endpoints (one machine, tests).")] = False,
) -> None:
    """Run the Kubernetes operator and its admission webhook.

    Settings come from the environment (SMW_...). Example: `smw operator --kubeconfig ~/.kube/config`
    """
    from supervisor_middleware.apps.operator import run_operator
    from supervisor_middleware.cli.running import run_until_stopped, settings_of
    from supervisor_middleware.model.settings import Loopback
    from supervisor_middleware.settings import OperatorSettings

    flags = {} if kubeconfig is None else {"kubeconfig": kubeconfig}
    loopback = {"loopback": Loopback.ALLOWED} if allow_loopback else {}
    settings = settings_of(OperatorSettings, **flags, **loopback)
    run_until_stopped(run_operator(settings), log_level=settings.log_level)


@app.command()
def supervisor(
    operator: Annotated[list[str] | None, typer.Option(help="Host of the operator; repeat for replicas.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the sandbox.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Name of the sandbox.")] = None,
    trust_bundle: Annotated[Path | None, typer.Option(help="The operator's trust bundle (PEM).")] = None,
    token_file: Annotated[Path | None, typer.Option(help="Pod-bound token or join token.")] = None,
    state: Annotated[Path | None, typer.Option(help="Where identity and last-known-good are kept.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT on which agents find the proxy.")] = None,
    upstream: Annotated[str | None, typer.Option(help="HOST:PORT to send everything to; by DNS if absent.")] = None,
) -> None:
    """Run the reference supervisor: enrol, follow generations, evaluate requests behind Envoy.

    Settings come from the environment (SMW_...) too.
    Example: `smw supervisor --sandbox agent --trust-bundle .state/standalone/ca.crt --token-file token`
    """
    from supervisor_middleware.apps.supervisor import run_supervisor
    from supervisor_middleware.cli.running import run_until_stopped, settings_of
    from supervisor_middleware.settings import SupervisorSettings

    given = {
        "operators": None if operator is None else tuple(operator),
        "namespace": namespace,
        "sandbox": sandbox,
        "trust_bundle": trust_bundle,
        "token_file": token_file,
        "state": state,
        "listen": listen,
        "upstream": upstream,
    }
    settings = settings_of(SupervisorSettings, **{k: v for k, v in given.items() if v is not None})
    run_until_stopped(run_supervisor(settings), log_level=settings.log_level)


@app.command()
def serve(
    service: Annotated[str, typer.Argument(help="Name of a service this product brings: terms.")],
    address: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "127.0.0.1:18443",
    tls: Annotated[Path | None, typer.Option(help="Folder with tls.crt and tls.key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Trust bundle that callers' certificates must chain to.")
    ] = None,
    trust_domain: Annotated[str | None, typer.Option(help="Trust domain callers must belong to.")] = None,
) -> None:
    """Serve one of the bundled middleware services.

    Example: `smw serve terms --tls certs --client-ca .state/standalone/ca.crt`
    """
    from supervisor_middleware.cli.running import run_until_stopped
    from supervisor_middleware.middleware.run import run_service

    def ready(port: int) -> None:
        typer.echo(f"{service} serves on port {port}", err=True)

    work = run_service(
        service, address=address, tls_dir=tls, client_ca=client_ca, trust_domain=trust_domain, ready=ready
    )
    run_until_stopped(work, log_level="INFO")


@app.command()
def describe(
    endpoint: Annotated[str, typer.Argument(help="https://HOST[:PORT] (http:// for plaintext) of a service.")],
    name: Annotated[str, typer.Option(help="Registration name; the binding ID of a released service.")] = "service",
    ca: Annotated[Path | None, typer.Option(help="PEM certificates that replace the platform's trust roots.")] = None,
    server_name: Annotated[str, typer.Option(help="Name to verify when it differs from the host.")] = "",
    credentials: Annotated[Path | None, typer.Option(help="Folder with tls.crt, tls.key, ca.crt to present.")] = None,
    timeout: Annotated[str, typer.Option(help="Deadline: an integer with ms or s.")] = "5s",
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask any middleware service what it is; `-o yaml` records it for `smw validate --manifests`.

    Example: `smw describe https://middleware.example.com --ca ca.crt -o yaml`
    """
    from supervisor_middleware.cli.describe import Target, run

    target = Target(
        endpoint=endpoint, name=name, ca=ca, server_name=server_name, credentials=credentials, timeout=timeout
    )
    raise typer.Exit(run(target, output=output))


@app.command()
def status(
    state: Annotated[Path | None, typer.Option("--state", help="State folder of a standalone control plane.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig of a cluster; $KUBECONFIG if absent.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show registrations, policies and how far supervisors have got.

    Exit code 1 while a policy is not Programmed. Example: `smw status --state .state/standalone`
    """
    from supervisor_middleware.cli.status import run

    raise typer.Exit(run(state=state, kubeconfig=kubeconfig, output=output))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option(help="Keep the working folder, to look at logs and state.")] = False,
) -> None:
    """Show the whole loop on this machine in under a minute: no cluster.

    Example: `smw demo`
    """
    from supervisor_middleware.cli.demo import run

    raise typer.Exit(run(keep=keep))


@token_app.command("create")
def token_create(
    sandbox: Annotated[str, typer.Argument(help="NAMESPACE/NAME of the sandbox the token is for.")],
    state: StateOption = Path(".state/standalone"),
    lifetime: Annotated[str, typer.Option(help="How long it may be used: an integer with s, m or h.")] = "10m",
) -> None:
    """Print a join token: good for one enrolment of one sandbox.

    Example: `smw token create quickstart/agent > token`
    """
    from supervisor_middleware.cli.tokens import create

    typer.echo(create(sandbox, state=state, lifetime=lifetime))


if __name__ == "__main__":
    main()
