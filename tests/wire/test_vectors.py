"""Bytes encoded by hand from the contract's tables, so that a wrong field number, type or enum value fails here."""

import pytest

from supervisor_middleware.model.evaluation import (
    Decision,
    Evaluation,
    ExistingHeader,
    Finding,
    Header,
    Process,
    RemoveHeader,
    RequestContext,
    Result,
    Target,
    WriteHeader,
)
from supervisor_middleware.model.manifest import Dialect, Manifest, Operation, Phase
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.wire import codec
from tests.wire.values import REGISTRATION, a_binding, fields


def vector(*parts: str | bytes) -> bytes:
    """Hex and literal text, joined."""
    return b"".join(part if isinstance(part, bytes) else bytes.fromhex(part) for part in parts)


# Struct {"mode": "mask"}: fields map entry (1) { key (1), value (2) { string_value (3) } }.
CONFIG = vector("0a 0e 0a 04", b"mode", "12 06 1a 04", b"mask")
CONTEXT = vector("0a 01", b"r", "12 01", b"s", "1a 0b 0a 03", b"/sh", "10 07 1a 02", b"/i")
TARGET = vector(
    *("0a 05", b"https", "12 01", b"h", "18 bb 03", "22 03", b"PUT"),
    *("2a 02", b"/p", "32 03", b"a=b"),
)
HEADER = vector("0a 01", b"n", "12 01", b"v")
RESULT = vector(
    *("08 01", "12 02", b"ok", "1a 01", b"B", "20 01"),
    # write (1) { name, value, on_existing SKIP }, then remove (2) { name }
    *("2a 0a 0a 08 0a 01", b"n", "12 01", b"v", "18 03"),
    *("2a 05 12 03 0a 01", b"x"),
    *("32 0e 0a 01", b"t", "12 01", b"l", "18 02", "22 01", b"c", "2a 01", b"s"),
    *("3a 06 0a 01", b"k", "12 01", b"w"),
)

MANIFESTS = {
    Dialect.RFC0009: vector(
        *("0a 01", b"m", "12 01", b"1"),
        *("1a 1d 0a 0d", b"acme/redactor", "10 01 18 01 20 80 08 2a 05", b"500ms"),
    ),
    Dialect.RELEASED: vector(
        *("0a 01", b"m", "12 01", b"1"),
        *("1a 0e 08 01 10 01 18 80 08 22 05", b"500ms"),
    ),
}
VALIDATE_CONFIGS = {
    Dialect.RFC0009: vector("0a 01", b"b", "12 10", CONFIG),
    Dialect.RELEASED: vector("0a 10", CONFIG, "12 01", b"b"),
}
EVALUATIONS = {
    Dialect.RFC0009: vector(
        *("0a 01", b"b", "10 01", "1a 13", CONTEXT, "22 10", CONFIG, "2a 1b", TARGET, "32 06", HEADER, "3a 01", b"B")
    ),
    Dialect.RELEASED: vector(
        *("08 01", "12 13", CONTEXT, "1a 10", CONFIG, "22 1b", TARGET, "2a 06", HEADER, "32 01", b"B", "3a 01", b"b")
    ),
}
RESULTS = {Dialect.RFC0009: RESULT, Dialect.RELEASED: RESULT + vector("42 01", b"z")}

EVALUATION = Evaluation(
    binding="b",
    context=RequestContext(request_id="r", sandbox_id="s", process=Process(binary="/sh", pid=7, ancestors=("/i",))),
    config={"mode": "mask"},
    target=Target(scheme="https", host="h", port=443, method="PUT", path="/p", query="a=b"),
    headers=(Header("n", "v"),),
    body=b"B",
)


