"""`openshell/regex`: contract 4.15, OS-BLT-01 to 03."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.middleware import Decision, FailureCode, Finding, JsonObject, Result, StageFailed
from supervisor_middleware.middleware.answers import result_problems
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS, BUILTINS
from supervisor_middleware.middleware.builtins.regex import BINDING_ID, MAX_BODY_BYTES, RegexRedactor
from supervisor_middleware.model.manifest import Operation, Phase
from tests.middleware.builders import an_evaluation

KEY = "sk-" + "aB3_-" * 4
PATTERN = re.compile(r"sk-[A-Za-z0-9_-]{16,}", re.ASCII)
REGEX = RegexRedactor()
# Text in which keys and near-keys are likely.
NOISE = st.text(alphabet=st.sampled_from('sk-AZaz09_[]. \n"é'), max_size=60)
BODIES = st.lists(NOISE | st.just(KEY) | st.text(max_size=20), max_size=8).map("".join)


async def redacted(text: str) -> Result:
    return await REGEX.evaluate(an_evaluation(binding=BINDING_ID, body=text.encode()))


async def test_every_key_is_replaced_counted_and_nothing_else_changes() -> None:
    result = await redacted(f'{{"a": "{KEY}", "b": ["{KEY}x", "sk-short", "é"]}}')
    assert result == Result(
        decision=Decision.ALLOW,
        body='{"a": "[REDACTED]", "b": ["[REDACTED]", "sk-short", "é"]}'.encode(),
        findings=(
            Finding(
                type="regex.openai", label="OpenAI-style API key", count=2, confidence="medium", severity="medium"
            ),
        ),
        metadata={"regex_matches_replaced": "2"},
    )


@pytest.mark.parametrize("text", ["", "nothing here", "sk-" + "a" * 15, "SK-" + "a" * 20])
async def test_without_a_match_the_body_stays(text: str) -> None:
    assert await redacted(text) == Result(decision=Decision.ALLOW)


@pytest.mark.parametrize("body", [b"\xff", b"sk-" + b"a" * 20 + b"\x80", b"\xed\xa0\x80"])
async def test_a_body_that_is_not_utf8_is_a_failure_of_the_stage(body: bytes) -> None:
    with pytest.raises(StageFailed) as caught:
        await REGEX.evaluate(an_evaluation(body=body))
    assert caught.value.code is FailureCode.SERVICE_ERROR


@pytest.mark.parametrize("config", [{}, {"mode": "redact"}])
async def test_redact_is_the_only_and_the_default_mode(config: JsonObject) -> None:
    assert await REGEX.validate_config(BINDING_ID, config) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"mode": "block-s3cret"}, "mode must be redact"),
        ({"mode": None}, "mode must be redact"),
        ({"mode": ["redact"]}, "mode must be redact"),
        ({"mode": "redact", "s3cret": 1}, "holds an unknown key: mode is the only one"),
    ],
)
async def test_any_other_config_is_refused_without_repeating_it(config: JsonObject, reason: str) -> None:
    assert await REGEX.validate_config(BINDING_ID, config) == reason


def test_it_is_the_one_builtin() -> None:
    (binding,) = BUILTIN_BINDINGS
    assert (binding.id, binding.max_body_bytes) == ("openshell/regex", 262_144)
    assert (binding.operation, binding.phase) == (Operation.HTTP_REQUEST, Phase.PRE_CREDENTIALS)
    assert dict(BUILTINS).keys() == {"openshell/regex"}


@given(BODIES)
async def test_no_key_survives_and_no_finding_holds_one(text: str) -> None:
    result = await redacted(text)
    found = PATTERN.findall(text)
    after = text if result.body is None else result.body.decode()
    assert not PATTERN.search(after)
    assert after == PATTERN.sub("[REDACTED]", text)
    assert sum(finding.count for finding in result.findings) == len(found)
    said = repr(result.findings) + repr(result.metadata) + result.reason
    assert not any(key in said for key in found)
    assert not list(result_problems(result, max_body_bytes=MAX_BODY_BYTES))


async def test_the_hardest_body_is_quick() -> None:
    for piece in ("sk-", "sk-aaaaaaaaaaaaaaa ", KEY + " "):
        body = (piece * (MAX_BODY_BYTES // len(piece)))[:MAX_BODY_BYTES]
        started = time.perf_counter()
        await redacted(body)
        assert time.perf_counter() - started < 1.0
