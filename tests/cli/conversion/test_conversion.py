"""Each thing that one form says and the other cannot: lost, changed or skipped, with its path and never its value."""

from typing import Any, Final

import pytest

from supervisor_middleware.cli.conversion.names import slug
from supervisor_middleware.cli.conversion.pipeline import Names, Source, convert
from supervisor_middleware.cli.conversion.remarks import Converted, Grade
from supervisor_middleware.cli.conversion.targets import Target
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.sandbox import API_VERSION

SECRET: Final = "hunter2"
ENDPOINT: Final = "https://svc.example:443"
AT: Final = "openshell.supervisor.middleware"


def toml(*entries: object, **beside: object) -> Source:
    value: Any = {"openshell": {"supervisor": {"middleware": list(entries)}}, **beside}
    return Source(file="gateway.toml", value=value, is_toml=True)


def policy(**fields: Any) -> Source:
    return Source(file="policies/Team A.yaml", value={"network_policies": {}, **fields})


def resource(kind: str, spec: Any, **metadata: Any) -> Source:
    value = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "one", **metadata}, "spec": spec}
    return Source(file="resources.yaml", value=value)


def done(*sources: Source, to: Target | None = None, name: str = "") -> Converted:
    result = convert(sources, to=to, names=Names(name=name))[1]
    assert SECRET not in " ".join(f"{r.subject} {r.path} {r.message}" for r in result.remarks)
    return result


def said(result: Converted, grade: Grade) -> list[str]:
    return [r.path for r in result.remarks if r.grade is grade]


def test_a_name_that_is_no_kubernetes_name_is_kept_beside_one_that_is() -> None:
    names = ("Acme/Redactor_2", "acme-redactor-2", "acme-redactor-2", "___")
    result = done(toml(*({"name": n} for n in names)))
    found = [(d["metadata"]["name"], d["spec"].get("registrationName")) for d in result.documents]  # type: ignore[call-overload,index,union-attr]
    assert found == [
        ("acme-redactor-2", "Acme/Redactor_2"),
        ("acme-redactor-2-2", "acme-redactor-2"),
        ("acme-redactor-2-3", "acme-redactor-2"),
        ("middleware", "___"),
    ]
    assert said(result, Grade.CHANGED) == [f"{AT}[{n}].name" for n in range(4)]
    assert result.is_complete


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"name": 7}, "name"),
        ({"name": "a//b"}, "name"),
        ({}, "name"),
        ({"name": "a", "retries": SECRET}, "retries"),
        ({"name": "a", "max_body_bytes": True}, "max_body_bytes"),
        ({"name": "a", "timeout": 500}, "timeout"),
        ({"name": "a", "max_body_bytes": 1, "max_payload_bytes": 2}, "max_payload_bytes"),
        ({"name": "a", "grpc_endpoint": ENDPOINT, "allow_insecure": True}, "allow_insecure"),
        ({"name": "a", "audience": ["x"]}, "audience"),
        ({"name": "a", "tls_ca_cert_path": "/etc/ca.pem"}, "tls_ca_cert_path"),
    ],
)
def test_what_a_registration_cannot_say_is_lost(entry: dict[str, Any], path: str) -> None:
    result = done(toml(entry))
    assert said(result, Grade.LOST) == [f"{AT}[0].{path}"]
    assert not result.is_complete


def test_an_entry_that_is_no_table_is_lost_and_its_neighbours_are_not() -> None:
    result = done(toml({"name": "a"}, SECRET))
    assert len(result.documents) == 1
    assert said(result, Grade.LOST) == [f"{AT}[1]"]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"openshell": SECRET}, "openshell"),
        ({"openshell": {"supervisor": {"middleware": SECRET}}}, AT),
        ({"openshell": {"supervisor": []}}, "openshell.supervisor"),
    ],
)
def test_a_configuration_of_another_form_is_lost(value: Any, path: str) -> None:
    result = done(Source(file="gateway.toml", value=value, is_toml=True), toml({"name": "a"}))
    assert said(result, Grade.LOST) == [path]


