"""`smw convert` on files: what is written, what is reported, and with which exit code."""

import io
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml

from tests.cli.commands import Smw

ROOT: Final = Path(__file__).resolve().parents[3]
QUICKSTART: Final = ROOT / "examples/quickstart"
# RFC 0009 "Registration and delivery" and "Policy integration", as they stand there.
GATEWAY: Final = """
[[openshell.supervisor.middleware]]
name = "anonymizer"
grpc_endpoint = "http://127.0.0.1:1234"
max_body_bytes = 4194304
timeout = "500ms"
allow_insecure = true

[[openshell.supervisor.middleware]]
name = "agent-traces-exporter"
grpc_endpoint = "https://middleware.example.internal:443"
max_body_bytes = 1048576
"""
POLICY: Final = """
network_middlewares:
  regex-redactor:
    name: Redact sensitive tokens
    middleware: openshell/regex
    order: 10
    config:
      mode: redact
    on_error: fail_closed
    endpoints:
      include: ["*.example.com"]
      exclude: ["trusted.example.com"]

  anonymize:
    middleware: acme/anonymizer
    order: 20
    config:
      pii: redact
    on_error: fail_closed
    endpoints:
      include: ["api.example.com"]

  export-traces:
    middleware: acme/trace-exporter
    order: 30
    config:
      exclude_images: true
    on_error: fail_open
    endpoints:
      include: ["api.example.com"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gateway.toml").write_text(GATEWAY)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def reported(err: str) -> list[tuple[str, str]]:
    """Grade and field of each row; columns are two spaces apart."""
    rows = [re.split(r"  +", line) for line in err.splitlines()[1:]]
    return [(row[0], row[2]) for row in rows]


def test_the_files_of_the_rfc_become_resources_that_validate(smw: Smw, folder: Path) -> None:
    shown = smw("convert", folder / "gateway.toml", folder / "policy.yaml", "--namespace", "team-a")
    assert shown.code == 0
    assert reported(shown.err) == [("changed", "spec.sandboxSelector")]
    (folder / "resources.yaml").write_text(shown.out)
    checked = smw("validate", folder / "resources.yaml", "--allow-loopback")
    assert checked.code == 0, checked.out
    first, second, policy = yaml.safe_load_all(shown.out)
    assert first["spec"] == {
        "grpcEndpoint": "http://127.0.0.1:1234",
        "maxBodyBytes": 4194304,
        "timeout": "500ms",
        "allowInsecure": True,
    }
    assert second["metadata"] == {"name": "agent-traces-exporter"}
    assert policy["metadata"] == {"name": "policy", "namespace": "team-a"}
    configs = policy["spec"]["networkMiddlewares"]
    assert [c["onError"] for c in configs.values()] == ["FailClosed", "FailClosed", "FailOpen"]


def test_and_back_again(smw: Smw, folder: Path) -> None:
    resources = folder / "resources.yaml"
    resources.write_text(smw("convert", folder / "gateway.toml", folder / "policy.yaml").out)
    registrations = smw("convert", resources, "--to", "toml")
    policy = smw("convert", resources, "--to", "openshell")
    assert (registrations.code, policy.code) == (0, 0)
    assert tomllib.loads(registrations.out) == tomllib.loads(GATEWAY)
    assert registrations.out.count("[[openshell.supervisor.middleware]]") == 2
    assert yaml.safe_load(policy.out) == {"version": 1, **yaml.safe_load(POLICY)}


def test_what_the_example_holds_and_the_other_form_cannot_is_lost_with_exit_1(smw: Smw) -> None:
    shown = smw("convert", QUICKSTART, "--to", "toml")
    assert shown.code == 1
    (entry,) = tomllib.loads(shown.out)["openshell"]["supervisor"]["middleware"]
    assert entry == {
        "name": "terms",
        "grpc_endpoint": "https://127.0.0.1:18443",
        "max_body_bytes": 1048576,
        "timeout": "1s",
    }
    assert ("lost", "spec.tls.caBundleRef") in reported(shown.err)
    back = smw("convert", QUICKSTART, "--to", "openshell")
    assert back.code == 0
    assert "a list of cases for smw simulate is left out" in back.err


def test_json_is_one_object_with_the_report_and_stderr_is_silent(smw: Smw, folder: Path) -> None:
    (folder / "gateway.toml").write_text(GATEWAY + "retries = 3\n")
    shown = smw("convert", folder / "gateway.toml", "-o", "json")
    assert (shown.code, shown.err) == (1, "")
    value = json.loads(shown.out)
    assert [d["metadata"]["name"] for d in value["documents"]] == ["anonymizer", "agent-traces-exporter"]
    assert value["report"] == [
        {
            "grade": "lost",
            "subject": (folder / "gateway.toml").as_posix(),
            "path": "openshell.supervisor.middleware[1].retries",
            "message": "is not a key of a registration",
        }
    ]


def test_nothing_is_said_where_nothing_changed(smw: Smw, folder: Path) -> None:
    shown = smw("convert", folder / "gateway.toml")
    assert (shown.code, shown.err) == (0, "")


def test_certificates_that_the_toml_names_come_along_but_never_a_key(smw: Smw, folder: Path) -> None:
    config_map = next(d for d in yaml.safe_load_all((QUICKSTART / "10-registration.yaml").read_text()) if "data" in d)
    pem = config_map["data"]["ca.crt"]
    (folder / "ca.pem").write_text(pem)
    (folder / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    gateway = folder / "gateway.toml"
    gateway.write_text(GATEWAY + 'tls_ca_cert_path = "ca.pem"\n')
    shown = smw("convert", gateway)
    assert shown.code == 0
    assert list(yaml.safe_load_all(shown.out))[1]["spec"]["tls"] == {"caBundle": pem}
    (folder / "resources.yaml").write_text(shown.out)
    assert smw("validate", folder / "resources.yaml", "--allow-loopback").code == 0
    back = smw("convert", folder / "resources.yaml", "--to", "toml")
    assert (back.code, tomllib.loads(back.out)) == (0, tomllib.loads(gateway.read_text()))
    for name in ("key.pem", "missing.pem", "."):
        gateway.write_text(GATEWAY + f'tls_ca_cert_path = "{name}"\n')
        shown = smw("convert", gateway)
        assert shown.code == 1
        assert "PRIVATE" not in shown.out + shown.err
        assert ("lost", "openshell.supervisor.middleware[1].tls_ca_cert_path") in reported(shown.err)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gateway.toml", "name = ", "is no TOML, at end of document (nothing was converted)"),
        ("gateway.toml", "a = 1\nsecret = hunter2", "is no TOML, at line 2, column 10 (nothing was converted)"),
        ("gateway.toml", "a = " + "[" * 5000, "is no TOML (nothing was converted)"),
        ("gateway.toml", "a = " + "1" * 5000, "is no TOML (nothing was converted)"),
        ("gateway.toml", "a = 1", "nothing to convert to resources: no [[openshell.supervisor.middleware]]"),
        ("policy.yaml", "a: [", "line 2: is no YAML"),
        ("policy.yaml", "apiVersion: v1\nkind: Pod", "nothing to convert to resources"),
        ("other.yaml", "apiVersion: middleware.openshell.io/v1alpha1\nkind: SandboxPolicy", "say --to toml"),
    ],
)
def test_what_cannot_be_read_is_exit_2_and_shows_no_value(
    smw: Smw, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    shown = smw("convert", tmp_path / name)
    assert (shown.code, shown.out) == (2, "")
    assert said in shown.err
    assert "hunter2" not in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_file_that_is_not_there_or_too_large_is_exit_2(
    smw: Smw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = smw("convert", tmp_path / "none.toml")
    assert (shown.code, shown.err) == (2, f"smw: {tmp_path / 'none.toml'}: no such file or folder\n")
    (tmp_path / "gateway.toml").write_text(GATEWAY)
    monkeypatch.setattr("supervisor_middleware.cli.conversion.command.MAX_FILE_BYTES", 8)
    assert "is larger than 8 bytes" in smw("convert", tmp_path / "gateway.toml").err
    assert smw("convert", tmp_path / "gateway.toml", "--to", "xml").code == 2


def test_a_file_that_may_not_be_read_is_exit_2(smw: Smw, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("supervisor_middleware.cli.conversion.command.read_bytes", refuse)
    shown = smw("convert", folder / "gateway.toml")
    assert (shown.code, shown.err) == (2, f"smw: {folder / 'gateway.toml'}: Permission denied\n")


@pytest.mark.parametrize(("text", "kind"), [(GATEWAY, "SupervisorMiddleware"), (POLICY, "SandboxPolicy")])
def test_standard_input_is_known_by_its_content(
    smw: Smw, monkeypatch: pytest.MonkeyPatch, text: str, kind: str
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    shown = smw("convert", "-", "--name", "Mine!")
    assert shown.code == 0
    document = next(iter(yaml.safe_load_all(shown.out)))
    assert document["kind"] == kind
    assert document["metadata"]["name"] in {"anonymizer", "mine"}


def test_a_namespace_that_cannot_be_is_exit_2(smw: Smw, folder: Path) -> None:
    shown = smw("convert", folder / "gateway.toml", "--namespace", "Team_A")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("smw: --namespace: at most 63 of ")
