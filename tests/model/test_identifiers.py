"""Names that people and services choose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.identifiers import (
    is_binding_id,
    is_policy_key,
    is_reason_code,
    is_reserved,
    service_reason,
    status_text,
)


@pytest.mark.parametrize(
    "text", ["anonymizer", "nvidia/anonymizer", "acme/security/pii-redactor", "A.b_c-1", "x" * 128]
)
def test_bare_and_namespaced_ids_are_binding_ids(text: str) -> None:
    assert is_binding_id(text)


@pytest.mark.parametrize("text", ["", "/foo", "foo/", "foo//bar", "/", "a b", "ä", "a\n", "a:b", "x" * 129])
def test_empty_segments_other_characters_and_129_are_no_binding_ids(text: str) -> None:
    assert not is_binding_id(text)


def test_only_the_namespace_of_built_ins_is_reserved() -> None:
    assert is_reserved("openshell/regex")
    assert not is_reserved("openshell")
    assert not is_reserved("openshell-acme/regex")


@pytest.mark.parametrize("text", ["a", "redact", "a-b", "0", "a" * 63])
def test_labels_are_policy_keys(text: str) -> None:
    assert is_policy_key(text)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a.b", "a_b", "a/b", "a\n", "a" * 64])
def test_what_is_no_label_is_no_policy_key(text: str) -> None:
    assert not is_policy_key(text)


def test_reason_codes_are_short_snake_case() -> None:
    assert is_reason_code("pii_found")
    assert is_reason_code("a" * 64)
    assert not any(map(is_reason_code, ["", "A", "1a", "a-b", "a" * 65, "a\n"]))


def test_plain_text_of_a_service_is_shown_and_any_other_is_called_invalid() -> None:
    assert status_text("v1.2.3+build/7") == "v1.2.3+build/7"
    for text in ("", "two words", "\x1b[31m", "ä", "x" * 129, "a\n"):
        assert status_text(text) == "invalid"


@given(st.text(), st.integers(0, 160))
def test_a_services_reason_is_one_printable_line_within_the_limit(text: str, limit: int) -> None:
    shown = service_reason(text, limit=limit)
    assert len(shown) <= limit
    assert shown.isprintable()


def test_a_services_reason_keeps_its_words() -> None:
    assert service_reason("mode\x00must\n\tbe  redact\x1b", limit=160) == "mode must be redact"