def test_the_rest_of_a_gateways_configuration_stays_there() -> None:
    source = toml({"name": "a"}, other={"a": SECRET})
    result = done(source)
    assert said(result, Grade.SKIPPED) == ["other"]
    assert result.is_complete


def test_both_spellings_of_a_released_gateway_are_read() -> None:
    entry = {"name": "a", "grpc_endpoint": "http://a", "max_payload_bytes": 5, "allow_insecure_transport": True}
    (document,) = done(toml({**entry, "audience": ""})).documents
    assert document["spec"] == {"grpcEndpoint": "http://a", "maxBodyBytes": 5, "allowInsecure": True}


def test_a_policy_is_named_after_its_file_or_as_one_says() -> None:
    documents = done(policy(), policy()).documents
    assert [d["metadata"] for d in documents] == [{"name": "team-a"}, {"name": "team-a-2"}]
    assert done(policy(), name="one").documents[0]["metadata"] == {"name": "one"}


def test_what_a_policy_says_of_other_things_or_wrongly_is_lost() -> None:
    config = {"middleware": "a", "on_error": SECRET, "attach": SECRET}
    result = done(
        policy(
            version=2,
            landlock={"compatibility": SECRET},
            nonsense=SECRET,
            network_middlewares={"a": config, "b": SECRET, "c": {"on_error": ""}},
        ),
        policy(network_middlewares=SECRET, network_policies=[SECRET]),
    )
    assert said(result, Grade.LOST) == [
        "version",
        "landlock",
        "nonsense",
        "network_middlewares.a.on_error",
        "network_middlewares.a.attach",
        "network_middlewares.b",
        "network_policies",
        "network_middlewares",
    ]
    assert result.documents[0]["spec"]["networkMiddlewares"] == {"a": {"middleware": "a"}, "c": {}}  # type: ignore[call-overload,index]


def test_a_key_that_is_none_is_changed_and_stays_as_the_label() -> None:
    entries = {"Redact_Me": {"middleware": "a"}, "redact-me": {"middleware": "b"}, "": {}, "X": {"name": "kept"}}
    result = done(policy(network_middlewares=entries))
    found = result.documents[0]["spec"]["networkMiddlewares"]  # type: ignore[call-overload,index]
    assert found == {
        "redact-me-2": {"name": "Redact_Me", "middleware": "a"},
        "redact-me": {"middleware": "b"},
        "middleware": {},
        "x": {"name": "kept"},
    }
    assert said(result, Grade.CHANGED)[1:] == [
        "network_middlewares.Redact_Me",
        'network_middlewares[""]',
        "network_middlewares.X",
    ]


def test_what_toml_cannot_say_is_lost() -> None:
    spec = {
        "registrationName": "Acme/One",
        "grpcEndpoint": "http://a",
        "maxBodyBytes": 5,
        "allowInsecure": True,
        "timeout": None,
        "tls": {"caBundle": SECRET, "caBundleRef": {}, "serverName": SECRET, "odd": 1},
        "clientAuthentication": "None",
        "bindings": [SECRET],
        "odd": SECRET,
    }
    last = {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "team": SECRET}
    source = resource("SupervisorMiddleware", spec, uid="1", labels={"a": SECRET}, annotations=last)
    result = done(source, to=Target.TOML)
    assert result.documents == (
        {"name": "Acme/One", "grpc_endpoint": "http://a", "max_body_bytes": 5, "allow_insecure": True},
    )
    assert said(result, Grade.LOST) == [
        "metadata.labels",
        "metadata.annotations.team",
        "spec.tls.caBundle",
        "spec.tls.caBundleRef",
        "spec.tls.serverName",
        "spec.tls.odd",
        "spec.clientAuthentication",
        "spec.bindings",
        "spec.odd",
    ]
    assert said(result, Grade.CHANGED) == ["spec.allowInsecure"]


