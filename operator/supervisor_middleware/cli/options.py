"""Options that several commands share, and their values."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor_middleware.errors import InvalidInput

if TYPE_CHECKING:
    from supervisor_middleware.cli.offline import world
    from supervisor_middleware.cli.rendering import forms


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


class Strictness(StrEnum):
    """Whether an answer that is no mistake, only unwelcome, is a bad one."""

    TELL = "tell"
    FAIL = "fail"


OutputOption = Annotated[Output, typer.Option("--output", "-o", metavar="FORM", help="table, json or yaml.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="State directory; .state/standalone if absent."),
]
LoopbackOption = Annotated[
    bool, typer.Option("--allow-loopback", help="Accept loopback endpoints (one machine, tests).")
]
PathsArgument = Annotated[
    list[Path], typer.Argument(metavar="PATH", help="Files and folders of YAML; - is standard input.")
]
ManifestsOption = Annotated[
    list[Path] | None,
    typer.Option("--manifests", metavar="FILE", help="Manifests recorded with smw describe -o yaml; repeatable."),
]
LiveOption = Annotated[bool, typer.Option("--live", help="Ask the services themselves.")]
CredentialsOption = Annotated[
    Path | None, typer.Option("--credentials", metavar="DIR", help="Holds tls.crt, tls.key, ca.crt for --live.")
]
FormatOption = Annotated[
    Form, typer.Option("--format", metavar="FORM", help="text, or github: annotations of a CI run.")
]


def offline_options(
    paths: Sequence[Path],
    *,
    manifests: Sequence[Path] | None,
    live: bool = False,
    credentials: Path | None = None,
    allow_loopback: bool,
) -> "world.Options":
    """What is read and how, of every command that judges a folder."""
    from supervisor_middleware.cli.offline.world import Options
    from supervisor_middleware.model.settings import Knowledge, Loopback

    return Options(
        paths=tuple(paths),
        manifests=tuple(manifests or ()),
        knowledge=Knowledge.LIVE if live else Knowledge.OFFLINE,
        credentials=credentials,
        loopback=Loopback.ALLOWED if allow_loopback else Loopback.REFUSED,
    )


def form_of(form: Form, output: Output) -> "forms.Form":
    """How it is shown, of the two options that say so.

    Raises:
        InvalidInput: they contradict each other.
    """
    from supervisor_middleware.cli.rendering import forms

    if form is Form.GITHUB and output is not Output.TABLE:
        raise InvalidInput("--format github and --output exclude each other: annotations, or a value")
    return forms.Form.GITHUB if form is Form.GITHUB else forms.Form(output.value)
