"""`smw status`: registrations, policies and how far supervisors have got, standalone or in a cluster."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from rich.text import Text

from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.rendering.tables import Row, coloured, console, table
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.snapshot import POLICY_KINDS, Kind

_REGISTRATION: Final = "SupervisorMiddleware"
_POLICIES: Final = frozenset(kind.value for kind in POLICY_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """An object and its status."""

    kind: str
    namespace: str
    name: str
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    def condition(self, kind: str) -> Mapping[str, Any]:
        """A condition, or an empty mapping."""
        conditions: Iterable[Mapping[str, Any]] = self.status.get("conditions", ())
        return next((c for c in conditions if c.get("type") == kind), {})


def run(*, state: Path | None, kubeconfig: Path | None, output: Output) -> int:
    """Show. 0 if every policy is Programmed and every registration Ready, else 1.

    Raises:
        InvalidInput: there is nothing to read there, or it is not clear where.
        Unavailable: the API server cannot be asked.
    """
    if state is not None and kubeconfig is not None:
        raise InvalidInput("--state and --kubeconfig exclude each other: one machine, or a cluster")
    observed = read_state(state) if state is not None else _read_cluster(kubeconfig)
    match output:
        case Output.JSON:
            typer.echo(json.dumps([_plain(o) for o in observed], indent=2))
        case Output.YAML:
            typer.echo(yaml.safe_dump([_plain(o) for o in observed], sort_keys=False), nl=False)
        case Output.TABLE:
            _tables(observed)
    return 0 if all(_is_good(o) for o in observed) else 1


def read_state(directory: Path) -> tuple[Observed, ...]:
    """What a standalone control plane last wrote.

    Raises:
        InvalidInput: there is no readable status file.
    """
    from supervisor_middleware.sources.state import STATUS_FILE

    path = directory / STATUS_FILE
    try:
        return tuple(_of_summary(json.loads(path.read_text())))
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}: no standalone control plane keeps its state here") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path}: is not a status file of smw standalone") from error


def _of_summary(value: Mapping[str, Any]) -> Iterator[Observed]:
    for o in value["objects"]:
        yield Observed(kind=o["kind"], namespace=o["namespace"] or "", name=o["name"], status=o["status"])
    for problem in value["problems"]:
        name = problem["subject"].removeprefix("File ")
        yield Observed(kind="File", namespace="", name=name, status={"violations": [problem]})


def _read_cluster(kubeconfig: Path | None) -> tuple[Observed, ...]:
    import asyncio

    from supervisor_middleware.sources.cluster_api import connect
    from supervisor_middleware.sources.cluster_kinds import WATCHED

    named = kubeconfig or _default_kubeconfig()

    async def read() -> tuple[Observed, ...]:
        found: list[Observed] = []
        async with await connect(named) as api:
            for kind in (Kind.SUPERVISOR_MIDDLEWARE, *POLICY_KINDS):
                async for page in api.pages(WATCHED[kind].collection):
                    found.extend(_of_body(kind.value, body) for body in page.get("items") or ())
        return tuple(found)

    return asyncio.run(read())


def _default_kubeconfig() -> Path | None:
    """As kubectl finds it; None is the Pod's own."""
    if given := os.environ.get("KUBECONFIG"):
        return Path(given)
    at_home = Path("~/.kube/config").expanduser()
    if at_home.exists():
        return at_home
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise InvalidInput("of what? give --state DIR of smw standalone, or --kubeconfig FILE of a cluster")
    return None


def _of_body(kind: str, body: Mapping[str, Any]) -> Observed:
    metadata = body["metadata"]
    return Observed(
        kind=kind, namespace=metadata.get("namespace", ""), name=metadata["name"], status=body.get("status") or {}
    )


def _plain(observed: Observed) -> dict[str, Any]:
    status = {k: v for k, v in observed.status.items() if k != "accepted" or observed.kind in _POLICIES}
    return {"kind": observed.kind, "namespace": observed.namespace or None, "name": observed.name, "status": status}


def _is_good(observed: Observed) -> bool:
    wanted = "Programmed" if observed.kind in _POLICIES else "Ready"
    return observed.condition(wanted).get("status") == "True" and observed.condition("Ready").get("status") == "True"


def _tables(observed: Sequence[Observed]) -> None:
    out = console()
    registrations = [o for o in observed if o.kind == _REGISTRATION]
    policies = [o for o in observed if o.kind in _POLICIES]
    if registrations:
        out.print(
            table(("REGISTRATION", "READY", "REASON", "BINDINGS>", "POLICIES>"), map(_registration, registrations))
        )
    if policies:
        columns = ("POLICY", "READY", "PROGRAMMED", "REASON", "REVISION>", "STAGES>", "ACTIVE>")
        out.print(Text("\n" if registrations else "", end=""), table(columns, map(_policy, policies)), sep="")
    if not registrations and not policies:
        out.print("no registrations and no policies")
    for o in observed:
        if o.status.get("violations"):
            out.print(Text(f"\n{o.title}", style="bold"))
        for violation in o.status.get("violations", ()):
            out.print(Text("  ") + Text(_said(violation)))


def _registration(o: Observed) -> Row:
    ready = o.condition("Ready")
    counts = (str(o.status.get("bindingCount", 0)), str(o.status.get("policies", 0)))
    return (o.name, _state(ready), str(ready.get("reason", "-")), *counts)


def _policy(o: Observed) -> Row:
    ready, programmed, accepted = o.condition("Ready"), o.condition("Programmed"), o.status.get("accepted") or {}
    # What is wrong comes first: a policy that is not Ready is Programmed with its last-known-good.
    telling = programmed if ready.get("status") == "True" else ready
    return (
        f"{o.namespace}/{o.name}" if o.namespace else o.name,
        _state(ready),
        _state(programmed),
        str(telling.get("reason", "-")),
        str(accepted.get("revision", "-")),
        str(o.status.get("stages", 0)),
        str((o.status.get("supervisors") or {}).get("summary", "-")),
    )


def _state(condition: Mapping[str, Any]) -> Text:
    return coloured(str(condition.get("status", "Unknown")))


def _said(violation: Mapping[str, Any]) -> str:
    return ": ".join(part for part in (violation["path"], violation["message"]) if part)