def test_a_registration_of_the_wrong_form_is_lost_field_by_field() -> None:
    result = done(resource("SupervisorMiddleware", {"grpcEndpoint": 1, "registrationName": []}), to=Target.TOML)
    assert said(result, Grade.LOST) == ["spec.grpcEndpoint", "spec.registrationName"]
    assert done(resource("SupervisorMiddleware", SECRET, name=1), to=Target.TOML).documents == ({"name": ""},)


def test_what_a_policy_file_cannot_say_is_lost() -> None:
    config = {"middleware": "a", "onError": SECRET, "odd": SECRET}
    spec = {
        "namespaceSelector": {},
        "position": "Last",
        "activationDeadline": "1m",
        "networkMiddlewares": {"a": config, "b": SECRET},
        "odd": SECRET,
    }
    result = done(resource("ClusterSandboxPolicy", spec), to=Target.OPENSHELL)
    assert said(result, Grade.LOST) == [
        "spec.namespaceSelector",
        "spec.position",
        "spec.activationDeadline",
        "spec.networkMiddlewares.a.onError",
        "spec.networkMiddlewares.a.odd",
        "spec.networkMiddlewares.b",
        "spec.odd",
    ]
    tenant = resource(
        "SandboxPolicy",
        {"sandboxSelector": {"matchLabels": {"a": SECRET}}, "networkMiddlewares": SECRET, "networkPolicies": SECRET},
        namespace="team-a",
    )
    result = done(tenant, to=Target.OPENSHELL)
    assert said(result, Grade.LOST) == ["spec.sandboxSelector", "spec.networkMiddlewares", "spec.networkPolicies"]
    assert said(result, Grade.CHANGED) == ["metadata.namespace"]


def test_documents_of_another_form_are_said_to_be_left_out() -> None:
    ours = resource("SandboxPolicy", {"sandboxSelector": {}})
    registration = resource("SupervisorMiddleware", {})
    foreign = Source(file="pod.yaml", value={"apiVersion": "v1", "kind": "Pod"})
    unknown = Source(file="list.yaml", value=[SECRET])
    odd = Source(file="odd.yaml", value={"a": SECRET})
    result = done(toml({"name": "a"}), ours, foreign, unknown, odd)
    assert [(r.grade.value, r.subject, r.message) for r in result.remarks] == [
        ("skipped", "resources.yaml", "SandboxPolicy one is a resource already"),
        ("skipped", "pod.yaml", "an object of another API is left out"),
        (
            "lost",
            "list.yaml",
            "a document is neither a gateway's configuration, nor a policy of OpenShell, nor a resource",
        ),
        (
            "lost",
            "odd.yaml",
            "a document is neither a gateway's configuration, nor a policy of OpenShell, nor a resource",
        ),
    ]
    back = done(toml({"name": "a"}), ours, registration, to=Target.TOML)
    assert [(r.grade.value, r.message) for r in back.remarks] == [
        ("skipped", "a gateway's configuration is no resource, and left out"),
        ("skipped", "SandboxPolicy one is not of this form, and left out"),
    ]


def test_without_a_target_resources_alone_are_a_question() -> None:
    with pytest.raises(InvalidInput, match="say --to toml"):
        done(resource("SandboxPolicy", {}))
    with pytest.raises(InvalidInput, match="nothing to convert to openshell"):
        done(resource("SupervisorMiddleware", {}), to=Target.OPENSHELL)


def test_control_characters_of_a_name_do_not_reach_a_terminal() -> None:
    result = done(resource("SupervisorMiddleware", {"odd": 1}, name="a\x1b[2J"), to=Target.TOML)
    assert result.remarks[0].subject == "SupervisorMiddleware a?[2J"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a", "a"), ("A.b_c/d", "a-b-c-d"), ("-", "x"), ("a" * 70, "a" * 63), ("a" * 62 + "/b", "a" * 62), ("é", "x")],
)
def test_the_nearest_kubernetes_name(name: str, expected: str) -> None:
    assert slug(name, taken=set(), otherwise="x") == expected
    other = slug(name, taken={expected}, otherwise="x")
    assert other.endswith("-2")
    assert len(other) <= 63
