from dataclasses import replace

import pytest
from hypothesis import given

from supervisor_middleware.model.evaluation import Decision, FailureCode, Result, StageFailed
from supervisor_middleware.model.limits import MAX_FINDINGS, MAX_METADATA_ENTRIES, MAX_MUTATIONS
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.wire.codec import decode_result, encode_result
from tests.wire.values import BOTH, results, unhurried

both_dialects = pytest.mark.parametrize("dialect", BOTH)

ALLOW = b"\x08\x01"
DENY = b"\x08\x02"
EMPTY_MUTATION = b"\x2a\x00"
REMOVAL = b"\x2a\x05\x12\x03\x0a\x01x"
FINDING = b"\x32\x00"
MANY_ENTRIES = b"".join(
    b"\x3a\x04\x0a\x02" + bytes([65 + n // 26, 65 + n % 26]) for n in range(MAX_METADATA_ENTRIES + 1)
)


@both_dialects
@unhurried
@given(results)
def test_a_result_survives_the_wire(dialect: Dialect, result: Result) -> None:
    expected = result if dialect is Dialect.RELEASED else replace(result, reason_code="")
    assert decode_result(dialect, encode_result(dialect, result)) == expected


@both_dialects
def test_replacing_by_nothing_is_not_leaving_it(dialect: Dialect) -> None:
    assert decode_result(dialect, ALLOW + b"\x20\x01").body == b""
    assert decode_result(dialect, ALLOW).body is None
    assert decode_result(dialect, encode_result(dialect, Result(decision=Decision.ALLOW, body=b""))).body == b""


@both_dialects
def test_a_body_without_has_body_is_ignored(dialect: Dialect) -> None:
    assert decode_result(dialect, ALLOW + b"\x1a\x01B").body is None


@both_dialects
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", FailureCode.INVALID_DECISION),
        (b"\x08\x00", FailureCode.INVALID_DECISION),
        (b"\x08\x03", FailureCode.INVALID_DECISION),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", FailureCode.INVALID_DECISION),
        (b"\xff", FailureCode.SERVICE_ERROR),
        (b"<html>", FailureCode.SERVICE_ERROR),
        (ALLOW + b"\x12\x01\xff", FailureCode.SERVICE_ERROR),
        (ALLOW + EMPTY_MUTATION, FailureCode.MUTATION_EMPTY),
        # A kind of mutation from the future is none that we can apply.
        (ALLOW + b"\x2a\x02\x1a\x00", FailureCode.MUTATION_EMPTY),
        (ALLOW + b"\x2a\x05\x0a\x03\x0a\x01n", FailureCode.MUTATION_INVALID_ACTION),
        (ALLOW + b"\x2a\x04\x0a\x02\x18\x04", FailureCode.MUTATION_INVALID_ACTION),
        (ALLOW + REMOVAL * (MAX_MUTATIONS + 1), FailureCode.MUTATION_COUNT_OVER_CAPACITY),
        (ALLOW + FINDING * (MAX_FINDINGS + 1), FailureCode.FINDINGS_OVER_CAPACITY),
        (ALLOW + MANY_ENTRIES, FailureCode.METADATA_COUNT_OVER_CAPACITY),
    ],
)
def test_an_invalid_answer_is_a_failed_stage(dialect: Dialect, data: bytes, code: FailureCode) -> None:
    with pytest.raises(StageFailed) as raised:
        decode_result(dialect, data)
    assert raised.value.code is code


@both_dialects
def test_answers_at_the_counts_limits_are_read(dialect: Dialect) -> None:
    result = decode_result(dialect, ALLOW + REMOVAL * MAX_MUTATIONS + FINDING * MAX_FINDINGS)
    assert (len(result.mutations), len(result.findings)) == (MAX_MUTATIONS, MAX_FINDINGS)


@pytest.mark.parametrize("reason_code", [b"Bad", b"1x", b"a-b", b"a b", b"x\n", b"\xc3\xa9", b"a" * 65])
def test_a_reason_code_outside_the_grammar_is_a_failed_stage(reason_code: bytes) -> None:
    data = b"\x42" + bytes([len(reason_code)]) + reason_code
    with pytest.raises(StageFailed) as raised:
        decode_result(Dialect.RELEASED, ALLOW + data)
    assert raised.value.code is FailureCode.REASON_CODE_INVALID
    assert decode_result(Dialect.RELEASED, DENY + data).reason_code == ""


def test_rfc0009_has_no_reason_code() -> None:
    assert decode_result(Dialect.RFC0009, ALLOW + b"\x42\x03Bad").reason_code == ""
    coded = Result(decision=Decision.DENY, reason_code="pii")
    assert encode_result(Dialect.RFC0009, coded) == DENY


@both_dialects
@pytest.mark.parametrize(
    "rubbish",
    [
        EMPTY_MUTATION,
        REMOVAL * (MAX_MUTATIONS + 1),
        b"\x2a\x04\x0a\x02\x18\x04",
        FINDING * (MAX_FINDINGS + 1),
        MANY_ENTRIES,
        b"\x20\x01\x1a\x01B",
    ],
)
def test_a_deny_stands_whatever_else_is_wrong_with_it(dialect: Dialect, rubbish: bytes) -> None:
    assert decode_result(dialect, DENY + rubbish) == Result(decision=Decision.DENY)


@both_dialects
@pytest.mark.parametrize(
    "answer",
    [
        DENY + b"\x12\x01\xff",
        b"\x12\x01\xff" + DENY,
        DENY + b"\x2a\x05\x12\x03\x0a\x01\xff",
        DENY + b"\x12\x7fcut off",
        DENY + b"<html>",
        b"\xa9\x06" + b"8" * 8 + b"\xad\x06" + b"4" * 4 + DENY + b"\xff",
        DENY + ALLOW + b"\x12\x01\xff",
        DENY + b"\xff" * 11,
    ],
)
def test_a_deny_stands_in_an_answer_that_is_no_message(dialect: Dialect, answer: bytes) -> None:
    assert decode_result(dialect, answer) == Result(decision=Decision.DENY)


@both_dialects
@pytest.mark.parametrize("answer", [b"\x12\x02" + DENY + b"\xff", b"\x0b" + DENY, b"\x12\x7f" + DENY, b"\x0a" + DENY])
def test_what_only_looks_like_a_deny_is_a_failed_stage(dialect: Dialect, answer: bytes) -> None:
    with pytest.raises(StageFailed) as raised:
        decode_result(dialect, answer)
    assert raised.value.code is FailureCode.SERVICE_ERROR


@both_dialects
def test_a_deny_keeps_what_can_be_kept(dialect: Dialect) -> None:
    result = decode_result(dialect, DENY + b"\x12\x02no" + FINDING + b"\x3a\x06\x0a\x01k\x12\x01v")
    assert (result.reason, len(result.findings), result.metadata) == ("no", 1, {"k": "v"})


@both_dialects
def test_unknown_fields_are_tolerated(dialect: Dialect) -> None:
    assert decode_result(dialect, ALLOW + b"\xa8\x06\x01\xb2\x06\x02hi") == Result(decision=Decision.ALLOW)
