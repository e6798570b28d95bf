"""`smw capabilities` for people and machines."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

import typer
import yaml

from supervisor_middleware.cli.capabilities.facts import capabilities
from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.rendering.tables import console, table
from supervisor_middleware.model.canonical import JsonObject


def run(*, output: Output) -> None:
    """Print them."""
    value = capabilities(version("supervisor-middleware"))
    match output:
        case Output.JSON:
            typer.echo(json.dumps(value, indent=2))
        case Output.YAML:
            typer.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
        case Output.TABLE:
            console().print(table(("CAPABILITY", "VALUE", "MEANING"), _rows(value)))


def _rows(value: JsonObject) -> Iterator[tuple[str, str, str]]:
    """One line a fact; the first column is where JSON has it."""
    for name, part in value.items():
        if isinstance(part, Mapping):
            yield from _of_mapping(name, part)
        elif isinstance(part, Sequence) and not isinstance(part, str):
            yield from (_of_row(name, row) for row in part if isinstance(row, Mapping))
        else:
            yield name, str(part), ""


def _of_mapping(name: str, part: JsonObject) -> Iterator[tuple[str, str, str]]:
    for key, inner in part.items():
        if isinstance(inner, Mapping):
            yield f"{name}.{key}", str(inner["value"]), str(inner["meaning"])
        elif isinstance(inner, str):
            yield f"{name}.{key}", inner, ""
        else:
            yield from _rows({f"{name}.{key}": inner})


def _of_row(name: str, row: JsonObject) -> tuple[str, str, str]:
    first, *rest = (f"{key} {value}" if isinstance(value, int) else str(value) for key, value in row.items())
    return name, first, ", ".join(filter(None, rest))
