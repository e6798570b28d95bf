"""Credentials are seen where they stand; what looks for credentials, or stands in for one, is none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.credentials import credentials_in

LONG = "A1b2C3d4E5f6G7h8I9j0K1l2"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2ln"


@pytest.mark.parametrize(
    "value",
    [
        f"sk-{LONG}",
        f"Bearer sk-proj-{LONG}",
        f"ghp_{LONG}",
        f"gho_{LONG}",
        f"github_pat_{LONG}",
        f"glpat-{LONG}",
        "AKIAIOSFODNN7EXAMPLE",
        "ASIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdef",
        JWT,
        "-----BEGIN PRIVATE KEY-----\nMIIE",
        "-----BEGIN RSA PRIVATE KEY-----\r\nMIIE",
    ],
)
def test_a_credential_is_seen_by_its_form(value: str) -> None:
    assert credentials_in({"a": [{"b": value}]}) == [("a", 0, "b")]


@pytest.mark.parametrize(
    "value",
    [
        "sk-",
        "sk-[A-Za-z0-9]{20,}",
        "task-management-of-the-whole-company",
        "AKIA[0-9A-Z]{16}",
        "ghp_[A-Za-z0-9]{36}",
        "-----BEGIN (RSA )?PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----[\\s\\S]*?",
        "-----BEGIN CERTIFICATE-----\nMIIE",
        "eyJ",
        "xox[baprs]-[0-9]+",
        "",
    ],
)
def test_a_rule_that_looks_for_credentials_is_none(value: str) -> None:
    assert credentials_in({"a": value}) == []


@pytest.mark.parametrize(
    "name", ["password", "dbPassword", "db_password", "client-secret", "apiKey", "API_KEY", "token", "accessToken"]
)
def test_a_text_of_eight_characters_under_such_a_name_is_one(name: str) -> None:
    assert credentials_in({name: "12345678"}) == [(name,)]
    assert credentials_in({name: ["12345678"]}) == [(name, 0)]
    assert credentials_in({name: "1234567"}) == []


@pytest.mark.parametrize("value", [12345678, True, None, "[REDACTED]", "${TOKEN}", "<your token>", "two words", {}])
def test_a_placeholder_or_another_value_under_such_a_name_is_none(value: Any) -> None:
    assert credentials_in({"token": value}) == []


@pytest.mark.parametrize("name", ["maxTokens", "tokenUrl", "secretName", "tokenizer"])
def test_a_name_that_only_holds_such_a_word_tells_nothing(name: str) -> None:
    assert credentials_in({name: "some-longer-text"}) == []


def test_the_order_of_keys_does_not_matter() -> None:
    assert credentials_in({"b": {"token": "12345678"}, "a": ["x", JWT]}) == [("a", 1), ("b", "token")]
    assert credentials_in({"a": ("x", JWT), "b": {"token": "12345678"}}) == [("a", 1), ("b", "token")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("token"), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text() | st.just("password"), json_values))
def test_every_place_leads_to_a_text(config: dict[str, Any]) -> None:
    for place in credentials_in(config):
        value: Any = config
        for step in place:
            value = value[step]
        assert isinstance(value, str)
    assert credentials_in(json.loads(json.dumps(config))) == credentials_in(config)
