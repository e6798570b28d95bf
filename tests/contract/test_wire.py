"""The field numbers of both dialects against the contract's tables, and generated files against their sources."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor, FileDescriptor

from supervisor_middleware.wire import codec
from supervisor_middleware.wire.gen import (
    distribution_pb2,
    inspection_pb2,
    openshell_middleware_v1_pb2,
    released_pb2,
)
from tests.contract import generate
from tests.contract.generate import GENERATORS, ROOT, Drift, Generator, drifted, write

# One line a message, in the contract's notation; `oneof` members carry the oneof's name.
SHARED: Final = {
    "ValidateConfigResponse": "1 valid bool; 2 reason string",
    "HttpHeader": "1 name string; 2 value string",
    "HttpRequestTarget": "1 scheme string; 2 host string; 3 port uint32; 4 method string; 5 path string; 6 query string",
    "Process": "1 binary string; 2 pid uint32; 3 ancestors repeated string",
    "Finding": "1 type string; 2 label string; 3 count uint32; 4 confidence string; 5 severity string",
    "WriteHeader": "1 name string; 2 value string; 3 on_existing ExistingHeaderAction",
    "RemoveHeader": "1 name string",
    "HeaderMutation": "1 operation/write WriteHeader; 2 operation/remove RemoveHeader",
}
CONTEXT: Final = "1 request_id string; 2 sandbox_id string; 3 originating_process Process"
RESULT: Final = (
    "1 decision Decision; 2 reason string; 3 body bytes; 4 has_body bool; "
    "5 header_mutations repeated HeaderMutation; 6 findings repeated Finding; 7 metadata map<string,string>"
)
RFC0009: Final = SHARED | {
    "MiddlewareManifest": "1 name string; 2 service_version string; 3 bindings repeated MiddlewareBinding",
    "MiddlewareBinding": "1 id string; 2 operation SupervisorMiddlewareOperation; 3 phase SupervisorMiddlewarePhase; "
    "4 max_body_bytes uint64; 5 timeout string",
    "ValidateConfigRequest": "1 binding_id string; 2 config Struct",
    "HttpRequestEvaluation": "1 binding_id string; 2 phase SupervisorMiddlewarePhase; 3 context RequestContext; "
    "4 config Struct; 5 target HttpRequestTarget; 6 headers repeated HttpHeader; 7 body bytes",
    "RequestContext": CONTEXT,
    "HttpRequestResult": RESULT,
}
RELEASED: Final = SHARED | {
    "MiddlewareManifest": "1 name string; 2 service_version string; 3 bindings repeated MiddlewareBinding; "
    "4 expected_audience string",
    "MiddlewareBinding": "1 operation SupervisorMiddlewareOperation; 2 phase SupervisorMiddlewarePhase; "
    "3 max_payload_bytes uint64; 4 timeout string",
    "ValidateConfigRequest": "1 config Struct; 2 middleware_name string",
    "HttpRequestEvaluation": "1 phase SupervisorMiddlewarePhase; 2 context RequestContext; 3 config Struct; "
    "4 target HttpRequestTarget; 5 headers repeated HttpHeader; 6 body bytes; 7 middleware_name string",
    "RequestContext": CONTEXT + "; 4 sandbox_name string; 5 workspace string",
    "HttpRequestResult": RESULT + "; 8 reason_code string",
    "WebSocketSessionEvent": "1 event/preflight WebSocketPreflight; 2 event/session_start WebSocketSessionStart; "
    "3 event/message WebSocketMessage; 4 event/session_end WebSocketSessionEnd",
    "WebSocketPreflight": "1 session_id string; 2 phase SupervisorMiddlewarePhase; 3 context RequestContext; "
    "4 target HttpRequestTarget; 5 requested_subprotocols repeated string; 6 middleware_name string; 7 config Struct",
    "WebSocketSessionStart": "1 selected_subprotocol string",
    "WebSocketMessage": "1 sequence uint64; 2 payload/text string; 3 payload/binary bytes",
    "WebSocketSessionEnd": "1 reason WebSocketSessionEndReason",
    "WebSocketPreflightDecision": "1 action WebSocketPreflightAction; 2 reason string; 3 reason_code string; "
    "4 findings repeated Finding; 5 metadata map<string,string>",
    "WebSocketMessageResult": "1 sequence uint64; 2 decision Decision; 3 replacement/text string; "
    "4 replacement/binary bytes; 5 reason string; 6 reason_code string; 7 findings repeated Finding; "
    "8 metadata map<string,string>",
    "WebSocketSessionEventResult": "1 result/preflight_decision WebSocketPreflightDecision; "
    "2 result/message_result WebSocketMessageResult",
}
SHARED_ENUMS: Final = {
    "SupervisorMiddlewareOperation": (
        "SUPERVISOR_MIDDLEWARE_OPERATION_",
        "UNSPECIFIED HTTP_REQUEST WEBSOCKET_MESSAGE",
    ),
    "SupervisorMiddlewarePhase": ("SUPERVISOR_MIDDLEWARE_PHASE_", "UNSPECIFIED PRE_CREDENTIALS PRE_RETURN"),
    "Decision": ("DECISION_", "UNSPECIFIED ALLOW DENY"),
    "ExistingHeaderAction": ("EXISTING_HEADER_ACTION_", "UNSPECIFIED APPEND OVERWRITE SKIP"),
}
RELEASED_ENUMS: Final = SHARED_ENUMS | {
    "WebSocketPreflightAction": ("WEB_SOCKET_PREFLIGHT_ACTION_", "UNSPECIFIED INSPECT SKIP DENY"),
    "WebSocketSessionEndReason": (
        "WEB_SOCKET_SESSION_END_REASON_",
        (
            "UNSPECIFIED NORMAL_CLOSE PEER_DISCONNECT POLICY_RELOAD MIDDLEWARE_DENIAL MIDDLEWARE_FAILURE "
            "PROTOCOL_ERROR CANCELLATION UPSTREAM_REJECTED POLICY_DENIAL STAGE_SKIPPED"
        ),
    ),
}


def noted(field: FieldDescriptor) -> str:
    """A field in the contract's notation."""
    kinds = {
        FieldDescriptor.TYPE_STRING: "string",
        FieldDescriptor.TYPE_BYTES: "bytes",
        FieldDescriptor.TYPE_BOOL: "bool",
        FieldDescriptor.TYPE_UINT32: "uint32",
        FieldDescriptor.TYPE_UINT64: "uint64",
    }
    message: Any = field.message_type
    kind = message.name if message else field.enum_type.name if field.enum_type else kinds[field.type]
    if message and message.GetOptions().map_entry:
        key, value = message.fields
        kind = f"map<{kinds[key.type]},{kinds[value.type]}>"
    elif field.is_repeated:
        kind = f"repeated {kind}"
    place = f"{field.containing_oneof.name}/" if field.containing_oneof else ""
    return f"{field.number} {place}{field.name} {kind}"


