"""What the chart holds of other places: the CRDs as templates, and the table of its values.

The chart is self-contained, so these are copies; the CRDs come from `crds`, the table from comments in `values.yaml`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.contract.crds import crds

CHART: Final = Path("charts/supervisor-middleware")
_ROOT: Final = Path(__file__).resolve().parents[2]
_HEADER: Final = "# Generated from crds/ by `make generate`; do not edit.\n"
# Templates and not `crds/`: what is there, Helm never upgrades, and fields that the old schema lacks would be pruned.
_BEFORE: Final = "{{- if .Values.crds.install }}\n"
_KEEP: Final = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""
_START, _END = "<!-- values: generated from values.yaml by `make generate` -->\n", "<!-- end of values -->\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value: its dotted path, default and meaning."""

    path: str
    default: Any
    meaning: str


def chart() -> Mapping[Path, bytes]:
    """Templates of the CRDs, and the chart's README with its table."""
    return {**dict(_templates()), CHART / "README.md": _readme()}


def values(text: str) -> tuple[Value, ...]:
    """Every value of a `values.yaml` that has a comment right above it, in order; those below it are part of it."""
    found, comment, inside = [], list[str](), list[tuple[int, str]]()
    loaded = yaml.safe_load(text)
    skipped: int | None = None
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped:
            comment = []
        elif stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
        elif skipped is None or indent <= skipped:
            skipped = None
            name = stripped.partition(":")[0]
            inside = [(depth, parent) for depth, parent in inside if depth < indent] + [(indent, name)]
            if comment:
                keys = [parent for _, parent in inside]
                found.append(Value(path=".".join(keys), default=_at(loaded, keys), meaning=" ".join(comment)))
                skipped = indent
            comment = []
    return tuple(found)


def _at(loaded: Any, keys: list[str]) -> Any:
    for key in keys:
        loaded = loaded[key]
    return loaded


def _templates() -> Iterator[tuple[Path, bytes]]:
    for path, content in crds().items():
        text = content.decode()
        if "{{" in text:
            raise ValueError(f"{path} holds what Helm takes for a template")
        lines = [line for line in text.splitlines(keepends=True) if not line.startswith("#")]
        name = next(i for i, line in enumerate(lines) if line.startswith("  name: "))
        body = "".join([*lines[: name + 1], _KEEP, *lines[name + 1 :]])
        yield CHART / "templates" / "crds" / path.name, (_HEADER + _BEFORE + body + "{{- end }}\n").encode()


def _readme() -> bytes:
    text = (_ROOT / CHART / "README.md").read_text()
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    rows = [
        f"| `{v.path}` | `{json.dumps(v.default)}` | {v.meaning} |"
        for v in values((_ROOT / CHART / "values.yaml").read_text())
    ]
    table = "\n".join(["", "| Value | Default | Meaning |", "| --- | --- | --- |", *rows, "", ""])
    return (before + _START + table + _END + after).encode()
