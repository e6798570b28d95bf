"""There and back loses nothing of what both forms hold, whatever it is."""

import tomllib
from typing import Any, Final

import tomli_w
import yaml
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.cli.conversion.pipeline import Names, Source, convert
from supervisor_middleware.cli.conversion.registrations import ANNOTATIONS
from supervisor_middleware.cli.conversion.remarks import Converted
from supervisor_middleware.cli.conversion.targets import Target
from supervisor_middleware.cli.rendering.yaml_output import dump_documents
from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.model.identifiers import KEY_PATTERN
from supervisor_middleware.sources.documents import read_documents

TEXT: Final = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8) | st.sampled_from(
    [
        "y",
        ".inf",
        "1e3",
        "0o17",
        "1:30",
        "2001-01-01",
        "<<",
        "=",
        "null",
        "~",
        "-",
        "# x",
        "a: b",
        "a\nb\n",
        " a\n b",
        "\t",
    ]
)
JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
CONFIG: Final = st.fixed_dictionaries(
    {"middleware": TEXT, "endpoints": st.fixed_dictionaries({"include": st.lists(TEXT, min_size=1, max_size=3)})},
    optional={
        "name": TEXT,
        "order": st.integers(-5, 5),
        "config": st.dictionaries(TEXT, JSON, max_size=3),
        "onError": st.sampled_from(["FailClosed", "FailOpen"]),
    },
)
KEYS: Final = st.from_regex(KEY_PATTERN, fullmatch=True)
SPEC: Final = st.fixed_dictionaries(
    {"sandboxSelector": st.just({})},
    optional={
        "networkMiddlewares": st.dictionaries(KEYS, CONFIG, max_size=3),
        "networkPolicies": st.dictionaries(TEXT, st.dictionaries(TEXT, JSON, max_size=2), max_size=2),
    },
)
NAMES: Final = st.from_regex(r"[A-Za-z0-9._-]{1,12}(/[A-Za-z0-9._-]{1,12}){0,2}", fullmatch=True)
ENTRY: Final = st.fixed_dictionaries(
    {
        "name": NAMES,
        "grpc_endpoint": st.sampled_from(["http://a:1", "http://b"]),
        "max_body_bytes": st.integers(1, 9),
    },
    optional={
        "timeout": st.sampled_from(["500ms", "2s"]),
        "allow_insecure": st.booleans(),
        "tls_ca_cert_path": st.text("abc/.", min_size=1),
        "audience": st.text("abc:", min_size=1),
    },
)


def converted(value: Any, *, to: Target, is_toml: bool = False, name: str = "") -> Converted:
    source = Source(file="file", value=value, is_toml=is_toml)
    _, result = convert((source,), to=to, names=Names(name=name, namespace="ns"))
    return result


@given(SPEC)
def test_a_policy_resource_comes_back_as_it_was(spec: dict[str, Any]) -> None:
    resource = {
        "apiVersion": "middleware.openshell.io/v1alpha1",
        "kind": "SandboxPolicy",
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": spec,
    }
    there = converted(resource, to=Target.OPENSHELL)
    assert there.is_complete
    (policy,) = there.documents
    if len(policy) == 1:  # only the version: nothing by which it could be known as a policy
        return
    back = converted(policy, to=Target.RESOURCES, name="p")
    assert back.is_complete
    assert back.documents == (resource,)


@given(st.lists(ENTRY, min_size=1, max_size=4))
def test_registrations_in_toml_come_back_as_they_were(entries: list[dict[str, Any]]) -> None:
    """OS-REG-12: a path to certificates and an audience wait in annotations."""
    config = {"openshell": {"supervisor": {"middleware": entries}}}
    there = converted(tomllib.loads(tomli_w.dumps(config)), to=Target.RESOURCES, is_toml=True)
    names = [d["metadata"]["name"] for d in there.documents]  # type: ignore[call-overload,index]
    assert len(set(names)) == len(entries)
    back = [converted(d, to=Target.TOML).documents[0] for d in there.documents]
    assert back == entries
    assert set(ANNOTATIONS) == {"tls_ca_cert_path", "audience"}


@given(st.lists(st.dictionaries(TEXT, JSON, min_size=1, max_size=3), min_size=1, max_size=3))
def test_written_yaml_is_read_as_it_was_meant_by_kubectls_rules_and_by_pyyaml(documents: list[JsonValue]) -> None:
    text = dump_documents(documents)
    parsed = read_documents(text.encode())
    assert parsed.problems == ()
    assert [d.value for d in parsed.documents] == documents
    assert list(yaml.safe_load_all(text)) == documents
