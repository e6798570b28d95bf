"""A JSON Schema for editors, out of the models that the CRDs are made of. PURE.

Draft 7, which yaml-language-server, VS Code and JetBrains all read. Stricter than a CRD in one point: an unknown
field is underlined instead of pruned. What no schema can say (unique orders, overlaps) is for `smw validate`.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from supervisor_middleware.cli.simulate.cases import cases_schema
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.identifiers import KEY_PATTERN
from supervisor_middleware.model.resources import SPECS, SandboxSpec
from supervisor_middleware.model.sandbox import API_VERSION, GROUP

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
SANDBOX: Final = "Sandbox"
KINDS: Final = (*SPECS, SANDBOX)
CASES: Final = "cases"

_DROPPED: Final = frozenset({"title", "$defs", "anyOf"})
_KEYED: Final = "networkMiddlewares"
_TEXTS: Final[Mapping[str, Any]] = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: Final[Mapping[str, Mapping[str, Any]]] = {
    "name": {"type": "string", "minLength": 1, "description": "Name of the object."},
    "namespace": {"type": "string", "minLength": 1, "description": "Namespace of the object."},
    "labels": {**_TEXTS, "description": "Labels of the object."},
    "annotations": {**_TEXTS, "description": "Annotations of the object."},
}


def schema_for(kind: str | None) -> dict[str, Any]:
    """The schema of one kind, of a file of cases, or of any document: then those of other APIs pass.

    Raises:
        InvalidInput: there is no such kind.
    """
    if kind is not None and kind.lower() == CASES:
        return {"$schema": DIALECT, "title": "Cases of smw simulate", **cases_schema()}
    if kind is None:
        return {"$schema": DIALECT, "title": f"Resources of {GROUP}", **_any_document()}
    found = next((k for k in KINDS if k.lower() == kind.lower()), None)
    if found is None:
        raise InvalidInput(
            f"there is no kind of that name; the kinds are {', '.join(KINDS)}, and {CASES} for a file of cases"
        )
    return {"$schema": DIALECT, "title": found, **_document(found)}


def inlined(
    schema: Mapping[str, Any], defs: Mapping[str, Any], *, dropped: frozenset[str] = _DROPPED
) -> dict[str, Any]:
    """Pydantic's schema with references and `X | None` replaced by X, at every depth, and without `dropped` keys."""
    schema = _resolved(schema, defs)
    result = {k: v for k, v in schema.items() if k not in dropped and not (k == "default" and v is None)}
    if "properties" in schema:
        result["properties"] = {k: inlined(v, defs, dropped=dropped) for k, v in schema["properties"].items()}
    elif isinstance(schema.get("additionalProperties"), Mapping):
        result["additionalProperties"] = inlined(schema["additionalProperties"], defs, dropped=dropped)
    if "const" in schema:
        result.pop("const", None)
        result["enum"] = [schema["const"]]
    if "items" in schema:
        result["items"] = inlined(schema["items"], defs, dropped=dropped)
    return result


def _resolved(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside a reference is kept, and wins."""
    merged = dict(schema)
    while "$ref" in merged or "anyOf" in merged:
        if "$ref" in merged:
            inner = defs[merged.pop("$ref").rpartition("/")[2]]
        else:
            (inner,) = (s for s in merged.pop("anyOf") if s.get("type") != "null")
        merged = {**inner, **merged}
    return merged


def _any_document() -> dict[str, Any]:
    ours = {
        "properties": {"apiVersion": {"const": API_VERSION}, "kind": {"enum": list(KINDS)}},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"$ref": f"#/definitions/{kind}"},
            }
            for kind in KINDS
        ],
    }
    return {
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}},
        # A file may hold other APIs' documents beside ours: a ConfigMap with a CA bundle, say.
        "if": {"properties": {"apiVersion": {"pattern": f"^{GROUP.replace('.', '[.]')}/"}}},
        "then": ours,
        "definitions": {kind: _document(kind) for kind in KINDS},
    }


def _document(kind: str) -> dict[str, Any]:
    is_sandbox = kind == SANDBOX
    parts: dict[str, Any] = {"metadata": _sandbox_metadata() if is_sandbox else _metadata()}
    if not is_sandbox:
        parts["spec"] = _of_model(SPECS[kind])
        parts["status"] = {"type": "object", "description": "Written by the operator."}
    return {
        "type": "object",
        "description": parts["spec"]["description"] if "spec" in parts else str(SandboxSpec.__doc__),
        "required": ["apiVersion", "kind", "metadata", *(["spec"] if "spec" in parts else [])],
        "properties": {
            "apiVersion": {"const": API_VERSION, "description": "Group and version."},
            "kind": {"const": kind, "description": "Kind of the object."},
            **parts,
        },
        "additionalProperties": False,
    }


def _metadata() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "As of every Kubernetes object.",
        "required": ["name"],
        "properties": {name: dict(schema) for name, schema in _METADATA.items()},
    }


def _sandbox_metadata() -> dict[str, Any]:
    schema = _of_model(SandboxSpec)
    schema["properties"] = {
        name: {"description": _METADATA[name]["description"], **inner} for name, inner in schema["properties"].items()
    }
    return schema


def _of_model(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, mode="validation")
    result = _for_editors(inlined(schema, schema.get("$defs", {})))
    if _KEYED in result["properties"]:
        result["properties"][_KEYED]["propertyNames"] = {"pattern": KEY_PATTERN}
    return result


def _for_editors(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what only an API server understands."""
    result = {k: v for k, v in schema.items() if not k.startswith("x-kubernetes-") and k != "format"}
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = _for_editors(result[key])
    if "properties" in result:
        result["properties"] = {name: _for_editors(inner) for name, inner in result["properties"].items()}
    return result
