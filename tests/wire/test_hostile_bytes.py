"""Whatever bytes arrive, a decoder gives a model value or raises its one declared exception."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.evaluation import Decision, Evaluation, Result, StageFailed
from supervisor_middleware.model.manifest import Dialect, Manifest
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.wire.codec import (
    ManifestUndecodable,
    RequestUndecodable,
    VerdictUndecodable,
    decode_evaluation,
    decode_manifest,
    decode_result,
    decode_validate_config,
    decode_verdict,
    encode_evaluation,
    encode_manifest,
    encode_result,
    encode_validate_config,
)
from tests.wire.values import (
    BOTH,
    REGISTRATION,
    corrupted,
    evaluations,
    json_objects,
    name,
    released_manifests,
    results,
    rfc0009_manifests,
    unhurried,
)

both_dialects = pytest.mark.parametrize("dialect", BOTH)
dialects = st.sampled_from(BOTH)

some_manifest = st.binary() | corrupted((rfc0009_manifests | released_manifests).map(encode_manifest))
some_result = st.binary() | corrupted(st.builds(encode_result, dialects, results))
some_evaluation = st.binary() | corrupted(st.builds(encode_evaluation, dialects, evaluations))
some_question = st.binary() | corrupted(
    st.builds(lambda d, b, c: encode_validate_config(d, binding=b, config=c), dialects, name, json_objects)
)


@unhurried
@given(some_manifest)
def test_manifest(data: bytes) -> None:
    with contextlib.suppress(ManifestUndecodable):
        manifest = decode_manifest(data, registration_name=REGISTRATION)
        assert isinstance(manifest, Manifest)
        assert manifest.bindings
        assert manifest.digest
        kept = Manifest.from_json(manifest.to_json())
        assert (kept.dialect, kept.bindings, kept.digest) == (manifest.dialect, manifest.bindings, manifest.digest)


@both_dialects
@unhurried
@given(some_result)
def test_result(dialect: Dialect, data: bytes) -> None:
    with contextlib.suppress(StageFailed):
        assert isinstance(decode_result(dialect, data), Result)


@both_dialects
@unhurried
@given(some_evaluation)
def test_evaluation(dialect: Dialect, data: bytes) -> None:
    with contextlib.suppress(RequestUndecodable):
        assert isinstance(decode_evaluation(dialect, data), Evaluation)


@both_dialects
@unhurried
@given(some_question)
def test_validate_config(dialect: Dialect, data: bytes) -> None:
    with contextlib.suppress(RequestUndecodable):
        binding, config = decode_validate_config(dialect, data)
        assert binding
        assert isinstance(config, dict)


@both_dialects
@unhurried
@given(st.binary() | st.builds(encode_result, dialects, results))
def test_verdict(dialect: Dialect, data: bytes) -> None:
    with contextlib.suppress(VerdictUndecodable):
        assert isinstance(decode_verdict(dialect, data), Accepted | Rejected)


@both_dialects
def test_groups_and_deep_nesting_do_not_exhaust_the_stack(dialect: Dialect) -> None:
    groups = b"\x0b" * 5_000
    value = b""
    for _ in range(2_000):
        value = b"\x32" + _length(value) + value
    for data in (groups, b"\x08\x01" + value, b"\x1a" + _length(groups) + groups):
        with contextlib.suppress(StageFailed):
            assert decode_result(dialect, data).decision is Decision.ALLOW
        with pytest.raises(ManifestUndecodable):
            decode_manifest(data, registration_name=REGISTRATION)


def _length(data: Any) -> bytes:
    size, out = len(data), b""
    while size > 0x7F:
        out, size = out + bytes([size & 0x7F | 0x80]), size >> 7
    return out + bytes([size])
