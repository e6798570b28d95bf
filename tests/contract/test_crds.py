"""The CRDs and the models say the same: what the API server enforces alone is what the operator means."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from pydantic import BaseModel, ValidationError

from supervisor_middleware.model import limits
from supervisor_middleware.model.durations import DEADLINE_PATTERN, TIMEOUT_PATTERN
from supervisor_middleware.model.identifiers import BINDING_ID_PATTERN
from supervisor_middleware.model.resources import SPECS
from supervisor_middleware.model.statuses import STATUSES
from tests.builders import a_policy, a_registration, an_entry_spec
from tests.contract.crds import crds

ROOT = Path(__file__).resolve().parents[2]
FILES = crds()
CRDS = {crd["spec"]["names"]["kind"]: crd for crd in map(yaml.safe_load, FILES.values())}
Schema = Mapping[str, Any]


def schema_of(kind: str, part: str) -> Schema:
    (version,) = CRDS[kind]["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


def at(schema: Schema, path: str) -> Schema:
    """The schema at a dotted path; `*` is a map's value, `[]` a list's item."""
    for segment in path.split("."):
        schema = {"*": lambda s: s["additionalProperties"], "[]": lambda s: s["items"]}.get(
            segment, lambda s, name=segment: s["properties"][name]
        )(schema)
    return schema


def nodes(schema: Any) -> Iterator[Schema]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """Every field of a model, with those of the models below it."""
    return {
        info.alias or name: next((fields_of(m) for m in models_in(info.annotation)), None)
        for name, info in model.model_fields.items()
    }


def properties_of(schema: Schema) -> dict[str, Any] | None:
    """The same of a schema."""
    if "properties" in schema:
        return {name: properties_of(inner) for name, inner in schema["properties"].items()}
    inner = schema.get("items") or schema.get("additionalProperties")
    return properties_of(inner) if isinstance(inner, dict) else None


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_file_is_what_the_models_make(path: Path) -> None:
    assert (ROOT / path).read_bytes() == FILES[path], "run make generate"


@pytest.mark.parametrize("kind", CRDS)
def test_kubectl_explain_has_words_for_every_field(kind: str) -> None:
    (version,) = CRDS[kind]["spec"]["versions"]
    parts = {k: v for k, v in version["schema"]["openAPIV3Schema"]["properties"].items() if k in {"spec", "status"}}
    fields = [(name, f) for node in nodes(parts) for name, f in node.get("properties", {}).items()]
    assert [name for name, field in fields if not field.get("description")] == []


def test_no_other_crd_lies_about() -> None:
    assert {p.relative_to(ROOT) for p in (ROOT / "crds").glob("*.yaml")} == set(FILES)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_crd_can_be_applied_by_any_client(path: Path) -> None:
    assert len(FILES[path]) < 256 * 1024


@pytest.mark.parametrize(
    ("kind", "part", "model"),
    [(k, "spec", m) for k, m in SPECS.items()] + [(k, "status", m) for k, m in STATUSES.items()],
)
def test_schema_and_model_have_the_same_fields(kind: str, part: str, model: type[BaseModel]) -> None:
    assert properties_of(schema_of(kind, part)) == fields_of(model)


@pytest.mark.parametrize("kind", CRDS)
def test_a_schema_is_structural(kind: str) -> None:
    for node in nodes(schema_of(kind, "spec")):
        assert not {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title"} & node.keys()
        assert not ("properties" in node and "additionalProperties" in node)


@pytest.mark.parametrize("kind", SPECS)
def test_every_field_is_explained(kind: str) -> None:
    for node in nodes(schema_of(kind, "spec")):
        for name, field in node.get("properties", {}).items() if node.get("type") == "object" else ():
            assert field.get("description"), name


@pytest.mark.parametrize(
    ("kind", "path", "keyword", "limit"),
    [
        ("SupervisorMiddleware", "maxBodyBytes", "minimum", 1),
        ("SupervisorMiddleware", "maxBodyBytes", "maximum", limits.MAX_BODY_BYTES),
        ("SupervisorMiddleware", "timeout", "pattern", TIMEOUT_PATTERN),
        ("SupervisorMiddleware", "timeout", "default", "500ms"),
        ("SupervisorMiddleware", "tls.caBundle", "maxLength", limits.MAX_CA_BUNDLE_BYTES),
        ("SupervisorMiddleware", "bindings", "maxItems", limits.MAX_BINDINGS),
        ("SupervisorMiddleware", "bindings.[]", "maxLength", limits.MAX_ID_LENGTH),
        ("SupervisorMiddleware", "registrationName", "pattern", BINDING_ID_PATTERN),
        ("SandboxPolicy", "activationDeadline", "pattern", DEADLINE_PATTERN),
        ("SandboxPolicy", "networkMiddlewares", "maxProperties", limits.MAX_CONFIGS),
        ("SandboxPolicy", "networkMiddlewares.*.middleware", "maxLength", limits.MAX_ID_LENGTH),
        ("SandboxPolicy", "networkMiddlewares.*.middleware", "pattern", BINDING_ID_PATTERN),
        ("SandboxPolicy", "networkMiddlewares.*.order", "minimum", limits.ORDER_MIN),
        ("SandboxPolicy", "networkMiddlewares.*.order", "maximum", limits.ORDER_MAX),
        ("SandboxPolicy", "networkMiddlewares.*.order", "default", 0),
        ("SandboxPolicy", "networkMiddlewares.*.onError", "enum", ["FailClosed", "FailOpen"]),
        ("SandboxPolicy", "networkMiddlewares.*.onError", "default", "FailClosed"),
        ("SandboxPolicy", "networkMiddlewares.*.endpoints.include", "minItems", 1),
        ("SandboxPolicy", "networkMiddlewares.*.endpoints.include", "maxItems", limits.MAX_PATTERNS),
        ("SandboxPolicy", "networkMiddlewares.*.endpoints.exclude", "maxItems", limits.MAX_PATTERNS),
        ("SandboxPolicy", "networkMiddlewares.*.endpoints.include.[]", "maxLength", limits.MAX_HOST_LENGTH),
        ("SandboxPolicy", "networkMiddlewares.*.config", "x-kubernetes-preserve-unknown-fields", True),
        ("ClusterSandboxPolicy", "networkMiddlewares", "maxProperties", limits.MAX_CONFIGS),
        ("ClusterSandboxPolicy", "position", "enum", ["First", "Last"]),
        ("ClusterSandboxPolicy", "position", "default", "First"),
        ("ClusterSandboxPolicy", "networkPolicies", "maxProperties", limits.MAX_NETWORK_POLICIES),
        ("ClusterSandboxPolicy", "networkPolicies.*.endpoints", "maxItems", limits.MAX_ENDPOINTS),
        ("PolicyRevision", "stages", "maximum", limits.MAX_CONFIGS),
        ("PolicyRevision", "content", "maxLength", limits.MAX_OBJECT_BYTES),
        ("PolicyRevision", "policy.kind", "enum", ["SandboxPolicy", "ClusterSandboxPolicy"]),
    ],
)
def test_a_limit_in_the_schema_is_the_limit_of_the_contract(kind: str, path: str, keyword: str, limit: Any) -> None:
    assert at(schema_of(kind, "spec"), path)[keyword] == limit


def test_a_baseline_leaves_half_of_the_stages_to_tenants() -> None:
    (rule,) = schema_of("ClusterSandboxPolicy", "spec")["x-kubernetes-validations"]
    assert rule["rule"].endswith(f"<= {limits.MAX_BASELINE_CONFIGS}")


def test_pairs_of_patterns_are_counted_together() -> None:
    (rule,) = at(schema_of("SandboxPolicy", "spec"), "networkMiddlewares.*.endpoints")["x-kubernetes-validations"]
    assert rule["rule"].endswith(f"<= {limits.MAX_PATTERNS}")


@pytest.mark.parametrize("kind", ["SupervisorMiddleware", "SandboxPolicy", "ClusterSandboxPolicy"])
def test_every_rule_a_user_can_break_stands_alone_and_says_where_to_see_the_rest(kind: str) -> None:
    (version,) = CRDS[kind]["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    user_written = {**root, "properties": {k: v for k, v in root["properties"].items() if k != "status"}}
    rules = [r for node in nodes(user_written) for r in node.get("x-kubernetes-validations", ())]
    assert len(rules) >= 5
    for rule in rules:
        assert "smw validate" in rule["message"]
        assert len(rule["message"].split(";")[0]) > 20
        assert "messageExpression" not in rule


def test_a_revision_is_never_changed_and_never_replaced_by_an_older_epoch() -> None:
    assert {"rule": "self == oldSelf", "message": "a PolicyRevision is never changed"} in schema_of(
        "PolicyRevision", "spec"
    )["x-kubernetes-validations"]
    accepted = at(schema_of("SandboxPolicy", "status"), "accepted")
    assert accepted["x-kubernetes-validations"][0]["rule"] == "self.epoch >= oldSelf.epoch"


def entry(**fields: Any) -> dict[str, Any]:
    return {"sandboxSelector": {}, "networkMiddlewares": {"redact": {**an_entry_spec(), **fields}}}


def baseline(**fields: Any) -> dict[str, Any]:
    return {"namespaceSelector": {}, "networkMiddlewares": {"audit": an_entry_spec()}, **fields}


def without(name: str) -> dict[str, Any]:
    return {
        "sandboxSelector": {},
        "networkMiddlewares": {"redact": {k: v for k, v in an_entry_spec().items() if k != name}},
    }


def registration(**fields: Any) -> Any:
    return a_registration(**fields).spec


GOOD = [
    ("SandboxPolicy", a_policy().spec),
    ("SandboxPolicy", {"sandboxSelector": {}}),
    ("SandboxPolicy", {"sandboxSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}}),
    ("SandboxPolicy", {"sandboxSelector": {}, "networkPolicies": {"a": {"endpoints": [{"host": "x", "tls": "skip"}], "new": 1}}}),
    ("SandboxPolicy", {"sandboxSelector": {}, "activationDeadline": "24h"}),
    ("SandboxPolicy", {"sandboxSelector": {}, "networkMiddlewares": {}}),
    ("SandboxPolicy", entry(config={"a": [None, 1.5, {"b": True}]}, order=-(2**31), onError="FailOpen", name="Redact it")),
    ("SandboxPolicy", entry(middleware="x" * 128)),
    ("SandboxPolicy", entry(endpoints={"include": ["*-api.Example.com", "**"], "exclude": ["a.example.com"]})),
    ("ClusterSandboxPolicy", baseline()),
    ("ClusterSandboxPolicy", baseline(position="Last", activationDeadline="1m")),
    ("ClusterSandboxPolicy", {"namespaceSelector": {"matchLabels": {"a": "b"}}}),
    ("ClusterSandboxPolicy", baseline(networkPolicies={"a": {"endpoints": [{"host": "x", "tls": "skip"}]}})),
    ("SupervisorMiddleware", registration()),
    ("SupervisorMiddleware", registration(maxBodyBytes=4194304, timeout="30s", bindings=["acme/a"], clientAuthentication="None")),
    ("SupervisorMiddleware", registration(tls={"caBundleRef": {"kind": "Secret", "namespace": "a", "name": "b"}, "serverName": "c"})),
    ("SupervisorMiddleware", registration(registrationName="Presidio_v2", grpcEndpoint="https://[::1]:8443/")),
]  # fmt: skip
BAD = [
    ("SandboxPolicy", {}),
    ("SandboxPolicy", []),
    ("SandboxPolicy", {"sandboxSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
    ("SandboxPolicy", {"sandboxSelector": {"matchLabels": {"a": 1}}}),
    ("SandboxPolicy", {"sandboxSelector": {}, "activationDeadline": "1d"}),
    ("SandboxPolicy", {"sandboxSelector": {}, "activationDeadline": 5}),
    ("SandboxPolicy", {"sandboxSelector": {}, "networkMiddlewares": []}),
    ("SandboxPolicy", {"sandboxSelector": {}, "networkPolicies": []}),
    ("SandboxPolicy", without("middleware")),
    ("SandboxPolicy", without("endpoints")),
    ("SandboxPolicy", entry(middleware="")),
    ("SandboxPolicy", entry(middleware="/foo")),
    ("SandboxPolicy", entry(middleware="foo/")),
    ("SandboxPolicy", entry(middleware="foo//bar")),
    ("SandboxPolicy", entry(middleware="a b")),
    ("SandboxPolicy", entry(middleware="x" * 129)),
    ("SandboxPolicy", entry(order="10")),
    ("SandboxPolicy", entry(order=1.5)),
    ("SandboxPolicy", entry(order=True)),
    ("SandboxPolicy", entry(order=2**31)),
    ("SandboxPolicy", entry(order=-(2**31) - 1)),
    ("SandboxPolicy", entry(onError="maybe")),
    ("SandboxPolicy", entry(onError="fail_open")),
    ("SandboxPolicy", entry(config="text")),
    ("SandboxPolicy", entry(config=[])),
    ("SandboxPolicy", entry(name="x" * 254)),
    ("SandboxPolicy", entry(endpoints={})),
    ("SandboxPolicy", entry(endpoints={"include": []})),
    ("SandboxPolicy", entry(endpoints={"include": ["a.test"] * 33})),
    ("SandboxPolicy", entry(endpoints={"include": "a.test"})),
    *(("SandboxPolicy", entry(endpoints={"include": [p]})) for p in ("", "{a,b}.test", "a.test:443", "a..b", "a.", "a b", "ä.test", "api[", "a?", "x" * 254)),
    ("ClusterSandboxPolicy", {}),
    ("ClusterSandboxPolicy", {"sandboxSelector": {}}),
    *(("ClusterSandboxPolicy", baseline(position=p)) for p in ("first", "Middle", "", 1)),
    ("ClusterSandboxPolicy", baseline(networkMiddlewares={"audit": an_entry_spec(order="1")})),
    ("SupervisorMiddleware", {}),
    ("SupervisorMiddleware", registration(grpcEndpoint=None)),
    ("SupervisorMiddleware", registration(maxBodyBytes=None)),
    *(("SupervisorMiddleware", registration(maxBodyBytes=n)) for n in (0, -1, 4194305, "1", 1.5)),
    *(("SupervisorMiddleware", registration(timeout=t)) for t in ("1m", "1.5s", "500", "", "-5ms", 500)),
    *(("SupervisorMiddleware", registration(grpcEndpoint=e)) for e in ("svc:443", "unix:///s", "https://", "https://a/b", "https://u@a", "https://a?q", "https://a#f", "HTTPS://a.test", "https://a b")),
    ("SupervisorMiddleware", registration(bindings=[])),
    ("SupervisorMiddleware", registration(bindings=["a//b"])),
    ("SupervisorMiddleware", registration(allowInsecure="yes")),
    ("SupervisorMiddleware", registration(clientAuthentication="Token")),
    ("SupervisorMiddleware", registration(tls={"caBundle": ""})),
    ("SupervisorMiddleware", registration(tls={"caBundleRef": {"kind": "File", "namespace": "a", "name": "b"}})),
    ("SupervisorMiddleware", registration(tls={"caBundleRef": {"kind": "Secret", "namespace": "a"}})),
    ("SupervisorMiddleware", registration(registrationName="a//b")),
    ("PolicyRevision", {}),
]  # fmt: skip
ONLY_CEL = [
    ("SandboxPolicy", {"sandboxSelector": {}, "activationDeadline": "25h"}),
    ("SandboxPolicy", {"sandboxSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
    (
        "SandboxPolicy",
        {"sandboxSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
    ),
    ("SupervisorMiddleware", registration(timeout="9ms")),
    ("SupervisorMiddleware", registration(timeout="31s")),
]


def model_accepts(kind: str, spec: Any) -> bool:
    try:
        SPECS[kind].model_validate(spec)
    except ValidationError:
        return False
    return True


def schema_accepts(kind: str, spec: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema_of(kind, "spec")).is_valid(spec))


@pytest.mark.parametrize(("kind", "spec"), GOOD)
def test_schema_and_model_accept_what_is_right(kind: str, spec: Any) -> None:
    assert model_accepts(kind, spec)
    assert schema_accepts(kind, spec)


@pytest.mark.parametrize(("kind", "spec"), BAD)
def test_schema_and_model_refuse_what_is_wrong(kind: str, spec: Any) -> None:
    assert not model_accepts(kind, spec)
    assert not schema_accepts(kind, spec)


@pytest.mark.parametrize(("kind", "spec"), ONLY_CEL)
def test_what_only_cel_can_say_the_model_says_too(kind: str, spec: Any) -> None:
    assert not model_accepts(kind, spec)
    assert schema_accepts(kind, spec)
