"""`smw compile`: the generation of each sandbox, as its supervisor would get it. Equal ones are shown once.

Configs may hold secrets and the output goes to logs: without being asked it shows their digests and sizes.

Exit codes: 0, 1 the policies are not valid (the report is all there is then), 2 it could not be told.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from supervisor_middleware.cli.offline.assumptions import note
from supervisor_middleware.cli.offline.complaints import complain, explain
from supervisor_middleware.cli.offline.scopes import Scope, chosen_scopes
from supervisor_middleware.cli.offline.world import Options as Offline
from supervisor_middleware.cli.offline.world import World, gathered
from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.rendering.forms import Form, write
from supervisor_middleware.cli.rendering.sizes import counted, size_of
from supervisor_middleware.cli.rendering.tables import table
from supervisor_middleware.model.canonical import JsonObject, JsonValue, canonical, digest, parse, short
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.generation import Sealed, Stage, seal
from supervisor_middleware.model.hosts import HostSelector
from supervisor_middleware.model.identifiers import some_of
from supervisor_middleware.model.violation import Report

SCHEMA_VERSION: Final = 1
_COLUMNS: Final = ("#>", "STAGE", "MIDDLEWARE", "SERVICE", "WITHIN>", "BODY>", "ON ERROR", "CONFIG", "HOSTS")
_SHOWN_PATTERNS: Final = 2


class Configs(StrEnum):
    """How configs and CA bundles are shown."""

    DIGESTS = "digests"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is compiled; `sandbox` names one, or a namespace."""

    world: Offline
    sandbox: str = ""
    output: Output = Output.YAML
    configs: Configs = Configs.DIGESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A generation and every sandbox that runs it. `assumed` are bindings of which nobody knows what they offer."""

    sealed: Sealed
    scopes: tuple[Scope, ...]
    assumed: tuple[str, ...]


def run(options: Options, *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Compile and show; returns the exit code.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    out, err = out or sys.stdout, err or sys.stderr
    world = gathered(options.world, err=err)
    if complain(world, err):
        return 1
    compiled = compiled_of(chosen_scopes(world.scopes, options.sandbox), world)
    if world.report.warnings and not world.is_empty:
        explain(Report(warnings=world.report.warnings), world, err)
    render(compiled, options, out=out)
    return 0


def compiled_of(scopes: Sequence[Scope], world: World) -> tuple[Compiled, ...]:
    """Each generation once, in the order of the scopes."""
    sealed: dict[int, Sealed] = {}
    by_digest: dict[str, list[Scope]] = {}
    for scope in scopes:
        generation = id(scope.generation)
        if generation not in sealed:
            sealed[generation] = seal(scope.generation)
        by_digest.setdefault(sealed[generation].digest, []).append(scope)
    return tuple(
        Compiled(
            sealed=sealed[id(found[0].generation)],
            scopes=tuple(found),
            assumed=world.assumed(found[0].generation.stages),
        )
        for found in by_digest.values()
    )


def render(compiled: Sequence[Compiled], options: Options, *, out: TextIO) -> None:
    """Write it to `out`."""
    people, machines = partial(_tables, compiled), partial(_values, compiled, options.configs)
    write(Form(options.output), out=out, people=people, machines=machines)


# ---------------------------------------------------------------------------------------------------- for machines


def _values(compiled: Sequence[Compiled], configs: Configs) -> JsonObject:
    return {"schemaVersion": SCHEMA_VERSION, "generations": [_value(c, configs) for c in compiled]}


def _value(compiled: Compiled, configs: Configs) -> JsonObject:
    parsed = parse(compiled.sealed.payload)
    payload = {key: parsed[key] for key in ("schemaVersion", "stages", "services")}
    payload["stages"] = [_in_reading_order(stage) for stage in payload["stages"]]
    if configs is Configs.DIGESTS:
        payload["stages"] = [_without_config(stage) for stage in payload["stages"]]
        payload["services"] = [_without_bundle(service) for service in payload["services"]]
    return {
        "sandboxes": [_scope(s) for s in compiled.scopes],
        "digest": compiled.sealed.digest,
        "bytes": len(compiled.sealed.payload),
        "assumed": list(compiled.assumed),
        "generation": payload,
    }


def _scope(scope: Scope) -> JsonObject:
    sandbox = scope.sandbox
    return {
        "title": scope.title,
        "namespace": sandbox.namespace,
        "name": None if scope.is_assumed else sandbox.name,
        "labels": dict(sorted(sandbox.labels.items())),
    }


def _without_config(stage: JsonObject) -> JsonObject:
    content = canonical(stage["config"])
    shown: dict[str, JsonValue] = {}
    for key, value in stage.items():
        if key == "config":
            shown |= {"configDigest": digest(content), "configBytes": len(content)}
        else:
            shown[key] = value
    return shown


def _without_bundle(service: JsonObject) -> JsonObject:
    connection = service["connection"]
    if not isinstance(connection, dict) or not connection["caBundle"]:
        return service
    bundle = str(connection.pop("caBundle")).encode()
    return {**service, "connection": {**connection, "caBundleDigest": digest(bundle)}}


def _in_reading_order(stage: JsonObject) -> JsonObject:
    """Who it is first, then whom it concerns, then its limits."""
    order = ("key", "label", "policy", "binding", "service", "include", "exclude", "onError")
    first = {key: stage[key] for key in order if key in stage}
    return {**first, **{key: value for key, value in stage.items() if key not in first}}


# ------------------------------------------------------------------------------------------------------ for people


def _tables(compiled: Sequence[Compiled], console: Console) -> None:
    for item in compiled:
        _table(item, console)
    assumed = sorted({binding for c in compiled for binding in c.assumed})
    if assumed:
        console.print(Text(note(assumed), style="yellow"))
    scopes = sum(len(c.scopes) for c in compiled)
    console.print(f"{counted(len(compiled), 'generation')}, {counted(scopes, 'scope')}")


def _table(compiled: Compiled, console: Console) -> None:
    for scope in compiled.scopes:
        console.print(Text(scope.title, style="bold"))
    sealed = compiled.sealed
    console.print(Text(f"  {short(sealed.digest)}, {size_of(len(sealed.payload))}", style="dim"))
    stages = sealed.generation.stages
    if stages:
        for line in table(
            _COLUMNS, [_row(n, s, "?" if s.binding in compiled.assumed else "") for n, s in enumerate(stages, 1)]
        ).split("\n"):
            line.rstrip()
            console.print(Text("  ").append_text(line))
    else:
        console.print("  no stage: nothing is inspected")
    console.print()


def _row(number: int, stage: Stage, mark: str) -> tuple[str | Text, ...]:
    unresolved = stage.unresolved
    content = canonical(stage.config)
    return (
        str(number),
        stage.key,
        stage.binding,
        Text(f"none: {unresolved}", style="yellow")
        if unresolved
        else f"{stage.service.removesuffix(mark)}{mark}"
        if stage.service
        else "built-in",
        "-" if unresolved else f"{format_duration(stage.timeout)}{mark}",
        "-" if unresolved else f"{size_of(stage.max_body_bytes)}{mark}",
        stage.on_error.value,
        short(digest(content)) if stage.config else "-",
        _hosts(stage.selector),
    )


def _hosts(selector: HostSelector) -> str:
    excluded = (
        f" except {some_of([str(p) for p in selector.exclude], limit=_SHOWN_PATTERNS)}" if selector.exclude else ""
    )
    return some_of([str(p) for p in selector.include], limit=_SHOWN_PATTERNS) + excluded
