"""What the API server refuses by the CRDs alone, with the operator down or never installed, and what people see."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.objects import API_VERSION, Document, a_baseline, a_policy, a_registration, an_entry, changed
from supervisor_middleware.model.canonical import is_digest

_QUICKSTART = Path(__file__).resolve().parents[1] / "examples/quickstart"
_CLUSTER = _QUICKSTART.parent / "cluster"
_ADVICE = "run smw validate on the file for every problem at once"
_PATTERNS = [f"h{n}.example.com" for n in range(40)]
_MIDDLEWARES = "spec.networkMiddlewares"


def _policy(**entries: Document) -> Document:
    return a_policy("tried", namespace="default", **entries)


def _entries(count: int) -> Document:
    return changed(_policy(), _MIDDLEWARES, {f"entry-{n}": an_entry(order=n) for n in range(count)})


def _keyed(key: str) -> Document:
    return changed(_policy(), _MIDDLEWARES, {key: an_entry()})


def _hosts(*, include: int, exclude: int = 0) -> Document:
    endpoints = {"include": _PATTERNS[:include], **({"exclude": _PATTERNS[-exclude:]} if exclude else {})}
    return _policy(redact=an_entry(endpoints=endpoints))


def _registration(**spec: Any) -> Document:
    return a_registration("tried", **spec)


_BUNDLE = {"kind": "ConfigMap", "namespace": "default", "name": "roots"}

REFUSED_BY_RULES = {
    "two entries with one order": (
        _policy(one=an_entry(order=7), two=an_entry(order=7)),
        "two configs have the same order (0 if absent); order is unique in a policy",
    ),
    "an absent order beside a zero": (
        _policy(one=an_entry(order=0), two=an_entry()),
        "two configs have the same order (0 if absent); order is unique in a policy",
    ),
    "a key with a capital": (_keyed("Redact"), "a key of networkMiddlewares must be 1 to 63 characters of a-z, 0-9"),
    "a key with a dot": (_keyed("re.dact"), "a key of networkMiddlewares must be 1 to 63 characters of a-z, 0-9"),
    "a key of 64 characters": (_keyed("k" * 64), "a key of networkMiddlewares must be 1 to 63 characters"),
    "33 patterns in two lists": (
        _hosts(include=20, exclude=13),
        "include and exclude hold at most 32 patterns together",
    ),
    "http without allowInsecure": (
        changed(_registration(endpoint="http://redactor:80"), "spec.allowInsecure", None),
        "http:// sends request content in the clear and needs allowInsecure: true; use https://",
    ),
    "allowInsecure on https": (
        _registration(allowInsecure=True),
        "allowInsecure is for http:// endpoints only; it never means that verification is skipped",
    ),
    "tls on http": (
        _registration(endpoint="http://redactor:80", tls={"serverName": "redactor"}),
        "tls has no meaning for an http:// endpoint",
    ),
    "a reserved name": (
        _registration(registrationName="openshell/mine"),
        "the openshell/ namespace is reserved for built-ins",
    ),
    "a timeout below its range": (_registration(timeout="9ms"), "must be an integer with the suffix ms or s, from"),
    "a timeout above its range": (_registration(timeout="31s"), "must be an integer with the suffix ms or s, from"),
    "two CA bundles": (
        _registration(tls={"caBundle": "-----BEGIN", "caBundleRef": _BUNDLE}),
        "set caBundle or caBundleRef, not both",
    ),
    "a deadline above its range": (
        changed(_policy(), "spec.activationDeadline", "25h"),
        "must be an integer with the suffix ms, s, m or h, from 0s to 24h",
    ),
    "six configs of a baseline": (
        a_baseline("tried", selector={}, **{f"entry_{n}": an_entry(order=n) for n in range(6)}),
        "a baseline holds at most 5 configs; the rest is the tenants'",
    ),
    "two entries of a baseline with one order": (
        a_baseline("tried", selector={}, one=an_entry(order=7), two=an_entry(order=7)),
        "two configs have the same order (0 if absent); order is unique in a policy",
    ),
    "a namespace selector without its values": (
        changed(
            a_baseline("tried", selector={}),
            "spec.namespaceSelector",
            {"matchExpressions": [{"key": "team", "operator": "In"}]},
        ),
        "In and NotIn need values, Exists and DoesNotExist take none",
    ),
    "a selector without its values": (
        changed(_policy(), "spec.sandboxSelector", {"matchExpressions": [{"key": "team", "operator": "In"}]}),
        "In and NotIn need values, Exists and DoesNotExist take none",
    ),
}

# Words of the API server itself: path, limit and what was found; no advice of ours can be put there.
REFUSED_BY_SCHEMA = {
    "11 configs": (_entries(11), "spec.networkMiddlewares: Too many: 11: must have at most 10 items"),
    "33 patterns in one list": (_hosts(include=33), "endpoints.include: Too many: 33: must have at most 32 items"),
    "no pattern": (_hosts(include=0), "endpoints.include: Invalid value: 0"),
    "a pattern with a port": (
        _policy(redact=an_entry(include=["example.com:443"])),
        "spec.networkMiddlewares.redact.endpoints.include[0]: Invalid value",
    ),
    "a timeout without a unit": (_registration(timeout="500"), "spec.timeout: Invalid value"),
    "a body limit over 4 MiB": (_registration(maxBodyBytes=4194305), "should be less than or equal to 4194304"),
    "an unknown onError": (
        _policy(redact=an_entry(onError="Ignore")),
        'spec.networkMiddlewares.redact.onError: Unsupported value: "Ignore": supported values: "FailClosed", "FailOpen"',
    ),
    "a position in the middle": (
        changed(a_baseline("tried", selector={}), "spec.position", "Middle"),
        'spec.position: Unsupported value: "Middle": supported values: "First", "Last"',
    ),
    "a baseline without a selector": (
        changed(a_baseline("tried", selector={}), "spec.namespaceSelector", None),
        "spec.namespaceSelector: Required value",
    ),
    "a policy without a selector": (
        changed(_policy(), "spec.sandboxSelector", None),
        "spec.sandboxSelector: Required value",
    ),
    "an endpoint with a path": (_registration(endpoint="https://redactor/v1"), "spec.grpcEndpoint: Invalid value"),
}

ADMITTED = {
    "ten configs": _entries(10),
    "five configs of a baseline": a_baseline("tried", selector={}, **{f"e{n}": an_entry(order=n) for n in range(5)}),
    "a baseline that stands last": changed(a_baseline("tried", selector={"team": "red"}), "spec.position", "Last"),
    "32 patterns in one list": _hosts(include=32),
    "32 patterns in two lists": _hosts(include=20, exclude=12),
    "a key of 63 characters": _keyed("k" * 63),
    "the lowest and the highest order": _policy(one=an_entry(order=-(2**31)), two=an_entry(order=2**31 - 1)),
    "the shortest timeout": _registration(timeout="10ms"),
    "the longest timeout": _registration(timeout="30s"),
    "the longest deadline": changed(_policy(), "spec.activationDeadline", "24h"),
    "no deadline": changed(_policy(), "spec.activationDeadline", "0s"),
    "the largest body limit": _registration(maxBodyBytes=4194304),
    "http with allowInsecure": _registration(endpoint="http://redactor:80"),
    "a reference to a CA bundle": _registration(tls={"caBundleRef": _BUNDLE}),
    "a released name": _registration(registrationName="Corp_Redactor/v2"),
    "a policy without middleware": changed(_policy(), _MIDDLEWARES, None),
}


@pytest.mark.parametrize(("document", "message"), REFUSED_BY_RULES.values(), ids=REFUSED_BY_RULES)
def test_a_rule_refuses_and_its_message_stands_alone(
    control_plane: ControlPlane, document: Document, message: str
) -> None:
    said = _refusal(control_plane, document)
    assert message in said
    assert _ADVICE in said


@pytest.mark.parametrize(("document", "message"), REFUSED_BY_SCHEMA.values(), ids=REFUSED_BY_SCHEMA)
def test_the_schema_refuses_and_names_field_and_limit(
    control_plane: ControlPlane, document: Document, message: str
) -> None:
    assert message in _refusal(control_plane, document)


@pytest.mark.parametrize("document", ADMITTED.values(), ids=ADMITTED)
def test_what_is_just_within_the_limits_is_admitted(control_plane: ControlPlane, document: Document) -> None:
    control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(document))


def test_kubectl_refuses_an_unknown_field_and_names_it(control_plane: ControlPlane) -> None:
    document = _policy(redact=an_entry(onEror="FailOpen"))
    said = _refusal(control_plane, document)
    assert 'unknown field "spec.networkMiddlewares.redact.onEror"' in said


def test_config_is_kept_as_it_was_written(control_plane: ControlPlane, namespace: str) -> None:
    config = {"nested": {"list": [1, 2.5, None, True, {"Deep": "x"}]}, "UPPER": "", "count": 9007199254740991}
    document = a_policy("kept", namespace=namespace, redact=an_entry(config=config))
    control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(document))
    stored = _get(control_plane, "sbp", "kept", namespace)
    entry = stored["spec"]["networkMiddlewares"]["redact"]
    assert entry["config"] == config
    assert (entry["order"], entry["onError"]) == (0, "FailClosed")


def test_a_policy_revision_never_changes(control_plane: ControlPlane, namespace: str) -> None:
    revision = {
        "apiVersion": API_VERSION,
        "kind": "PolicyRevision",
        "metadata": {"name": namespace},
        "spec": {
            "policy": {
                "kind": "SandboxPolicy",
                "namespace": namespace,
                "name": "outbound",
                "uid": "0",
                "generation": 1,
                "createdAt": "2026-01-01T00:00:00+00:00",
            },
            "epoch": 1,
            "revision": 1,
            "digest": "sha256:" + "0" * 64,
            "stages": 1,
            "content": "eJwDAAAAAAE=",
        },
    }
    control_plane.kubectl("create", "-f", "-", input=yaml.safe_dump(revision))
    try:
        patch = ("patch", "prev", namespace, "--type=merge", "-p", '{"spec":{"stages":2}}')
        result = control_plane.kubectl(*patch, check=False)
        assert result.returncode != 0
        assert "a PolicyRevision is never changed" in result.stderr
        header, row = control_plane.kubectl("get", "prev", namespace).stdout.splitlines()
        assert header.split() == ["NAME", "POLICY", "NAMESPACE", "REVISION", "DIGEST", "STAGES", "AGE"]
        shown = row.split()
        assert (*shown[:4], shown[5]) == (namespace, "outbound", namespace, "1", "1")
        assert is_digest(shown[4])
    finally:
        control_plane.kubectl("delete", "prev", namespace)


def test_an_operator_of_an_older_epoch_is_fenced_off_a_status(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(a_policy("fenced", namespace=namespace)))

    def accept(epoch: int) -> str:
        accepted = {"revision": 1, "epoch": epoch, "generation": 1, "digest": "sha256:0"}
        body = json.dumps({"status": {"accepted": accepted}})
        where = ("sbp", "fenced", "-n", namespace, "--subresource=status")
        return control_plane.kubectl("patch", *where, "--type=merge", "-p", body, check=False).stderr

    assert accept(5) == ""
    assert "an operator of an older epoch may not replace what a newer one accepted" in accept(4)
    assert accept(5) == ""
    assert accept(6) == ""


def test_kubectl_explains_every_field_of_an_entry(control_plane: ControlPlane) -> None:
    said = control_plane.kubectl("explain", "sbp.spec.networkMiddlewares").stdout
    assert "Middleware configs by their stable key." in said
    for name in ("middleware", "order", "config", "onError", "endpoints", "name"):
        assert f"  {name}\t" in said
    said = control_plane.kubectl("explain", "smw.spec", "--recursive").stdout
    assert "grpcEndpoint" in said
    assert "caBundleRef" in said


def test_kubectl_get_shows_the_columns_and_the_category(control_plane: ControlPlane, namespace: str) -> None:
    documents = [a_policy("shown", namespace=namespace), a_registration(namespace)]
    control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
    try:
        header = control_plane.kubectl("get", "sbp", "-n", namespace).stdout.splitlines()[0]
        assert header.split() == ["NAME", "READY", "REASON", "PROGRAMMED", "REVISION", "STAGES", "ACTIVE", "AGE"]
        header = control_plane.kubectl("get", "smw", namespace).stdout.splitlines()[0]
        assert header.split() == ["NAME", "READY", "REASON", "ENDPOINT", "BINDINGS", "POLICIES", "AGE"]
        names = control_plane.kubectl("get", "openshell", "-n", namespace, "-o", "name").stdout.splitlines()
        assert "sandboxpolicy.middleware.openshell.io/shown" in names
        assert f"supervisormiddleware.middleware.openshell.io/{namespace}" in names
    finally:
        control_plane.kubectl("delete", "smw", namespace)


def test_the_quickstart_applies(control_plane: ControlPlane) -> None:
    control_plane.kubectl("create", "namespace", "quickstart")
    files = [f"--filename={_QUICKSTART / name}" for name in ("10-registration.yaml", "20-policy.yaml")]
    try:
        said = control_plane.kubectl("apply", *files).stdout.splitlines()
        assert [line.rpartition(" ")[2] for line in said] == ["created"] * 3
    finally:
        control_plane.kubectl("delete", "--ignore-not-found", *files)
        control_plane.kubectl("delete", "namespace", "quickstart", "--wait=false")


def test_the_example_of_a_cluster_applies(control_plane: ControlPlane) -> None:
    """All but the Pod, for which no controller makes a ServiceAccount here; `make kube-demo` runs it whole."""
    files = [f"--filename={p}" for p in sorted(_CLUSTER.glob("*.yaml")) if p.name != "40-sandbox.yaml"]
    try:
        said = control_plane.kubectl("apply", *files).stdout.splitlines()
        assert [line.rpartition(" ")[2] for line in said] == ["created"] * 7
    finally:
        control_plane.kubectl("delete", "--ignore-not-found", "--wait=false", *files)


def _refusal(plane: ControlPlane, document: Document) -> str:
    result = plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(document), check=False)
    assert result.returncode != 0, f"admitted: {document}"
    return result.stderr


def _get(plane: ControlPlane, kind: str, name: str, namespace: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(plane.kubectl("get", kind, name, "-n", namespace, "-o", "json").stdout)
    return stored
