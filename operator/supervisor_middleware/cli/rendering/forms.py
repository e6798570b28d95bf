"""The forms in which a command shows what it found: the same for people, for machines and on a pull request."""

import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TextIO, assert_never

from rich.console import Console

from supervisor_middleware.cli.rendering.tables import console
from supervisor_middleware.cli.rendering.yaml_output import dump_documents
from supervisor_middleware.model.canonical import JsonObject


class Form(StrEnum):
    """How the result is shown."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    GITHUB = "github"


def write(
    form: Form,
    *,
    out: TextIO,
    people: Callable[[Console], None],
    machines: Callable[[], JsonObject],
    annotations: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Write it to `out`; colours only if that is a terminal."""
    match form:
        case Form.TABLE:
            people(console(out))
        case Form.JSON:
            out.write(json.dumps(machines(), indent=2) + "\n")
        case Form.YAML:
            out.write(dump_documents([machines()]))
        case Form.GITHUB:
            out.writelines(f"{line}\n" for line in annotations())
        case _:
            assert_never(form)
