"""`acme/terms`: what is found, what is left, and what is never said."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from supervisor_middleware.middleware import Decision, FailureCode, Finding, JsonObject, Result, StageFailed
from supervisor_middleware.middleware.terms import BINDING_ID, MAX_TERM_CHARS, MAX_TERMS, Terms, parse_config
from tests.middleware.builders import an_evaluation

TERMS = Terms()
FINDING = Finding(type="terms.match", label="Listed term", count=1, confidence="high", severity="medium")
LETTERS = st.text(alphabet=st.sampled_from('abABéÉжЖ0.*+\\"/ \n'), min_size=2, max_size=4)
LISTS = st.lists(LETTERS, min_size=1, max_size=4)
TEXTS = st.text(alphabet=st.sampled_from('abABéÉжЖ0.*+\\"/ \n[]'), max_size=80)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def a_config(*terms: str, action: str = "redact", **more: bool) -> dict[str, Any]:
    return {"terms": list(terms), "action": action, **more}


async def answer(body: str | bytes, config: JsonObject) -> Result:
    raw = body.encode() if isinstance(body, str) else body
    return await TERMS.evaluate(an_evaluation(binding=BINDING_ID, body=raw, config=config))


async def after(body: str, config: JsonObject) -> str:
    result = await answer(body, config)
    return body if result.body is None else result.body.decode()


async def test_each_term_is_replaced_and_counted() -> None:
    result = await answer("Falcon meets Heron, falcon", a_config("Falcon", "Heron"))
    body = b"[REDACTED] meets [REDACTED], falcon"
    assert result == Result(decision=Decision.ALLOW, body=body, findings=(replace(FINDING, count=2),))


async def test_deny_refuses_with_a_code_and_no_body() -> None:
    result = await answer("Falcon", a_config("Falcon", action="deny"))
    assert (result.decision, result.reason_code, result.body) == (Decision.DENY, "term_found", None)
    assert [f.count for f in result.findings] == [1]


@pytest.mark.parametrize("action", ["redact", "deny"])
async def test_without_a_term_nothing_happens(action: str) -> None:
    assert await answer("nothing", a_config("Falcon", action=action)) == Result(decision=Decision.ALLOW)


async def test_case_can_be_ignored_for_every_term() -> None:
    assert await after("FALCON ÉCLAIR", a_config("falcon", "éclair", caseSensitive=False)) == "[REDACTED] [REDACTED]"


async def test_the_longest_term_wins() -> None:
    assert await after("falcons", a_config("falcon", "falcons")) == "[REDACTED]"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (r'{"name": "\u0046alcon"}', '{"name": "[REDACTED]"}'),
        (r'{"say \"Falcon\"": 1}', '{"say \\"[REDACTED]\\"": 1}'),
        (r'["\\u0046alcon", 1.50]', r'["\\u0046alcon", 1.50]'),
        ('[ 1,  2 , "Falcon"]', '[ 1,  2 , "[REDACTED]"]'),
        ('{"card": 4111111111111111}', '{"card": "[REDACTED]"}'),
        (r'"\nnext"', r'"\nnext"'),
    ],
)
async def test_json_is_searched_as_it_is_read_and_stays_json(body: str, expected: str) -> None:
    changed = await after(body, a_config("Falcon", "411111", "nnext"))
    assert changed == expected
    json.loads(changed)


async def test_text_that_is_no_json_is_searched_as_it_is_spelled() -> None:
    body = 'data: {"a": "Falcon"}\n\ndata: [DONE]\n'
    assert await after(body, a_config("Falcon")) == 'data: {"a": "[REDACTED]"}\n\ndata: [DONE]\n'
    assert await after('[NaN, "Falcon"]', a_config("Falcon", "NaN")) == '[[REDACTED], "[REDACTED]"]'


@pytest.mark.parametrize("body", [b"\xff Falcon", b"[" * 200_000 + b"]" * 200_000])
async def test_what_cannot_be_read_is_a_failure(body: bytes) -> None:
    with pytest.raises(StageFailed) as caught:
        await answer(body, a_config("Falcon"))
    assert caught.value.code is FailureCode.SERVICE_ERROR


async def test_a_config_that_was_never_validated_is_a_failure() -> None:
    with pytest.raises(StageFailed):
        await answer("Falcon", {"terms": ["Falcon"]})


async def test_a_large_body_is_redacted_too() -> None:
    assert await after("Falcon " * 100_000, a_config("Falcon")) == "[REDACTED] " * 100_000


async def test_a_number_of_any_length_is_read() -> None:
    assert await after("[" + "7" * 10_000 + "]", a_config("Falcon")) == "[" + "7" * 10_000 + "]"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "action must be redact or deny"),
        (a_config("Fa", action="s3cret"), "action must be redact or deny"),
        ({**a_config("Fa"), "action": ["redact"]}, "action must be redact or deny"),
        ({**a_config("Fa"), "s3cret": 1}, "holds an unknown key: terms, action and caseSensitive are known"),
        ({**a_config("Fa"), "caseSensitive": "s3cret"}, "caseSensitive must be true or false"),
        (a_config(), f"terms must be a list of 1 to {MAX_TERMS} strings"),
        ({**a_config(), "terms": "s3cret"}, f"terms must be a list of 1 to {MAX_TERMS} strings"),
        (a_config(*["s3cret"] * 101), f"terms must be a list of 1 to {MAX_TERMS} strings"),
        (a_config("fine", "s"), f"terms[1] must be a string of 2 to {MAX_TERM_CHARS} characters"),
        ({**a_config(), "terms": [7]}, f"terms[0] must be a string of 2 to {MAX_TERM_CHARS} characters"),
        (a_config("s3cret" * 50), f"terms[0] must be a string of 2 to {MAX_TERM_CHARS} characters"),
        (a_config("s3cret]"), "terms[0] must not hold a square bracket, nor be a part of [REDACTED]"),
        (a_config("redact"), "terms[0] must not hold a square bracket, nor be a part of [REDACTED]"),
        (a_config("\ud800s3cret"), "terms[0] must be valid Unicode"),
    ],
)
async def test_a_wrong_config_is_explained_without_its_values(config: JsonObject, reason: str) -> None:
    assert await TERMS.validate_config(BINDING_ID, config) == reason


async def test_the_largest_config_works() -> None:
    # U+10400 and following fold to others and take four bytes: the costliest pattern there is.
    config = a_config(*[chr(0x10400 + i % 40) * 255 + chr(0x4E00 + i) for i in range(MAX_TERMS)], caseSensitive=False)
    assert await TERMS.validate_config(BINDING_ID, config) is None
    assert await after("\U00010400" * 1000, config) == "\U00010400" * 1000


def survivors(text: str, terms: list[str], flags: re.RegexFlag) -> list[str]:
    return [term for term in terms if re.search(re.escape(term), text, flags)]


@given(terms=LISTS, text=TEXTS, case_sensitive=st.booleans())
async def test_no_term_survives_redaction_of_text(terms: list[str], text: str, case_sensitive: bool) -> None:  # noqa: FBT001
    config = a_config(*terms, caseSensitive=case_sensitive)
    assume(not isinstance(parse_config(config), str))
    body = "not JSON: " + text
    flags = re.RegexFlag(0) if case_sensitive else re.IGNORECASE
    changed = await after(body, config)
    assert not survivors(changed, terms, flags)
    assert (changed == body) == (not survivors(body, terms, flags))


def strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for item in value for text in strings(item)]
        case dict():
            return [*value, *(text for item in value.values() for text in strings(item))]
        case bool() | None:
            return []
        case _:
            return [str(value)]


@given(terms=LISTS, value=JSON, escaped=st.booleans())
async def test_no_term_survives_redaction_of_json_and_json_it_stays(
    terms: list[str],
    value: Any,
    escaped: bool,  # noqa: FBT001
) -> None:
    config = a_config(*terms)
    assume(not isinstance(parse_config(config), str))
    body = json.dumps(value, ensure_ascii=escaped)
    assume(escaped or not re.search("[\ud800-\udfff]", body))  # a lone surrogate can only be escaped
    result = await answer(body, config)
    changed = json.loads(body if result.body is None else result.body)
    assert not [term for text in strings(changed) for term in terms if term in text]
    if result.body is None:
        assert changed == value
    assert not result.metadata
    assert {replace(finding, count=1) for finding in result.findings} <= {FINDING}
