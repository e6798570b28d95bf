"""Commands that run something, or ask what runs, as typer sees them: parameters and help."""

from pathlib import Path
from typing import Annotated, Final

import typer

from supervisor_middleware.cli.options import LoopbackOption, Output, OutputOption, StateOption
from supervisor_middleware.errors import InvalidInput

commands: Final = typer.Typer()

OperatorsOption = Annotated[
    list[str] | None, typer.Option("--operator", metavar="HOST", help="The operator; repeat for its replicas.")
]
NamespaceOption = Annotated[str | None, typer.Option(metavar="NAME", help="Namespace of the sandbox.")]
SandboxOption = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the sandbox; needed.")]
TrustBundleOption = Annotated[Path | None, typer.Option(metavar="FILE", help="The operator's trust bundle (PEM).")]
TokenFileOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Pod-bound token or join token.")]


@commands.command(epilog="Example:  smw standalone examples/quickstart")
def standalone(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="YAML files: registrations, policies, sandboxes.")],
    state: StateOption = None,
    ca_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="tls.crt and tls.key of a CA of your own; read again when they change."),
    ] = None,
) -> None:
    """Run the control plane over a folder, no cluster.

    Settings come from the environment (SMW_...) too.
    """
    from supervisor_middleware.apps.standalone import run_standalone
    from supervisor_middleware.cli.running import run_until_stopped, settings_of
    from supervisor_middleware.settings import StandaloneSettings

    settings = settings_of(StandaloneSettings, state=state, ca_dir=ca_dir)
    run_until_stopped(run_standalone(folder, settings), log_level=settings.log_level)


@commands.command(epilog="Example:  smw operator --kubeconfig ~/.kube/config")
def operator(
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Outside a cluster; in-cluster credentials if absent.")
    ] = None,
    allow_loopback: LoopbackOption = False,
) -> None:
    """Run the Kubernetes operator and its webhook.

    Settings come from the environment (SMW_...) too.
    """
    from supervisor_middleware.apps.operator import run_operator
    from supervisor_middleware.cli.running import run_until_stopped, settings_of
    from supervisor_middleware.model.settings import Loopback
    from supervisor_middleware.settings import OperatorSettings

    loopback = Loopback.ALLOWED if allow_loopback else None
    settings = settings_of(OperatorSettings, kubeconfig=kubeconfig, loopback=loopback)
    run_until_stopped(run_operator(settings), log_level=settings.log_level)


@commands.command(epilog="Example:  smw supervisor --sandbox agent --token-file token")
def supervisor(
    operator: OperatorsOption = None,
    namespace: NamespaceOption = None,
    sandbox: SandboxOption = None,
    trust_bundle: TrustBundleOption = None,
    token_file: TokenFileOption = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where identity and last-known-good are kept.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where agents find the proxy.")] = None,
    upstream: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Send everything there; by DNS if absent.")
    ] = None,
) -> None:
    """Run the reference supervisor behind Envoy.

    It enrols, follows generations and evaluates every request. Settings come from the environment (SMW_...) too.
    """
    from supervisor_middleware.apps.supervisor import run_supervisor
    from supervisor_middleware.cli.running import run_until_stopped, settings_of
    from supervisor_middleware.settings import SupervisorSettings

    settings = settings_of(
        SupervisorSettings,
        operators=None if operator is None else tuple(operator),
        namespace=namespace,
        sandbox=sandbox,
        trust_bundle=trust_bundle,
        token_file=token_file,
        state=state,
        listen=listen,
        upstream=upstream,
    )
    run_until_stopped(run_supervisor(settings), log_level=settings.log_level)


@commands.command(epilog="Example:  smw enroll --sandbox agent --token-file token --out certs --keep")
def enroll(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where tls.crt, tls.key and ca.crt are kept; needed.")
    ] = None,
    operator: OperatorsOption = None,
    namespace: NamespaceOption = None,
    sandbox: SandboxOption = None,
    trust_bundle: TrustBundleOption = None,
    token_file: TokenFileOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Stay and renew at half-life: for a sidecar.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Try once, instead of for --wait.")] = False,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long to try: an integer with s, m or h. [default: 60s]")
    ] = None,
) -> None:
    """Get a sandbox's certificate into files.

    For supervisors that read files: as an init container, or with --keep as a sidecar. A certificate in DIR that is
    good and young is left alone, an older one renewed without the token, others are got with it. The files are
    replaced as one. Exit codes: 0 DIR holds a good certificate, 1 the operator refuses, 2 there is no answer. With
    --keep only a wrong setting ends it. Settings come from the environment (SMW_...) too.
    """
    from supervisor_middleware.cli.enroll import manner_of, run
    from supervisor_middleware.cli.running import settings_of
    from supervisor_middleware.settings import EnrollSettings

    manner = manner_of(once=once, keep=keep, patience=wait)
    settings = settings_of(
        EnrollSettings,
        out=out,
        operators=None if operator is None else tuple(operator),
        namespace=namespace,
        sandbox=sandbox,
        trust_bundle=trust_bundle,
        token_file=token_file,
    )
    raise typer.Exit(run(settings, manner))


