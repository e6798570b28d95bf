"""Recorded manifests, as `smw describe -o yaml` writes them: `{registration: NAME, dialect: …, bindings: […]}`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.violation import Report, Violation, merge, report
from supervisor_middleware.sources.assembly import about_file, findings_of
from supervisor_middleware.sources.documents import read_documents
from supervisor_middleware.sources.files import list_files, read_bytes

_RECORD: Final = "record it with smw describe ENDPOINT -o yaml"


def read_manifests(paths: Sequence[Path]) -> tuple[dict[str, Manifest], Report]:
    """Manifests by registration name, and what is wrong with the files.

    Raises:
        InvalidInput: a file cannot be read.
    """
    manifests: dict[str, Manifest] = {}
    reports: list[Report] = []
    for found in list_files(paths).files:
        try:
            parsed = read_documents(read_bytes(found))
        except OSError as error:
            raise InvalidInput(f"{found.name}: {error.strerror}") from error
        reports.append(findings_of(found.name, problems=parsed.problems, advice=()))
        entries = [
            (d.line, e) for d in parsed.documents for e in (d.value if isinstance(d.value, list) else [d.value])
        ]
        # What is left of `smw describe > file` that failed must not pass for a check.
        empty = [] if entries or parsed.problems else [about_file(found.name, "", "holds no manifest", hint=_RECORD)]
        reports.append(report([*_take(found.name, entries, manifests), *empty]))
    return manifests, merge(reports)


def _take(name: str, entries: Iterable[tuple[int, JsonValue]], manifests: dict[str, Manifest]) -> Iterator[Violation]:
    for line, entry in entries:
        try:
            registration, manifest = _manifest(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            yield about_file(name, f"line {line}", "is no recorded manifest", hint=_RECORD)
            continue
        if registration in manifests:
            yield about_file(name, f"line {line}", "a manifest of this registration was read before", hint="keep one")
        manifests.setdefault(registration, manifest)


def _manifest(entry: JsonValue) -> tuple[str, Manifest]:
    if not isinstance(entry, Mapping) or not isinstance(entry["registration"], str):
        raise TypeError
    return entry["registration"], Manifest.from_json(entry)
