"""The chart's values are documented, and its schema knows each; what needs Helm or a cluster is in e2e."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import yaml

from tests.contract.chart import CHART, Value, values
from tests.contract.generate import ROOT

_VALUES = (ROOT / CHART / "values.yaml").read_text()
_SCHEMA: dict[str, Any] = json.loads((ROOT / CHART / "values.schema.json").read_text())


def test_every_value_has_a_meaning() -> None:
    documented = {v.path for v in values(_VALUES)}
    undocumented = [
        path
        for path in _leaves(yaml.safe_load(_VALUES))
        if not any(path == known or path.startswith(f"{known}.") for known in documented)
    ]
    assert undocumented == []
    assert all(v.meaning.endswith((".", "`.")) for v in values(_VALUES))


def test_a_value_is_read_with_its_default_and_all_lines_of_its_meaning() -> None:
    text = "# Above all.\n\n# First\n# and more.\na: 1\nb:\n  # Inner.\n  c:\n    d: x\n"
    assert values(text) == (
        Value(path="a", default=1, meaning="First and more."),
        Value(path="b.c", default={"d": "x"}, meaning="Inner."),
    )


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    assert _difference(yaml.safe_load(_VALUES), _SCHEMA, at="") == []


def test_the_defaults_are_valid() -> None:
    jsonschema.Draft7Validator.check_schema(_SCHEMA)
    jsonschema.validate(yaml.safe_load(_VALUES), _SCHEMA)


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((ROOT / CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


def _leaves(found: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in found.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path


def _difference(found: Mapping[str, Any], schema: Mapping[str, Any], *, at: str) -> list[str]:
    """Where the schema's closed objects and the values part."""
    if schema.get("additionalProperties") is not False:
        return []
    # Helm adds `global` to the values of every chart.
    known = {k: v for k, v in schema["properties"].items() if k != "global"}
    missing = [f"{at}{name}" for name in known.keys() ^ found.keys() if not (at and not found)]
    inner = (
        _difference(found[name], _resolved(s), at=f"{at}{name}.")
        for name, s in known.items()
        if isinstance(found.get(name), dict)
    )
    return [*missing, *(path for paths in inner for path in paths)]


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if reference := schema.get("$ref"):
        resolved: Mapping[str, Any] = _SCHEMA["definitions"][reference.removeprefix("#/definitions/")]
        return resolved
    return schema