@commands.command(epilog="Example:  smw serve terms --tls certs --client-ca .state/standalone/ca.crt")
def serve(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="A service this product brings: terms.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:18443",
    tls: Annotated[Path | None, typer.Option(metavar="DIR", help="Holds tls.crt and tls.key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trust bundle that callers must chain to.")
    ] = None,
    trust_domain: Annotated[
        str | None, typer.Option(metavar="NAME", help="Trust domain callers must belong to.")
    ] = None,
) -> None:
    """Serve a bundled middleware service.

    Without --tls it is plaintext, without --client-ca anybody may call.
    """
    from supervisor_middleware.cli.running import run_until_stopped
    from supervisor_middleware.middleware.process import run_service

    if not address.rpartition(":")[2].isdecimal():
        raise InvalidInput(f"--address {address}: must be HOST:PORT, for example 127.0.0.1:18443")

    def ready(port: int) -> None:
        typer.echo(f"{service} serves on port {port}, {_manner(tls, client_ca)}", err=True)

    work = run_service(
        service, address=address, tls_dir=tls, client_ca=client_ca, trust_domain=trust_domain, ready=ready
    )
    run_until_stopped(work, log_level="INFO")


@commands.command(epilog="Example:  smw describe https://middleware.example.com --ca ca.crt -o yaml")
def describe(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="https://HOST[:PORT], or http:// for plaintext.")
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Registration; a released service's binding ID.")
    ] = "service",
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM certificates in place of the platform's roots.")
    ] = None,
    server_name: Annotated[str, typer.Option(metavar="NAME", help="To verify when it differs from the host.")] = "",
    credentials: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Holds tls.crt, tls.key, ca.crt to present.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="An integer with ms or s.")] = "5s",
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask any middleware service what it is.

    With -o yaml its manifest is recorded for smw validate --manifests.
    """
    from supervisor_middleware.cli.describe import Target, run

    target = Target(
        endpoint=endpoint, name=name, ca=ca, server_name=server_name, credentials=credentials, timeout=timeout
    )
    raise typer.Exit(run(target, output=output))


@commands.command(epilog="Example:  smw status --namespace team-a --watch")
def status(
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="State directory of smw standalone.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of a cluster; as kubectl finds it if absent.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Of policies and sandboxes; all if absent.")
    ] = "",
    sandbox: Annotated[str, typer.Option(metavar="[NAMESPACE/]NAME", help="Supervisors of one sandbox.")] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show supervisors live, until interrupted.")] = False,
    output: OutputOption = Output.TABLE,
    operator: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Enrolment port of the operator; forwarded from its Pod if absent."),
    ] = None,
    operator_namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Where the operator runs.")
    ] = "supervisor-middleware",
    service_account: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE/NAME", help="Ask the operator as this account, with a token made for that."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A token to ask the operator with; the kubeconfig's if absent."),
    ] = None,
    trust_bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The operator's trust bundle; as published if absent.")
    ] = None,
    trust_domain: Annotated[
        str | None, typer.Option(metavar="NAME", help="The operator's; that of the trust bundle if absent.")
    ] = None,
) -> None:
    """Show registrations, policies, and who runs what.

    The exit code is 1 while something is not Ready, not Programmed, or does not run what it should. Where the
    operator cannot be asked, what objects say is shown, and why the rest is not.
    """
    from supervisor_middleware.cli.status.command import Options, run
    from supervisor_middleware.cli.status.reach import Target

    target = Target(
        state=state,
        kubeconfig=kubeconfig,
        operator=operator,
        operator_namespace=operator_namespace,
        namespace=namespace,
        token_file=token_file,
        service_account=service_account,
        trust_bundle=trust_bundle,
        trust_domain=trust_domain,
    )
    raise typer.Exit(run(Options(target=target, sandbox=sandbox, output=output, is_watched=watch)))


@commands.command(epilog="Example:  smw demo --keep")
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the working folder with its logs.")] = False,
) -> None:
    """Show the whole loop here, in under a minute.

    Real processes, real TLS and a real Envoy on this machine; no cluster.
    """
    from supervisor_middleware.cli.demo import run

    raise typer.Exit(run(keep=keep))


def _manner(tls: Path | None, client_ca: Path | None) -> str:
    if tls is None:
        return "in plaintext"
    return "with TLS, for anybody" if client_ca is None else "with TLS, for callers that --client-ca vouches for"
