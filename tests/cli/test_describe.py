"""`smw describe` against real services: what it shows, records and refuses."""

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
import yaml

from supervisor_middleware.cli.processes import Process, free_port, wait_until
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.wire.codec import SERVICE
from tests.cli.commands import Smw

TABLE = """\
terms 1.0.0 (dialect rfc0009)
BINDING     OPERATION     PHASE            MAX BODY  TIMEOUT
acme/terms  HTTP_REQUEST  PRE_CREDENTIALS   1048576       1s
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a service (`tls`), of a caller (`caller`), and their authority (`ca.crt`)."""
    made = tmp_path_factory.mktemp("describe")
    now = datetime.now(UTC)
    authority = Authority.create(trust_domain="example.internal", now=now)
    day = timedelta(days=1)
    server = authority.issue_server(
        dns_names=("localhost",), ip_addresses=(ip_address("127.0.0.1"),), now=now, lifetime=day
    )
    write_credentials(made / "tls", server)
    write_credentials(made / "caller", authority.issue_operator(namespace="default", now=now, lifetime=day))
    (made / "ca.crt").write_bytes(authority.certificate_pem)
    other = Authority.create(trust_domain="example.internal", now=now)
    (made / "other.crt").write_bytes(other.certificate_pem)
    return made


@contextlib.contextmanager
def terms(folder: Path, *options: str) -> Iterator[int]:
    port = free_port()
    log = folder / f"{port}.log"
    service = Process(name="terms", arguments=("serve", "terms", "--address", f"127.0.0.1:{port}", *options), log=log)
    service.start()
    try:
        wait_until("the service serves", lambda: "serves on port" in log.read_text(), processes=(service,))
        yield port
    finally:
        service.stop()


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[str]:
    with terms(folder) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[str]:
    with terms(folder, "--tls", str(folder / "tls"), "--client-ca", str(folder / "ca.crt")) as port:
        yield f"https://localhost:{port}"


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A gRPC server that says `answer` to everything."""
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Describe": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_the_table_is_for_people(smw: Smw, plain: str) -> None:
    shown = smw("describe", plain)
    assert (shown.code, shown.err, shown.out) == (0, "", TABLE)


def test_a_service_is_verified_and_we_prove_ourselves(smw: Smw, secured: str, folder: Path) -> None:
    shown = smw("describe", secured, "--ca", folder / "ca.crt", "--credentials", folder / "caller")
    assert (shown.code, shown.err, shown.out) == (0, "", TABLE)
    by_address = secured.replace("localhost", "127.0.0.1")
    named = ("--server-name", "localhost", "--ca", folder / "ca.crt", "--credentials", folder / "caller")
    assert smw("describe", by_address, *named) == shown


def test_json_and_yaml_say_the_same(smw: Smw, plain: str) -> None:
    as_json, as_yaml = smw("describe", plain, "-o", "json"), smw("describe", plain, "-o", "yaml")
    value = json.loads(as_json.out)
    assert value == yaml.safe_load(as_yaml.out)
    assert (value["registration"], value["dialect"]) == ("service", "rfc0009")
    assert [b["id"] for b in value["bindings"]] == ["acme/terms"]


def test_what_is_recorded_validates_policies(smw: Smw, plain: str, tmp_path: Path) -> None:
    (tmp_path / "manifests.yaml").write_text(smw("describe", plain, "--name", "terms", "-o", "yaml").out)
    (tmp_path / "objects.yaml").write_text(
        f"""\
apiVersion: middleware.openshell.io/v1alpha1
kind: SupervisorMiddleware
metadata: {{name: terms}}
spec: {{grpcEndpoint: "{plain}", allowInsecure: true, maxBodyBytes: 1048577}}
---
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {{name: outbound, namespace: team-a}}
spec:
  sandboxSelector: {{}}
  networkMiddlewares:
    terms: {{middleware: acme/terms, endpoints: {{include: ["**"]}}}}
"""
    )
    objects, recorded = tmp_path / "objects.yaml", ("--manifests", tmp_path / "manifests.yaml")
    shown = smw("validate", objects, "--allow-loopback", *recorded)
    assert shown.code == 1
    assert "is 1048577, but binding acme/terms takes at most 1048576 bytes" in shown.out
    objects.write_text(objects.read_text().replace("1048577", "1048576"))
    assert smw("validate", objects, "--allow-loopback", *recorded).code == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--ca", "{}/other.crt", "--credentials", "{}/caller"),
            "(--ca is its authority, --server-name a name in its certificate)",
        ),
        (("--ca", "{}/ca.crt", "--credentials", "{}/caller", "--server-name", "other.test"), "could not be verified"),
        (("--ca", "{}/ca.crt"), "(try --credentials)"),
    ],
    ids=["another authority", "another name", "no client certificate"],
)
def test_a_service_that_is_not_proven_or_wants_proof_is_exit_2(
    smw: Smw, secured: str, folder: Path, options: tuple[str, ...], problem: str
) -> None:
    shown = smw("describe", secured, *(o.format(folder) for o in options))
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith(f"smw: {secured} could not be asked: ")
    assert problem in shown.err
    assert shown.err.count("\n") == 1


def test_a_service_that_is_not_there_is_exit_2(smw: Smw) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    shown = smw("describe", endpoint)
    assert (shown.code, shown.out) == (2, "")
    assert (
        shown.err
        == f"smw: {endpoint} could not be asked: the connection failed (does a service listen there, and with TLS if it is https://?)\n"
    )


@pytest.mark.parametrize("answer", [b"\xff\xff\xff", b"\x08\x01", b"HTTP/1.1 200 OK"], ids=str)
def test_an_answer_that_is_no_manifest_is_exit_1(smw: Smw, answer: bytes) -> None:
    with answering(answer) as endpoint:
        shown = smw("describe", endpoint)
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith(f"smw: {endpoint} answered, but ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ftp://a",), "the endpoint must begin with https:// (or http:// for plaintext)"),
        (("https://",), "an endpoint has the form https://host[:port]"),
        (("https://[::1",), "an endpoint has the form https://host[:port]"),
        (("http://localhost:99999",), "an endpoint has the form https://host[:port]"),
        (("http://user:secret@localhost",), "an endpoint has the form https://host[:port]"),
        (("http://localhost", "--timeout", "3h"), "--timeout must be an integer with the suffix ms or s"),
        (("http://localhost", "--ca", "{}/nothing.crt"), "nothing.crt: No such file or directory"),
        (("http://localhost", "--ca", "{}/tls/tls.key"), "tls.key: only CERTIFICATE blocks are allowed"),
        (("http://localhost", "--credentials", "{}/nothing"), "nothing: holds no credentials"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(
    smw: Smw, folder: Path, arguments: tuple[str, ...], problem: str
) -> None:
    shown = smw("describe", *(a.format(folder) for a in arguments))
    assert (shown.code, shown.out) == (2, "")
    assert problem in shown.err
    assert "secret" not in shown.err
    assert shown.err.count("\n") == 1
