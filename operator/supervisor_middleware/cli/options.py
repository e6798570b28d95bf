"""Options that several commands share, and their values."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How an answer is shown."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Form(StrEnum):
    """How a report is shown."""

    TEXT = "text"
    GITHUB = "github"


class Written(StrEnum):
    """How documents are written."""

    YAML = "yaml"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", metavar="FORM", help="table, json or yaml.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="State directory; .state/standalone if absent."),
]
LoopbackOption = Annotated[
    bool, typer.Option("--allow-loopback", help="Accept loopback endpoints (one machine, tests).")
]
