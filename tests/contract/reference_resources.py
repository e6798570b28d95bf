"""`docs/reference/resources.md` out of the CRDs: what the API server enforces is what the page says."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from supervisor_middleware.model.resources import SandboxSpec
from tests.contract.crds import crds, structural
from tests.contract.markdown import code, page, table
from tests.contract.reference_words import STATUS

_HEADER: Final = ("Field", "Type", "Required", "Default", "Rule", "Meaning")
_INTRO: Final = """
API group `middleware.openshell.io`, version `v1alpha1`. Every rule on this page is in the CRD and holds even with the
operator down. Rules that need other objects or a service (does the binding exist, does the service take the config,
do two policies conflict) are the webhook's and the reconciler's: see [violations](violations.md) and
[limits](limits.md). Those rules are checked by `smw validate`, too. A `<key>` stands for a key of a map.
"""
_SANDBOX: Final = """
No kind of the cluster: there, a sandbox is a Pod with the label `middleware.openshell.io/sandbox`. In a folder that
the standalone control plane reads it is a document with `metadata.name`, `metadata.namespace` and `metadata.labels`,
which become:
"""
_POINTER: Final = "; run smw validate"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    path: str
    schema: Mapping[str, Any]
    is_required: bool


def resources() -> bytes:
    """The page."""
    parts = [part for content in crds().values() for part in _kind(yaml.safe_load(content))]
    return page(
        "Resources", _INTRO, *parts, "## Sandbox (standalone only)", _SANDBOX, _table(structural(SandboxSpec))
    )


def _kind(crd: Mapping[str, Any]) -> Iterator[str]:
    spec = crd["spec"]
    names, version = spec["names"], spec["versions"][0]
    root = version["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}"
    yield (
        f"{root['description']}\n\n{spec['scope']}, short name `{names['shortNames'][0]}`, "
        f"category `{names['categories'][0]}`. {_columns(version['additionalPrinterColumns'])}"
    )
    if rules := _messages(root):
        yield f"The whole object is {rules}."
    for part in ("spec", "status"):
        if part in root["properties"]:
            yield f"### {names['kind']}: {part}"
            if rules := _messages(root["properties"][part]):
                yield f"The whole {part} is {rules}."
            yield _table(root["properties"][part], at=part)


def _columns(columns: Iterable[Mapping[str, Any]]) -> str:
    always = ", ".join(c["name"].upper() for c in columns if "priority" not in c)
    wide = ", ".join(c["name"].upper() for c in columns if "priority" in c)
    return f"Columns of `kubectl get`: {always}" + (f"; with `-o wide` also {wide}." if wide else ".")


def _table(schema: Mapping[str, Any], *, at: str = "") -> str:
    return table(_HEADER, (_row(f) for f in _fields(schema, at=at)))


def _row(field: _Field) -> tuple[str, ...]:
    schema = field.schema
    return (
        code(field.path),
        _type(schema),
        "yes" if field.is_required else "",
        _default(schema.get("default")),
        _rules(schema),
        STATUS.get(field.path) or str(schema.get("description") or ""),
    )


def _default(value: object) -> str:
    if value is None or value == "" or isinstance(value, dict | list):
        return ""
    return code(json.dumps(value) if isinstance(value, bool) else value)


def _fields(schema: Mapping[str, Any], *, at: str) -> Iterator[_Field]:
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        yield _Field(path=path, schema=inner, is_required=name in required)
        yield from _inside(inner, at=path)


def _inside(schema: Mapping[str, Any], *, at: str) -> Iterator[_Field]:
    yield from _fields(schema, at=at)
    if isinstance(items := schema.get("items"), Mapping):
        yield from _inside(items, at=f"{at}[]")
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        if values.get("properties"):
            yield _Field(path=f"{at}.<key>", schema=values, is_required=False)
        yield from _inside(values, at=f"{at}.<key>")


def _type(schema: Mapping[str, Any]) -> str:
    if isinstance(items := schema.get("items"), Mapping):
        return f"list of {_type(items)}"
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        return f"map of {_type(values)}"
    kind = str(schema.get("type", "any"))
    return f"{kind} ({schema['format']})" if "format" in schema else kind


def _rules(schema: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, (_bounds(schema), *_item_bounds(schema), _messages(schema))))


def _item_bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    for word, key in (("each item", "items"), ("each value", "additionalProperties")):
        inner = schema.get(key)
        if isinstance(inner, Mapping) and not inner.get("properties") and (text := _bounds(inner)):
            yield f"{word}: {text}"


def _bounds(schema: Mapping[str, Any]) -> str:
    return "; ".join(_each_bound(schema))


def _each_bound(schema: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in schema:
        yield " or ".join(code(value) for value in schema["enum"])
    for unit, least, most in (
        ("", "minimum", "maximum"),
        (" characters", "minLength", "maxLength"),
        (" items", "minItems", "maxItems"),
        (" keys", "minProperties", "maxProperties"),
    ):
        low, high = schema.get(least), schema.get(most)
        if low is not None and high is not None:
            yield f"{low} to {high}{unit}"
        elif high is not None:
            yield f"at most {high}{unit}"
        elif low is not None:
            yield f"at least {low}{unit}"
    if "pattern" in schema:
        yield code(schema["pattern"])


def _messages(schema: Mapping[str, Any]) -> str:
    """What the API server says when a CEL rule does not hold."""
    rules = schema.get("x-kubernetes-validations", ())
    texts = [str(rule.get("message", rule["rule"])).partition(_POINTER)[0] for rule in rules]
    return f"refused with {' or '.join(f'*{_escaped(t)}*' for t in texts)}" if texts else ""


def _escaped(text: str) -> str:
    return text.replace("*", r"\*").replace("<", r"\<")
