"""`smw convert`: read files of either form, convert, write the result to stdout and what was lost to stderr.

Exit codes: 0 nothing was lost, 1 something was (the result is written all the same), 2 a file could not be read.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import tomli_w
import typer
from rich.text import Text

from supervisor_middleware.cli.conversion.pipeline import Names, Source, convert
from supervisor_middleware.cli.conversion.registrations import AT, bundle_paths
from supervisor_middleware.cli.conversion.remarks import Converted, Grade, Remark
from supervisor_middleware.cli.conversion.targets import Target
from supervisor_middleware.cli.options import Written
from supervisor_middleware.cli.rendering.tables import console, table
from supervisor_middleware.cli.rendering.yaml_output import dump_documents
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.spiffe import is_label
from supervisor_middleware.sources.documents import MAX_FILE_BYTES, read_documents
from supervisor_middleware.sources.files import Found, list_files, read_bytes

_HEADING: Final = f"[[{'.'.join(AT)}]]"
_POSITION: Final = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")
_COLOURS: Final = {Grade.LOST: "red", Grade.CHANGED: "yellow", Grade.SKIPPED: "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is converted, and into what."""

    paths: tuple[Path, ...]
    to: Target | None = None
    names: Names = field(default_factory=Names)
    written: Written = Written.YAML


def run(options: Options) -> int:
    """Convert and write; returns the exit code.

    Raises:
        InvalidInput: a file cannot be read, or there is nothing to convert.
    """
    _require_namespace(options.names)
    files = list_files(options.paths)
    if files.missing:
        raise InvalidInput(f"{', '.join(files.missing)}: no such file or folder")
    sources = [source for found in files.files for source in _read(found)]
    bundles = dict(_bundles(sources, files.files))
    target, result = convert(sources, to=options.to, names=options.names, bundles=bundles)
    if options.written is Written.JSON:
        typer.echo(json.dumps(_value(result), indent=2, ensure_ascii=False))
    else:
        typer.echo(_text(result, target), nl=False)
        _report(result.remarks)
    return 0 if result.is_complete else 1


def _require_namespace(names: Names) -> None:
    if names.namespace and not is_label(names.namespace):
        raise InvalidInput("--namespace: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")


def _read(found: Found) -> list[Source]:
    try:
        content = read_bytes(found)
    except OSError as error:
        raise InvalidInput(f"{found.name}: {error.strerror or 'it cannot be read'}") from error
    if found.path.suffix == ".toml" or _HEADING.encode() in content:
        return [Source(file=found.name, value=_toml(content, found.name), is_toml=True)]
    parsed = read_documents(content)
    if parsed.problems:
        said = "; ".join(f"{found.name}: line {p.line}: {p.message}" for p in parsed.problems)
        raise InvalidInput(f"{said} (nothing was converted)")
    return [Source(file=found.name, value=document.value) for document in parsed.documents]


def _toml(content: bytes, name: str) -> JsonObject:
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInput(f"{name}: is larger than {MAX_FILE_BYTES} bytes, the limit of a file")
    try:
        config: JsonObject = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        # Where, not what: the parser's own words may hold a piece of the file.
        where = found.group().removeprefix("(").removesuffix(")") if (found := _POSITION.search(str(error))) else ""
        raise InvalidInput(f"{name}: is no TOML{f', {where}' if where else ''} (nothing was converted)") from None
    return config


def _bundles(sources: Sequence[Source], files: Sequence[Found]) -> Iterator[tuple[str, dict[str, str]]]:
    folders = {found.name: found.path.parent for found in files}
    for source in sources:
        if source.is_toml and isinstance(source.value, dict):
            folder = folders[source.file]
            found = ((path, _certificates(folder / path)) for path in bundle_paths(source.value))
            yield source.file, {path: pem for path, pem in found if pem is not None}


def _certificates(path: Path) -> str | None:
    """PEM that a TOML names; what is no certificate, a key above all, is left alone."""
    try:
        pem = read_bytes(Found(path=path, name=path.name, is_named=False))
        parse_bundle(pem)
        return pem.decode("ascii")
    except (OSError, InvalidInput, ValueError):
        return None


def _text(result: Converted, target: Target) -> str:
    if target is not Target.TOML:
        return dump_documents(result.documents)
    return "\n".join(f"{_HEADING}\n{tomli_w.dumps(entry)}" for entry in result.documents)


def _value(result: Converted) -> JsonObject:
    return {"documents": result.documents, "report": [r.to_json() for r in result.remarks]}


def _report(remarks: Sequence[Remark]) -> None:
    if not remarks:
        return
    rows = [(Text(r.grade.value, style=_COLOURS[r.grade]), r.subject, r.path or "-", r.message) for r in remarks]
    console(sys.stderr).print(table(("REPORT", "OF", "FIELD", "WHY"), rows))
