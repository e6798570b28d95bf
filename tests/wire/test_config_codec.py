from typing import Any

import pytest
from hypothesis import given

from supervisor_middleware.errors import Untrusted
from supervisor_middleware.model.limits import MAX_SERVICE_REASON_CHARS
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.wire.codec import (
    ConfigUnencodable,
    RequestUndecodable,
    VerdictUndecodable,
    decode_validate_config,
    decode_verdict,
    encode_validate_config,
    encode_verdict,
)
from tests.wire.values import BOTH, json_objects, name, unhurried

both_dialects = pytest.mark.parametrize("dialect", BOTH)


@both_dialects
@unhurried
@given(binding=name, config=json_objects)
def test_a_question_survives_the_wire(dialect: Dialect, binding: str, config: dict[str, Any]) -> None:
    encoded = encode_validate_config(dialect, binding=binding, config=config)
    assert decode_validate_config(dialect, encoded) == (binding, config)


@both_dialects
def test_equal_configs_are_asked_with_equal_bytes(dialect: Dialect) -> None:
    one = encode_validate_config(dialect, binding="b", config={"a": 1, "b": 2.0})
    assert one == encode_validate_config(dialect, binding="b", config={"b": 2, "a": 1.0})


@both_dialects
def test_an_absent_config_is_empty(dialect: Dialect) -> None:
    name_only = {Dialect.RFC0009: b"\x0a\x01b", Dialect.RELEASED: b"\x12\x01b"}[dialect]
    assert decode_validate_config(dialect, name_only) == ("b", {})


@both_dialects
def test_a_config_no_struct_holds_is_not_asked(dialect: Dialect) -> None:
    with pytest.raises(ConfigUnencodable):
        encode_validate_config(dialect, binding="b", config={"n": 2**60 + 1})


@both_dialects
@pytest.mark.parametrize("data", [b"\xff", b"", b"\x0a\x01\xff", b"\x12\x01\xff"])
def test_what_is_no_question_is_refused(dialect: Dialect, data: bytes) -> None:
    with pytest.raises(RequestUndecodable) as raised:
        decode_validate_config(dialect, data)
    assert isinstance(raised.value, Untrusted)


def test_a_question_of_the_other_dialect_is_refused() -> None:
    config = {"mode": "mask"}
    for ours, theirs in ((Dialect.RFC0009, Dialect.RELEASED), (Dialect.RELEASED, Dialect.RFC0009)):
        with pytest.raises(RequestUndecodable):
            decode_validate_config(ours, encode_validate_config(theirs, binding="acme/redactor", config=config))


def test_a_value_without_a_kind_is_refused() -> None:
    with pytest.raises(RequestUndecodable):
        decode_validate_config(Dialect.RFC0009, b"\x0a\x01b\x12\x07\x0a\x05\x0a\x01k\x12\x00")


@both_dialects
def test_a_verdict_survives_the_wire(dialect: Dialect) -> None:
    for verdict in (Accepted(), Rejected(), Rejected("config.mode must be 'redact'")):
        assert decode_verdict(dialect, encode_verdict(dialect, verdict)) == verdict


@both_dialects
def test_a_reason_is_one_line_without_control_characters_and_capped(dialect: Dialect) -> None:
    hostile = "no\n\x1b[31m really" + "!" * 5_000
    verdict = decode_verdict(dialect, encode_verdict(dialect, Rejected(hostile)))
    assert isinstance(verdict, Rejected)
    assert verdict.reason.startswith("no [31m really!")
    assert len(verdict.reason) == MAX_SERVICE_REASON_CHARS


@both_dialects
def test_an_accepting_answer_with_a_reason_is_accepted(dialect: Dialect) -> None:
    assert decode_verdict(dialect, b"\x08\x01\x12\x02ok\xa8\x06\x01") == Accepted()


@both_dialects
@pytest.mark.parametrize("data", [b"\xff", b"\x12\x01\xff", b"<html>"])
def test_what_is_no_verdict_is_named(dialect: Dialect, data: bytes) -> None:
    with pytest.raises(VerdictUndecodable):
        decode_verdict(dialect, data)
