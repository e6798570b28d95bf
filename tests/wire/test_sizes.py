from typing import Any

import pytest
from hypothesis import given

from supervisor_middleware.model.evaluation import (
    Decision,
    Finding,
    Header,
    HeaderMutation,
    RequestContext,
    Result,
    Target,
)
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.struct_size import struct_size
from supervisor_middleware.wire import sizes
from supervisor_middleware.wire.codec import config_struct, encode_evaluation, encode_result
from tests.wire.values import (
    BOTH,
    an_evaluation,
    contexts,
    fields,
    finding_lists,
    header_lines,
    json_objects,
    mutations,
    targets,
    unhurried,
)

both_dialects = pytest.mark.parametrize("dialect", BOTH)


def encoded(dialect: Dialect, field: str, **of_evaluation: Any) -> list[bytes]:
    """The payloads of one field of an encoded evaluation."""
    numbers = {
        Dialect.RFC0009: {"context": 3, "target": 5, "headers": 6},
        Dialect.RELEASED: {"context": 2, "target": 4, "headers": 5},
    }
    wire = fields(encode_evaluation(dialect, an_evaluation(**of_evaluation)))
    return [data for number, _, data in wire if number == numbers[dialect][field]]


@unhurried
@given(json_objects)
def test_config(config: dict[str, Any]) -> None:
    assert struct_size(config) == len(config_struct(config).encoded)


@both_dialects
@unhurried
@given(contexts)
def test_context(dialect: Dialect, context: RequestContext) -> None:
    [wire] = encoded(dialect, "context", context=context)
    assert sizes.encoded_context_size(context) == len(wire)


@both_dialects
@unhurried
@given(targets)
def test_target(dialect: Dialect, target: Target) -> None:
    [wire] = encoded(dialect, "target", target=target)
    assert sizes.encoded_target_size(target) == len(wire)


@both_dialects
@unhurried
@given(header_lines)
def test_headers(dialect: Dialect, headers: tuple[Header, ...]) -> None:
    wire = encoded(dialect, "headers", headers=headers)
    assert sizes.encoded_headers_size(headers) == sum(map(len, wire))


@both_dialects
@unhurried
@given(finding_lists)
def test_findings(dialect: Dialect, findings: tuple[Finding, ...]) -> None:
    wire = fields(encode_result(dialect, Result(decision=Decision.ALLOW, findings=findings)))
    assert [sizes.encoded_finding_size(f) for f in findings] == [len(data) for n, _, data in wire if n == 6]


@both_dialects
@unhurried
@given(mutations)
def test_mutations(dialect: Dialect, mutations: tuple[HeaderMutation, ...]) -> None:
    wire = fields(encode_result(dialect, Result(decision=Decision.ALLOW, mutations=mutations)))
    assert sizes.encoded_mutations_size(mutations) == sum(len(data) for n, _, data in wire if n == 5)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_lengths_around_a_varints_steps(length: int) -> None:
    [wire] = encoded(Dialect.RFC0009, "headers", headers=(Header("n", "v" * length),))
    assert sizes.encoded_headers_size((Header("n", "v" * length),)) == len(wire)


def test_text_that_is_not_unicode_has_a_size() -> None:
    assert sizes.encoded_headers_size((Header("", "\udc80"),)) == 5
