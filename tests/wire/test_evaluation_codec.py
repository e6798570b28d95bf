from dataclasses import replace

import pytest
from hypothesis import given

from supervisor_middleware.errors import Untrusted
from supervisor_middleware.model.evaluation import (
    Evaluation,
    FailureCode,
    Header,
    RequestContext,
    StageFailed,
    Target,
)
from supervisor_middleware.model.limits import MAX_BODY_BYTES, MAX_HEADER_LINES
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.wire.codec import (
    ConfigUnencodable,
    RequestUndecodable,
    config_struct,
    decode_evaluation,
    encode_evaluation,
)
from tests.wire.values import BOTH, an_evaluation, evaluations, unhurried

both_dialects = pytest.mark.parametrize("dialect", BOTH)


@both_dialects
@unhurried
@given(evaluations)
def test_an_evaluation_survives_the_wire(dialect: Dialect, evaluation: Evaluation) -> None:
    assert decode_evaluation(dialect, encode_evaluation(dialect, evaluation)) == evaluation


@both_dialects
def test_a_config_encoded_once_stands_for_the_evaluations(dialect: Dialect) -> None:
    evaluation = an_evaluation(config={"mode": "mask"}, body=b"body")
    prepared = config_struct({"mode": "mask"})
    assert encode_evaluation(dialect, evaluation, config_struct=prepared) == encode_evaluation(dialect, evaluation)


@both_dialects
def test_duplicate_headers_and_their_order_are_kept(dialect: Dialect) -> None:
    headers = (Header("b", "1"), Header("a", "2"), Header("b", "0"), Header("b", "1"))
    decoded = decode_evaluation(dialect, encode_evaluation(dialect, an_evaluation(headers=headers)))
    assert decoded.headers == headers


@both_dialects
def test_the_largest_body_survives(dialect: Dialect) -> None:
    evaluation = an_evaluation(body=b"\x00\xff" * (MAX_BODY_BYTES // 2))
    assert decode_evaluation(dialect, encode_evaluation(dialect, evaluation)) == evaluation


@both_dialects
@pytest.mark.parametrize(
    "evaluation",
    [
        an_evaluation(headers=(Header("x", "\udc80"),)),
        an_evaluation(context=RequestContext(request_id="\ud800", sandbox_id="s")),
        an_evaluation(target=Target(scheme="https", host="h", port=2**32, method="GET", path="/")),
        an_evaluation(target=Target(scheme="https", host="h", port=-1, method="GET", path="/")),
    ],
)
def test_a_request_the_wire_cannot_carry_is_a_failed_stage(dialect: Dialect, evaluation: Evaluation) -> None:
    with pytest.raises(StageFailed) as raised:
        encode_evaluation(dialect, evaluation)
    assert raised.value.code is FailureCode.UNINSPECTABLE
    assert raised.value.__cause__ is None


@both_dialects
def test_a_config_no_struct_holds_is_refused(dialect: Dialect) -> None:
    with pytest.raises(ConfigUnencodable):
        encode_evaluation(dialect, an_evaluation(config={"n": float("inf")}))


@both_dialects
def test_unknown_fields_are_tolerated(dialect: Dialect) -> None:
    encoded = encode_evaluation(dialect, an_evaluation())
    assert decode_evaluation(dialect, encoded + b"\xa8\x06\x01\xb2\x06\x02hi") == an_evaluation()


def test_a_released_sandbox_name_and_workspace_are_passed_over() -> None:
    encoded = encode_evaluation(Dialect.RELEASED, an_evaluation(context=RequestContext(request_id="", sandbox_id="")))
    # A second context is merged into the first.
    encoded += b"\x12\x08\x0a\x01r\x12\x01s\x22\x00" + b"\x12\x06\x22\x01n\x2a\x01w"
    assert decode_evaluation(Dialect.RELEASED, encoded) == an_evaluation()


@pytest.mark.parametrize(
    ("ours", "theirs"), [(Dialect.RFC0009, Dialect.RELEASED), (Dialect.RELEASED, Dialect.RFC0009)]
)
@unhurried
@given(evaluation=evaluations)
def test_a_request_of_the_other_dialect_is_refused(ours: Dialect, theirs: Dialect, evaluation: Evaluation) -> None:
    with pytest.raises(RequestUndecodable):
        decode_evaluation(ours, encode_evaluation(theirs, evaluation))


@both_dialects
def test_what_is_no_request_is_refused(dialect: Dialect) -> None:
    phase = {Dialect.RFC0009: b"\x10", Dialect.RELEASED: b"\x08"}[dialect]
    nameless = phase + b"\x01"
    for data in (b"", b"\xff", nameless, phase + b"\x02"):
        with pytest.raises(RequestUndecodable) as raised:
            decode_evaluation(dialect, data)
        assert isinstance(raised.value, Untrusted)


@both_dialects
def test_another_phase_is_refused(dialect: Dialect) -> None:
    later = {Dialect.RFC0009: b"\x10\x02", Dialect.RELEASED: b"\x08\x02"}[dialect]
    with pytest.raises(RequestUndecodable, match="phase"):
        decode_evaluation(dialect, encode_evaluation(dialect, an_evaluation()) + later)


@both_dialects
def test_more_header_lines_than_the_contract_allows_are_refused(dialect: Dialect) -> None:
    full = an_evaluation(headers=(Header("n", "v"),) * MAX_HEADER_LINES)
    assert decode_evaluation(dialect, encode_evaluation(dialect, full)) == full
    over = replace(full, headers=(*full.headers, Header("n", "v")))
    with pytest.raises(RequestUndecodable, match="128 header lines"):
        decode_evaluation(dialect, encode_evaluation(dialect, over))
