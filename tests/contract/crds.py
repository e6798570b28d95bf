"""CRDs out of the models: what `kubectl explain` shows and the API server enforces with the operator down.

Turns pydantic's JSON Schema into a Kubernetes structural schema: references inlined, nulls dropped, closed objects
left to pruning, `x-kubernetes-*` kept.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from supervisor_middleware.cli.editor_schema import inlined
from supervisor_middleware.model.fields import cel
from supervisor_middleware.model.limits import MAX_ID_LENGTH
from supervisor_middleware.model.resources import SPECS
from supervisor_middleware.model.sandbox import GROUP, VERSION
from supervisor_middleware.model.statuses import NOT_OBSERVED, STATUSES
from tests.contract.reference_words import STATUS

_DROPPED = frozenset({"title", "$defs", "additionalProperties", "anyOf", "const"})
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_HEADER = b"# Generated from supervisor_middleware.model by `make generate`; do not edit.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a CRD says besides its schema."""

    kind: str
    plural: str
    short: str
    scope: str
    description: str
    columns: tuple[tuple[str, str, str], ...]
    wide_columns: tuple[tuple[str, str, str], ...] = ()
    spec_rules: tuple[Mapping[str, str], ...] = ()
    root_rules: tuple[Mapping[str, str], ...] = field(default=())


KINDS = (
    Kind(
        kind="SupervisorMiddleware",
        plural="supervisormiddlewares",
        short="smw",
        scope="Cluster",
        description="Registers a middleware service that may receive raw request content (RFC 0009, research preview).",
        columns=(
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            ("Endpoint", "string", ".spec.grpcEndpoint"),
            ("Bindings", "integer", ".status.bindingCount"),
            ("Policies", "integer", ".status.policies"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
        root_rules=(
            cel(
                f"has(self.spec.registrationName) || size(self.metadata.name) <= {MAX_ID_LENGTH}",
                f"a name longer than {MAX_ID_LENGTH} characters needs spec.registrationName",
            ),
        ),
    ),
    Kind(
        kind="SandboxPolicy",
        plural="sandboxpolicies",
        short="sbp",
        scope="Namespaced",
        description="Decides which middleware runs for the sandboxes of a namespace (RFC 0009, research preview).",
        columns=(
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            ("Programmed", "string", ".status.conditions[?(@.type=='Programmed')].status"),
            ("Revision", "integer", ".status.accepted.revision"),
            ("Stages", "integer", ".status.stages"),
            ("Active", "string", ".status.supervisors.summary"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
        wide_columns=(("Rollout", "string", ".status.conditions[?(@.type=='Programmed')].reason"),),
    ),
    Kind(
        kind="ClusterSandboxPolicy",
        plural="clustersandboxpolicies",
        short="csbp",
        scope="Cluster",
        description="The platform's baseline: middleware for the sandboxes of many namespaces, which no tenant can remove (research preview).",
        columns=(
            ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            ("Programmed", "string", ".status.conditions[?(@.type=='Programmed')].status"),
            ("Position", "string", ".spec.position"),
            ("Revision", "integer", ".status.accepted.revision"),
            ("Stages", "integer", ".status.stages"),
            ("Active", "string", ".status.supervisors.summary"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
        wide_columns=(("Rollout", "string", ".status.conditions[?(@.type=='Programmed')].reason"),),
    ),
    Kind(
        kind="PolicyRevision",
        plural="policyrevisions",
        short="prev",
        scope="Cluster",
        description="Last-known-good of one policy; written by the operator only, never changed.",
        columns=(
            ("Policy", "string", ".spec.policy.name"),
            ("Namespace", "string", ".spec.policy.namespace"),
            ("Revision", "integer", ".spec.revision"),
            ("Digest", "string", ".spec.digest"),
            ("Stages", "integer", ".spec.stages"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
        spec_rules=({"rule": "self == oldSelf", "message": "a PolicyRevision is never changed"},),
    ),
)


def crds() -> dict[Path, bytes]:
    """Relative path and content of each CRD."""
    return {Path("crds") / f"{GROUP}_{k.plural}.yaml": _HEADER + _dump(_crd(k)) for k in KINDS}


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """A structural schema of `model`."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return inlined(schema, schema.get("$defs", {}), dropped=_DROPPED)


def _crd(kind: Kind) -> dict[str, Any]:
    spec = structural(SPECS[kind.kind])
    spec["x-kubernetes-validations"] = [*spec.get("x-kubernetes-validations", []), *map(dict, kind.spec_rules)]
    if not spec["x-kubernetes-validations"]:
        del spec["x-kubernetes-validations"]
    root: dict[str, Any] = {
        "description": kind.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
        },
    }
    if kind.root_rules:
        root["x-kubernetes-validations"] = [dict(r) for r in kind.root_rules]
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            *({"name": n, "type": t, "jsonPath": p} for n, t, p in kind.columns),
            *({"name": n, "type": t, "jsonPath": p, "priority": 1} for n, t, p in kind.wide_columns),
        ],
        "schema": {"openAPIV3Schema": root},
    }
    if kind.kind in STATUSES:
        root["properties"]["status"] = _described(structural(STATUSES[kind.kind]), at="status")
        # kstatus takes an object without a status for healthy: one that nobody has looked at yet says so itself.
        root["properties"]["status"]["default"] = {"observedGeneration": NOT_OBSERVED}
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": ["openshell"],
            },
            "versions": [version],
        },
    }


def _described(schema: dict[str, Any], *, at: str) -> dict[str, Any]:
    """With the reference's words, its links left out, where the model has none: `kubectl explain` shows them."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{at}.{name}"
        if path in STATUS:
            inner["description"] = _LINK.sub(r"\1", STATUS[path])
        _described(inner, at=path)
        _described(inner.get("items", {}), at=f"{path}[]")
    return schema


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(value: Mapping[str, Any]) -> bytes:
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text.encode()