def messages(file: FileDescriptor) -> dict[str, str]:
    return {name: "; ".join(map(noted, found.fields)) for name, found in file.message_types_by_name.items()}


def enum_values(enum: EnumDescriptor) -> dict[str, int]:
    return {value.name: value.number for value in enum.values}


@pytest.mark.parametrize(
    ("file", "table"),
    [
        pytest.param(openshell_middleware_v1_pb2.DESCRIPTOR, RFC0009, id="rfc0009"),
        pytest.param(released_pb2.DESCRIPTOR, RELEASED, id="released"),
    ],
)
def test_messages_are_as_in_the_contract(file: FileDescriptor, table: dict[str, str]) -> None:
    assert messages(file) == table


@pytest.mark.parametrize(
    ("file", "table"),
    [
        pytest.param(openshell_middleware_v1_pb2.DESCRIPTOR, SHARED_ENUMS, id="rfc0009"),
        pytest.param(released_pb2.DESCRIPTOR, RELEASED_ENUMS, id="released"),
    ],
)
def test_enums_are_as_in_the_contract(file: FileDescriptor, table: dict[str, tuple[str, str]]) -> None:
    expected = {
        name: {prefix + value: number for number, value in enumerate(values.split())}
        for name, (prefix, values) in table.items()
    }
    assert {name: enum_values(enum) for name, enum in file.enum_types_by_name.items()} == expected


def test_the_codec_calls_the_paths_of_the_services_descriptor() -> None:
    [service] = openshell_middleware_v1_pb2.DESCRIPTOR.services_by_name.values()
    paths = {f"/{service.full_name}/{method.name}" for method in service.methods}
    methods = codec.METHODS
    assert service.full_name == codec.SERVICE
    assert paths == {methods.describe, methods.validate_config, methods.evaluate_http_request}


def test_the_released_dialect_has_a_package_of_its_own_and_no_service_to_call_by_mistake() -> None:
    assert released_pb2.DESCRIPTOR.package == "supervisor_middleware.released.v1"
    assert not released_pb2.DESCRIPTOR.services_by_name


def test_supervisors_have_three_services_and_people_one_of_their_own() -> None:
    services = sorted(distribution_pb2.DESCRIPTOR.services_by_name)
    assert services == ["Enrollment", "GenerationDiscovery", "Renewal"]
    assert sorted(inspection_pb2.DESCRIPTOR.services_by_name) == ["Inspection"]


def test_generated_code_imports_without_a_warning() -> None:
    modules = sorted(path.stem for path in (ROOT / "operator/supervisor_middleware/wire/gen").glob("*_pb2*.py"))
    program = "import importlib, sys; [importlib.import_module('supervisor_middleware.wire.gen.' + m) for m in sys.argv[1:]]"
    command = [sys.executable, "-W", "error", "-c", program, *modules]
    done = subprocess.run(command, cwd=ROOT / "operator", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.produce.__name__)
def test_generated_files_are_fresh(generator: Generator) -> None:
    assert drifted(generator) == {}


def a_generator(files: dict[str, bytes]) -> Generator:
    return Generator(produce=lambda: {Path(path): content for path, content in files.items()}, owns=("out/*.txt",))


def test_missing_stale_and_extra_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("fresh", "stale", "extra"):
        (tmp_path / f"out/{name}.txt").write_bytes(b"1")
    (tmp_path / "out/not-ours.md").write_bytes(b"1")
    generator = a_generator({"out/fresh.txt": b"1", "out/stale.txt": b"2", "out/missing.txt": b"3"})
    expected = {
        Path("out/extra.txt"): Drift.EXTRA,
        Path("out/missing.txt"): Drift.MISSING,
        Path("out/stale.txt"): Drift.STALE,
    }
    assert drifted(generator, root=tmp_path) == expected
    assert write(generator, root=tmp_path) == expected
    assert drifted(generator, root=tmp_path) == {}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "fresh.txt",
        "missing.txt",
        "not-ours.md",
        "stale.txt",
    ]


def test_check_names_each_stale_file_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "GENERATORS", (a_generator({"out/a.txt": b"1"}),))
    assert generate.main(["--check"]) == 1
    assert "missing: out/a.txt" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert generate.main([]) == 0
    assert (tmp_path / "out/a.txt").read_bytes() == b"1"
    assert generate.main(["--check"]) == 0
