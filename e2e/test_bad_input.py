"""Whatever a service, a registration or a policy gets wrong, it is said, and it stays the only thing that goes wrong.

After each test a bystander in a namespace of its own must still be programmed and served.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import Installation, a_pod, service_credentials
from e2e.objects import Document, a_policy, a_registration, an_entry
from e2e.services import Host, Scripted, a_manifest
from supervisor_middleware.cli.processes import echo_upstream, free_port, post
from supervisor_middleware.middleware.service import http_binding, http_manifest
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.wire.codec import encode_manifest
from supervisor_middleware.wire.gen import openshell_middleware_v1_pb2 as rfc0009

_JUDGED = {"False/Invalid", "False/Conflicted"}
_KEY = "sk-0123456789abcdefghij"


@dataclass(frozen=True, slots=True)
class Bystander:
    """Who did nothing wrong."""

    namespace: str
    proxy: int
    revision: Document


@pytest.fixture(scope="module")
def bystander(installation: Installation) -> Iterator[Bystander]:
    namespace = installation.plane.create_namespace("bystander")
    installation.apply(
        a_policy("outbound", namespace=namespace), a_pod("agent-0", namespace=namespace, sandbox="agent")
    )
    with echo_upstream() as upstream:
        _, proxy = installation.supervisor(namespace=namespace, sandbox="agent", pod="agent-0", upstream=upstream)
        installation.await_condition("sbp", "outbound", "Programmed=True/Programmed", namespace=namespace)
        accepted = installation.get("sbp", "outbound", namespace=namespace)["status"]["accepted"]
        yield Bystander(namespace, proxy, accepted)
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def registration(installation: Installation) -> Iterator[str]:
    """A name for the bad registration, which goes with the test."""
    name = f"bad-{secrets.token_hex(4)}"
    yield name
    installation.plane.kubectl("delete", "smw", name, "--ignore-not-found")


@pytest.fixture(autouse=True)
def nobody_else_suffers(installation: Installation, bystander: Bystander, registration: str) -> Iterator[None]:
    """What must hold at the end of each test: `registration` is asked for, so it is still there then."""
    yield
    installation.operator.check()
    found = installation.get("sbp", "outbound", namespace=bystander.namespace)
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert (conditions["Ready"], conditions["Programmed"]) == ("True", "True")
    assert found["status"]["accepted"] == bystander.revision
    assert post(bystander.proxy, "api.example.com", _KEY).body == "[REDACTED]"


def _manifest(**change: object) -> bytes:
    """A manifest of one binding, with fields of the wire replaced."""
    fields = {"id": "acme/one", "operation": 1, "phase": 1, "max_body_bytes": 65536, **change}
    return bytes(
        rfc0009.MiddlewareManifest(
            name="bad",
            service_version="1",
            bindings=[rfc0009.MiddlewareBinding(**fields)],  # type: ignore[arg-type]
        ).SerializeToString()
    )


def _released() -> bytes:
    binding = http_binding("unused", max_body_bytes=65536)
    return encode_manifest(http_manifest(binding, name="bad", version="1", dialect=Dialect.RELEASED))


def _many(count: int) -> bytes:
    return a_manifest(*(f"acme/b{n}" for n in range(count)))


MALFORMED: dict[str, tuple[bytes, str, str]] = {
    "garbage": (b"\xff\xfe\xfd", "spec.grpcEndpoint", "the manifest is not a protobuf message of the contract"),
    "nothing at all": (b"", "spec.grpcEndpoint", "the manifest has no bindings"),
    "a name and no bindings": (
        rfc0009.MiddlewareManifest(name="bad").SerializeToString(),
        "spec.grpcEndpoint",
        "the manifest has no bindings",
    ),
    "two dialects": (
        _manifest() + _released(),
        "spec.grpcEndpoint",
        "the manifest mixes bindings with an ID and bindings without",
    ),
    "65 bindings": (_many(65), "spec.grpcEndpoint", "the manifest has over 64 bindings"),
    "over 64 KiB": (
        rfc0009.MiddlewareManifest(name="x" * 65537).SerializeToString() + _manifest(),
        "spec.grpcEndpoint",
        "the manifest is over 65536 bytes",
    ),
    "a reserved ID": (
        _manifest(id="openshell/regex"),
        "status.manifest",
        "binding openshell/regex claims the openshell/ namespace, which is reserved for built-ins",
    ),
    "an ID that is none": (_manifest(id="a//b"), "status.manifest", "the ID of binding 0 must be"),
    "one ID twice": (_manifest() + _manifest(), "status.manifest", "binding acme/one is listed 2 times"),
    "another phase": (
        _manifest(phase=2),
        "status.manifest",
        "binding acme/one is for another hook than HTTP_REQUEST/PRE_CREDENTIALS, the only one of v1",
    ),
    "another operation": (
        _manifest(operation=2),
        "status.manifest",
        "binding acme/one is for another hook than HTTP_REQUEST/PRE_CREDENTIALS, the only one of v1",
    ),
    "a phase nobody knows": (_manifest(phase=99), "status.manifest", "binding acme/one is for another hook than"),
    "no body at all": (
        _manifest(max_body_bytes=0),
        "status.manifest",
        "binding acme/one advertises 0 body bytes; 1 to 4194304 is allowed",
    ),
    "a timeout that is none": (_manifest(timeout="soon"), "status.manifest", "the timeout of binding acme/one must"),
    "less than is registered": (
        _manifest(max_body_bytes=65535),
        "spec.maxBodyBytes",
        "is 65536, but binding acme/one takes at most 65535 bytes",
    ),
}


@pytest.mark.parametrize(("manifest", "path", "message"), MALFORMED.values(), ids=MALFORMED)
def test_a_manifest_that_is_wrong_is_refused_with_its_flaw(
    installation: Installation, services: Host, registration: str, manifest: bytes, path: str, message: str
) -> None:
    service = services.serve(Scripted(manifest))
    installation.apply(a_registration(registration, endpoint=service.endpoint))
    installation.wait("it is judged", lambda: installation.condition("smw", registration, "Ready") in _JUDGED)
    hint = "mend" if path != "spec.maxBodyBytes" else "set 65535 or less"
    _assert_said(installation, registration, path=path, message=message, hint=hint)
    assert installation.condition("smw", registration, "Accepted") in _JUDGED
    assert "accepted" not in installation.get("smw", registration)["status"]


def test_nobody_listens(installation: Installation, registration: str) -> None:
    installation.apply(a_registration(registration, endpoint=f"http://127.0.0.1:{free_port()}"))
    installation.await_condition("smw", registration, "Reachable=False/Unreachable")
    _assert_said(
        installation,
        registration,
        path="spec.grpcEndpoint",
        message="Describe failed: the connection failed",
        hint="check that the service runs and that the operator can reach it; this is retried",
    )


def test_a_name_that_does_not_resolve(installation: Installation, registration: str) -> None:
    installation.apply(a_registration(registration, endpoint="https://nobody.invalid:443"))
    installation.await_condition("smw", registration, "Reachable=False/Unreachable")
    _assert_said(installation, registration, path="spec.grpcEndpoint", message="Describe failed: ", hint="retried")


def test_a_service_that_never_answers(installation: Installation, services: Host, registration: str) -> None:
    service = services.serve(Scripted(None))
    installation.apply(a_registration(registration, endpoint=service.endpoint, timeout="200ms"))
    installation.await_condition("smw", registration, "Reachable=False/Unreachable")
    message = "Describe failed: it did not answer in time"
    _assert_said(installation, registration, path="spec.grpcEndpoint", message=message, hint="retried")


def test_a_service_of_another_authority(installation: Installation, services: Host, registration: str) -> None:
    service = services.serve(Scripted(a_manifest("acme/one")), tls=service_credentials())
    strangers = service_credentials().trust_bundle_pem.decode()
    installation.apply(a_registration(registration, endpoint=service.endpoint, tls={"caBundle": strangers}))
    installation.await_condition("smw", registration, "Ready=False/TLSVerificationFailed")
    assert installation.condition("smw", registration, "Reachable") == "False/TLSVerificationFailed"
    _assert_said(
        installation,
        registration,
        path="spec.grpcEndpoint",
        message="Describe failed: its certificate could not be verified",
        hint="check tls.caBundle and tls.serverName",
    )


def test_a_bundle_that_is_not_there(installation: Installation, namespace: str, registration: str) -> None:
    reference = {"kind": "ConfigMap", "namespace": namespace, "name": "supervisor-middleware-trust"}
    installation.apply(a_registration(registration, tls={"caBundleRef": reference}))
    installation.await_condition("smw", registration, "Ready=False/Invalid")
    message = f"ConfigMap {namespace}/supervisor-middleware-trust"
    _assert_said(installation, registration, path="spec.tls.caBundleRef", message=message, hint="create it")


def test_a_service_that_turns_bad_keeps_what_was_accepted(
    installation: Installation, services: Host, registration: str, namespace: str
) -> None:
    service = services.serve(Scripted(a_manifest("acme/turning")))
    installation.apply(a_registration(registration, endpoint=service.endpoint))
    installation.await_condition("smw", registration, "Ready=True/Ready")
    installation.apply(a_policy("user", namespace=namespace, one=an_entry("acme/turning")))
    installation.await_condition("sbp", "user", "Ready=True/Ready", namespace=namespace)
    accepted = installation.get("smw", registration)["status"]["accepted"]

    service.manifest = b"\xff"
    # Any other timeout is another connection, so it is described at once.
    installation.apply(a_registration(registration, endpoint=service.endpoint, timeout="900ms"))
    installation.await_condition("smw", registration, "Ready=False/Invalid")
    assert installation.get("smw", registration)["status"]["accepted"] == accepted
    assert installation.condition("sbp", "user", "Ready", namespace=namespace) == "True/Ready"


def _nested(depth: int) -> Document:
    config: Document = {}
    for _ in range(depth):
        config = {"in": config}
    return config


POLICIES: dict[str, tuple[Callable[[], Document], str]] = {
    "an unknown binding": (
        lambda: an_entry("acme/nobody"),
        ".one.middleware: no accepted registration serves this binding (register the service first",
    ),
    "a config over 64 KiB": (
        lambda: an_entry(config={"text": "x" * 65536}),
        "bytes encoded, the limit is 65536 (keep large data in the service)",
    ),
    "a config of 2 MiB": (
        lambda: an_entry(config={"text": "x" * (2 << 20)}),
        "bytes encoded, the limit is 65536 (keep large data in the service)",
    ),
    "a config that nests": (lambda: an_entry(config=_nested(60)), ".one.config: nests deeper than 30 levels"),
    "a pattern that no host can match": (
        lambda: an_entry(include=["a" * 64 + ".example.com"]),
        ".one.endpoints.include[0]: has a label longer than 63 characters; must be",
    ),
}


@pytest.mark.parametrize(("entry", "message"), POLICIES.values(), ids=POLICIES)
def test_a_policy_that_is_wrong_is_refused_with_its_flaw(
    control_plane: ControlPlane, namespace: str, entry: Callable[[], Document], message: str
) -> None:
    document = json.dumps(a_policy("bad", namespace=namespace, one=entry()))
    result = control_plane.kubectl("create", "-f", "-", input=document, check=False)
    assert result.returncode != 0
    assert "spec.networkMiddlewares.one" in result.stderr
    assert message in result.stderr
    assert len(result.stderr) < 4096


def test_an_object_over_the_limits_of_kubernetes_is_answered_by_kubernetes(
    control_plane: ControlPlane, namespace: str
) -> None:
    document = yaml.safe_dump(a_policy("bad", namespace=namespace, one=an_entry(config={"text": "x" * (2 << 20)})))
    result = control_plane.kubectl("apply", "-f", "-", input=document, check=False)
    # kubectl adds a second copy as an annotation.
    assert "Request entity too large: limit is 3145728" in result.stderr
    document = json.dumps(a_policy("bad", namespace=namespace, one=an_entry(config={"text": "x" * (4 << 20)})))
    result = control_plane.kubectl("create", "-f", "-", input=document, check=False)
    assert "Request entity too large: limit is 3145728" in result.stderr


def _assert_said(installation: Installation, name: str, *, path: str, message: str, hint: str) -> None:
    """The status has the violation and its next move; the condition repeats the first."""
    status = installation.get("smw", name)["status"]
    said = [v["message"] for v in status["violations"] if v["path"] == path and message in v["message"]]
    assert said, status["violations"]
    assert hint in said[0].rpartition("(")[2]
    (ready,) = (c for c in status["conditions"] if c["type"] == "Ready")
    first = status["violations"][0]
    assert ready["message"].startswith(f"{first['path']}: {first['message']}")
