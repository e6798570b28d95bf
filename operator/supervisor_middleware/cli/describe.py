"""`smw describe`: ask a service what it is and show or record its manifest."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
import yaml

from supervisor_middleware.cli.identities import client_identity
from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.rendering.tables import console, table
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.durations import parse_timeout
from supervisor_middleware.model.identifiers import status_text
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.registration import ClientAuthentication, Connection
from supervisor_middleware.model.verdict import Described, Description, Outage, Undescribable, Unreachable
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.registry.client import RegistryClient

_NEXT: Final[Mapping[Outage, str]] = {
    Outage.CONNECTION_FAILED: "does a service listen there, and with TLS if it is https://?",
    Outage.DEADLINE_EXCEEDED: "--timeout gives it longer",
    Outage.TLS_VERIFICATION_FAILED: "--ca is its authority, --server-name a name in its certificate",
    Outage.NOT_IMPLEMENTED: "is that the port of a middleware service?",
}
_REFUSED: Final = frozenset({Outage.CREDENTIALS_REFUSED, Outage.CLOSED_AFTER_HANDSHAKE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask and how to verify it."""

    endpoint: str
    name: str
    ca: Path | None
    server_name: str
    credentials: Path | None
    timeout: str


def run(target: Target, *, output: Output) -> int:
    """Ask and show. 0 a manifest, 1 an answer that is none, 2 no answer.

    Raises:
        InvalidInput: an option is no good.
    """
    connection = _connection(target)
    description = asyncio.run(_ask(connection, target))
    match description:
        case Described(manifest):
            _show(target.name, manifest, output=output)
            return 0
        case Undescribable(problem):
            typer.echo(f"smw: {target.endpoint} answered, but {problem}", err=True)
            return 1
        case Unreachable(outage):
            typer.echo(f"smw: {target.endpoint} could not be asked: {outage}{_hint(outage, target)}", err=True)
            return 2


def _hint(outage: Outage, target: Target) -> str:
    """What to try next, in parentheses."""
    hint = _NEXT.get(outage, "")
    if outage in _REFUSED:
        hint = "are --credentials of an authority that it trusts?" if target.credentials else "try --credentials"
    return f" ({hint})" if hint else ""


def recorded(name: str, manifest: Manifest) -> Mapping[str, Any]:
    """The form `smw validate --manifests` reads."""
    return {"registration": name, **manifest.to_json()}


def _connection(target: Target) -> Connection:
    if not target.endpoint.startswith(("https://", "http://")):
        raise InvalidInput("the endpoint must begin with https:// (or http:// for plaintext)")
    try:
        timeout = parse_timeout(target.timeout)
    except ValueError as error:
        raise InvalidInput(f"--timeout {error}") from None
    bundle = "" if target.ca is None else _certificates(target.ca)
    authentication = ClientAuthentication.NONE if target.credentials is None else ClientAuthentication.MUTUAL_TLS
    return Connection(
        endpoint=target.endpoint,
        timeout=timeout,
        ca_bundle_pem=bundle,
        server_name=target.server_name,
        client_authentication=authentication,
    )


def _certificates(path: Path) -> str:
    try:
        content = path.read_bytes()
        parse_bundle(content)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return content.decode("ascii", "replace")


async def _ask(connection: Connection, target: Target) -> Description:
    identity = client_identity(target.credentials)
    client = RegistryClient(lambda: identity)
    try:
        return await client.describe(connection, registration_name=target.name)
    finally:
        await client.close()


def _show(name: str, manifest: Manifest, *, output: Output) -> None:
    value = recorded(name, manifest)
    match output:
        case Output.JSON:
            typer.echo(json.dumps(value, indent=2))
        case Output.YAML:
            typer.echo(yaml.safe_dump(dict(value), sort_keys=False), nl=False)
        case Output.TABLE:
            _table(manifest)


def _table(manifest: Manifest) -> None:
    # A service's own text on somebody's terminal: only what cannot carry control characters.
    version = status_text(manifest.service_version)
    typer.echo(f"{status_text(manifest.name)} {version} (dialect {manifest.dialect.value})")
    columns = ("BINDING", "OPERATION", "PHASE", "MAX BODY>", "TIMEOUT>")
    rows = (
        (
            status_text(binding.id),
            binding.operation.value,
            binding.phase.value,
            str(binding.max_body_bytes),
            status_text(binding.timeout) if binding.timeout else "-",
        )
        for binding in manifest.bindings
    )
    console().print(table(columns, rows))