@pytest.mark.parametrize("dialect", Dialect)
def test_manifest(dialect: Dialect) -> None:
    identifier = "acme/redactor" if dialect is Dialect.RFC0009 else REGISTRATION
    manifest = Manifest(name="m", service_version="1", dialect=dialect, bindings=(a_binding(id=identifier),))
    assert codec.decode_manifest(MANIFESTS[dialect], registration_name=REGISTRATION) == manifest
    assert fields(codec.encode_manifest(manifest)) == fields(MANIFESTS[dialect])


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("operation", "phase", "wire"),
    [
        (Operation.HTTP_REQUEST, Phase.PRE_CREDENTIALS, (1, 1)),
        (Operation.WEBSOCKET_MESSAGE, Phase.PRE_RETURN, (2, 2)),
    ],
)
def test_hooks(dialect: Dialect, operation: Operation, phase: Phase, wire: tuple[int, int]) -> None:
    hook = a_binding(operation=operation, phase=phase)
    manifest = Manifest(name="", service_version="", dialect=dialect, bindings=(hook,))
    [(_, _, binding)] = fields(codec.encode_manifest(manifest))
    first = 2 if dialect is Dialect.RFC0009 else 1
    assert tuple(data for number, _, data in fields(binding) if number in (first, first + 1)) == wire


@pytest.mark.parametrize("dialect", Dialect)
def test_validate_config(dialect: Dialect) -> None:
    assert codec.decode_validate_config(dialect, VALIDATE_CONFIGS[dialect]) == ("b", {"mode": "mask"})
    encoded = codec.encode_validate_config(dialect, binding="b", config={"mode": "mask"})
    assert fields(encoded) == fields(VALIDATE_CONFIGS[dialect])


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("verdict", "wire"),
    [(Accepted(), vector("08 01")), (Rejected("no"), vector("12 02", b"no")), (Rejected(), b"")],
)
def test_verdict(dialect: Dialect, verdict: Accepted | Rejected, wire: bytes) -> None:
    assert codec.encode_verdict(dialect, verdict) == wire
    assert codec.decode_verdict(dialect, wire) == verdict


@pytest.mark.parametrize("dialect", Dialect)
def test_evaluation(dialect: Dialect) -> None:
    assert codec.decode_evaluation(dialect, EVALUATIONS[dialect]) == EVALUATION
    assert fields(codec.encode_evaluation(dialect, EVALUATION)) == fields(EVALUATIONS[dialect])


@pytest.mark.parametrize("dialect", Dialect)
def test_result(dialect: Dialect) -> None:
    result = Result(
        decision=Decision.ALLOW,
        reason="ok",
        reason_code="z" if dialect is Dialect.RELEASED else "",
        body=b"B",
        mutations=(WriteHeader(name="n", value="v", on_existing=ExistingHeader.SKIP), RemoveHeader(name="x")),
        findings=(Finding(type="t", label="l", count=2, confidence="c", severity="s"),),
        metadata={"k": "w"},
    )
    assert codec.decode_result(dialect, RESULTS[dialect]) == result
    assert fields(codec.encode_result(dialect, result)) == fields(RESULTS[dialect])


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("action", "number"), [(ExistingHeader.APPEND, 1), (ExistingHeader.OVERWRITE, 2), (ExistingHeader.SKIP, 3)]
)
def test_existing_header_actions(dialect: Dialect, action: ExistingHeader, number: int) -> None:
    wire = vector("08 01 2a 04 0a 02 18", bytes([number]))
    [mutation] = codec.decode_result(dialect, wire).mutations
    assert mutation == WriteHeader(name="", value="", on_existing=action)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(("decision", "wire"), [(Decision.ALLOW, "08 01"), (Decision.DENY, "08 02")])
def test_decisions(dialect: Dialect, decision: Decision, wire: str) -> None:
    assert codec.decode_result(dialect, vector(wire)).decision is decision
    assert codec.encode_result(dialect, Result(decision=decision)) == vector(wire)


def test_method_paths_are_the_same_for_both_dialects() -> None:
    assert codec.METHODS.describe == "/openshell.middleware.v1.SupervisorMiddleware/Describe"
    assert codec.METHODS.validate_config == "/openshell.middleware.v1.SupervisorMiddleware/ValidateConfig"
    assert codec.METHODS.evaluate_http_request == "/openshell.middleware.v1.SupervisorMiddleware/EvaluateHttpRequest"
