"""`smw schema`: an editor underlines what the API server or `smw validate` would refuse, and nothing that is right."""

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from supervisor_middleware.cli.editor_schema import KINDS, schema_for
from supervisor_middleware.model.sandbox import API_VERSION
from tests.cli.commands import Smw
from tests.contract.editor_schema import SCHEMA, editor_schema

ROOT: Final = Path(__file__).resolve().parents[2]
POLICY: Final = yaml.safe_load((ROOT / "examples/quickstart/20-policy.yaml").read_text(encoding="utf-8"))
ANY: Final = jsonschema.Draft7Validator(schema_for(None))


def examples() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(ROOT.glob("examples/*/**/*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if isinstance(document, Mapping) and "kind" in document:
                yield f"{path.relative_to(ROOT)}:{document['kind']}", document


EXAMPLES: Final = dict(examples())


def wrong(document: object) -> list[str]:
    return [".".join(map(str, e.absolute_path)) for e in _leaves(ANY.iter_errors(document))]


def changed(*path: str, to: object) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(POLICY)
    *parents, last = path
    inner = document
    for key in parents:
        inner = inner[key]
    inner[last] = to
    return document


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_valid(name: str) -> None:
    assert wrong(EXAMPLES[name]) == []


def test_it_is_a_schema_and_each_field_is_described() -> None:
    for kind in (None, *KINDS):
        schema = schema_for(kind)
        jsonschema.Draft7Validator.check_schema(schema)
        assert list(_undescribed(schema, "")) == []


@pytest.mark.parametrize(
    ("document", "at"),
    [
        (changed("apiVersion", to="middleware.openshell.io/v1"), "apiVersion"),
        (changed("kind", to="SandboxPolicies"), "kind"),
        (changed("metadata", to={}), "metadata"),
        (changed("spec", "sandboxselector", to={}), "spec"),
        (changed("spec", to={}), "spec"),
        (changed("spec", "networkMiddlewares", "api-keys", "onError", to="fail_open"), "onError"),
        (changed("spec", "networkMiddlewares", "api-keys", "order", to=1.5), "order"),
        (changed("spec", "networkMiddlewares", "api-keys", "middleware", to="/x"), "middleware"),
        (changed("spec", "networkMiddlewares", "api-keys", "endpoints", "include", to=[]), "include"),
        (changed("spec", "networkMiddlewares", "API_KEYS", to={}), "networkMiddlewares"),
        (changed("spec", "activationDeadline", to="soon"), "activationDeadline"),
    ],
)
def test_what_is_broken_is_underlined_where_it_stands(document: Mapping[str, Any], at: str) -> None:
    assert any(path.endswith(at) for path in wrong(document)), wrong(document)


def test_a_config_is_free_and_other_apis_pass() -> None:
    assert (
        wrong(changed("spec", "networkMiddlewares", "api-keys", "config", to={"a": [None, 1.5, {"b": True}]})) == []
    )
    assert wrong({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}) == []
    assert wrong({"kind": "SandboxPolicy"}) != []


def test_each_kind_can_be_had_alone_whatever_its_case(smw: Smw) -> None:
    for kind in KINDS:
        shown = smw("schema", kind.lower())
        assert (shown.code, shown.err) == (0, "")
        schema = json.loads(shown.out)
        assert schema["title"] == kind
        assert schema["properties"]["kind"]["const"] == kind
        assert schema["properties"]["apiVersion"]["const"] == API_VERSION
    shown = smw("schema", "Pod")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("smw: there is no kind of that name; the kinds are SupervisorMiddleware, ")


@pytest.mark.parametrize(
    ("cases", "is_right"),
    [
        ([{"name": "a", "request": {"host": "a.com"}, "expect": {"decision": "allow"}}], True),
        ([{"name": "a", "request": {"host": "a.com"}, "expect": {"decison": "allow"}}], False),
        ([{"name": "a"}], False),
        ({}, False),
    ],
)
def test_cases_have_a_schema_of_their_own(smw: Smw, *, cases: object, is_right: bool) -> None:
    schema = json.loads(smw("schema", "cases").out)
    jsonschema.Draft7Validator.check_schema(schema)
    assert jsonschema.Draft7Validator(schema).is_valid(cases) is is_right


@pytest.mark.parametrize("folder", ["quickstart", "gitops"])
def test_the_cases_of_the_examples_have_that_form(folder: str) -> None:
    text = (ROOT / "examples" / folder / "cases.yaml").read_text(encoding="utf-8")
    assert jsonschema.Draft7Validator(schema_for("cases")).is_valid(yaml.safe_load(text))


def test_the_command_prints_the_file_of_the_repository(smw: Smw) -> None:
    assert smw("schema").out.encode() == editor_schema()[SCHEMA]


def _leaves(errors: Iterator[Any]) -> Iterator[Any]:
    for error in errors:
        yield from _leaves(iter(error.context)) if error.context else (error,)


def _undescribed(schema: Mapping[str, Any], at: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        if at and "description" not in inner:
            yield f"{at}.{name}"
        yield from _undescribed(inner, f"{at}.{name}")
    for key in ("items", "additionalProperties", *(f"definitions.{k}" for k in schema.get("definitions", {}))):
        inner = schema.get(key) if "." not in key else schema["definitions"][key.partition(".")[2]]
        if isinstance(inner, Mapping):
            yield from _undescribed(inner, f"{at}.{key}")
