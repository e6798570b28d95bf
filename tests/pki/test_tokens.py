"""Join tokens buy one certificate for one sandbox, once and in time."""

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.errors import Bug, InvalidInput
from supervisor_middleware.pki.tokens import RETENTION, JoinTokenRefused, JoinTokens, Refusal
from tests.pki.builders import DAY, NOW

HOUR = timedelta(hours=1)
SECRET = b"0123456789abcdef0123456789abcdef"


def issue(
    tokens: JoinTokens,
    *,
    sandbox: str = "coder",
    now: datetime = NOW,
    lifetime: timedelta = HOUR,
    secret: bytes = SECRET,
) -> str:
    return tokens.issue("team-a", sandbox, now=now, lifetime=lifetime, secret=secret)


def refusal(tokens: JoinTokens, token: str, *, now: datetime = NOW) -> Refusal:
    with pytest.raises(JoinTokenRefused, match="the join token is not valid") as caught:
        tokens.redeem(token, now)
    return caught.value.reason


def test_a_token_names_its_sandbox_and_a_stand_in_for_the_pod() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    identity = tokens.redeem(token, NOW)
    assert (identity.namespace, identity.sandbox) == ("team-a", "coder")
    assert identity.pod_uid == "join-" + token.split(".")[1]
    assert token.startswith("smw-join.")
    assert len(token.split(".")) == 3


def test_a_token_is_spent_once() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    tokens.redeem(token, NOW)
    assert refusal(tokens, token) is Refusal.USED


def test_a_token_is_good_for_the_key_that_spent_it_and_for_no_other() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    identity = tokens.redeem(token, NOW, holder=lambda: "k1")
    spent = tokens.to_dict()
    restored = JoinTokens.from_dict(json.loads(json.dumps(spent)))
    assert restored.redeem(token, NOW + HOUR - timedelta(seconds=1), holder=lambda: "k1") == identity
    assert restored.to_dict() == spent
    for holder in (lambda: "k2", lambda: ""):
        with pytest.raises(JoinTokenRefused) as caught:
            restored.check(token, NOW, holder=holder)
        assert (caught.value.reason, caught.value.identity) == (Refusal.USED, identity)
    with pytest.raises(JoinTokenRefused) as late:
        restored.redeem(token, NOW + HOUR, holder=lambda: "k1")
    assert late.value.reason is Refusal.EXPIRED


def test_a_settled_token_is_good_for_nobody_and_its_join_stands() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    identity = tokens.redeem(token, NOW, holder=lambda: "k1")
    tokens.settle(identity)
    with pytest.raises(JoinTokenRefused) as caught:
        tokens.redeem(token, NOW, holder=lambda: "k1")
    assert caught.value.reason is Refusal.USED
    assert tokens.standing() == {identity}
    before = tokens.to_dict()
    JoinTokens().settle(identity)
    tokens.settle(identity)
    assert tokens.to_dict() == before


def test_a_token_expires() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    assert refusal(tokens, token, now=NOW + HOUR) is Refusal.EXPIRED
    assert tokens.redeem(token, NOW + HOUR - timedelta(seconds=1)).sandbox == "coder"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "junk",
        "smw-join",
        "smw-join.a",
        "other.a.b",
        "smw-join.a.b.c",
        "smw-join.a.\u00fc",
        "smw-join." + "a" * 999,
    ],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    assert refusal(JoinTokens(), token) is Refusal.MALFORMED


def test_an_unknown_token_and_a_wrong_secret_are_the_same() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    prefix, token_id, secret = token.split(".")
    assert refusal(tokens, f"{prefix}.{token_id}.{secret[::-1]}") is Refusal.UNKNOWN
    assert refusal(tokens, f"{prefix}.{token_id[::-1]}.{secret}") is Refusal.UNKNOWN
    assert tokens.redeem(token, NOW).sandbox == "coder"


def test_a_wrong_secret_does_not_tell_that_the_token_was_used() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    tokens.redeem(token, NOW)
    assert refusal(tokens, token[:-1]) is Refusal.UNKNOWN


def test_the_peer_reads_one_text_whatever_the_reason() -> None:
    assert len({str(JoinTokenRefused(reason)) for reason in Refusal}) == 1


def test_the_state_holds_no_token() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    assert token.split(".")[2] not in json.dumps(tokens.to_dict())


@given(st.lists(st.binary(min_size=16, max_size=64), unique=True, max_size=5), st.integers(min_value=0, max_value=5))
def test_a_ledger_survives_its_file(secrets: list[bytes], spent: int) -> None:
    tokens = JoinTokens()
    issued = [issue(tokens, secret=secret) for secret in secrets]
    for token in issued[:spent]:
        tokens.redeem(token, NOW)
    restored = JoinTokens.from_dict(json.loads(json.dumps(tokens.to_dict())))
    assert restored.to_dict() == tokens.to_dict()
    for token in issued[:spent]:
        assert refusal(restored, token) is Refusal.USED
    for token in issued[spent:]:
        assert restored.redeem(token, NOW).sandbox == "coder"


def test_tokens_of_long_ago_are_forgotten() -> None:
    tokens = JoinTokens()
    old = issue(tokens)
    issue(tokens, now=NOW + RETENTION, secret=SECRET[::-1])
    assert refusal(tokens, old, now=NOW + RETENTION) is Refusal.EXPIRED
    issue(tokens, now=NOW + RETENTION + 2 * HOUR, secret=SECRET * 2)
    assert refusal(tokens, old, now=NOW + RETENTION) is Refusal.UNKNOWN


def test_a_join_stands_until_it_is_revoked_and_is_remembered_as_long() -> None:
    tokens = JoinTokens()
    joined = tokens.redeem(issue(tokens), NOW)
    assert tokens.standing() == {joined}
    later = NOW + 100 * RETENTION
    issue(tokens, sandbox="other", now=later, secret=SECRET[::-1])
    assert tokens.standing() == {joined}
    assert tokens.revoke("team-a", "coder", later) == 1
    assert tokens.standing() == frozenset()
    assert tokens.revoke("team-a", "coder", later) == 0


def test_a_revoked_token_cannot_be_used_and_a_new_one_can() -> None:
    tokens = JoinTokens()
    token = issue(tokens)
    other = issue(tokens, sandbox="other", secret=SECRET * 2)
    assert tokens.revoke("team-a", "coder", NOW) == 1
    assert refusal(tokens, token) is Refusal.REVOKED
    assert tokens.redeem(other, NOW).sandbox == "other"
    restored = JoinTokens.from_dict(json.loads(json.dumps(tokens.to_dict())))
    assert refusal(restored, token) is Refusal.REVOKED
    assert restored.redeem(issue(restored, secret=SECRET[::-1]), NOW).sandbox == "coder"


def test_a_sandbox_that_joins_again_ends_its_earlier_join() -> None:
    tokens = JoinTokens()
    first = issue(tokens)
    second = issue(tokens, secret=SECRET[::-1])
    earlier = tokens.redeem(first, NOW)
    later = tokens.redeem(second, NOW)
    assert (earlier in tokens.standing(), later in tokens.standing()) == (False, True)


def test_a_ledger_of_an_earlier_release_is_read() -> None:
    tokens = JoinTokens()
    joined = tokens.redeem(issue(tokens), NOW)
    state = json.loads(json.dumps(tokens.to_dict()))
    for entry in state["tokens"].values():
        del entry["revokedAt"], entry["holderSha256"]
    assert JoinTokens.from_dict(state).standing() == {joined}


def test_bad_names_and_lifetimes_are_the_authors() -> None:
    with pytest.raises(InvalidInput, match="sandbox"):
        issue(JoinTokens(), sandbox="Not A Name")
    with pytest.raises(InvalidInput, match="some time"):
        issue(JoinTokens(), lifetime=-DAY)


def test_randomness_is_long_and_fresh() -> None:
    tokens = JoinTokens()
    issue(tokens)
    with pytest.raises(Bug, match="used before"):
        issue(tokens)
    with pytest.raises(Bug, match="randomness"):
        issue(tokens, secret=b"short")


ENTRY = {"sha256": "00", "namespace": "a", "sandbox": "b", "expiresAt": NOW.isoformat(), "usedAt": None}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ([], "no ledger"),
        ({}, "no ledger"),
        ({"version": 2, "tokens": {}}, "no ledger"),
        ({"version": 1, "tokens": []}, "no ledger"),
        ({"version": 1, "tokens": {"a": []}}, "lacks a field"),
        ({"version": 1, "tokens": {"a": {**ENTRY, "usedAt": 1}}}, "lacks a field"),
        ({"version": 1, "tokens": {"a": {**ENTRY, "expiresAt": "soon"}}}, "no time"),
        ({"version": 1, "tokens": {"a": {**ENTRY, "usedAt": "2026-03-01T12:00:00"}}}, "without a zone"),
        ({"version": 1, "tokens": {"a": {**ENTRY, "namespace": "A B"}}}, "namespace"),
    ],
)
def test_a_corrupt_ledger_is_refused(state: object, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        JoinTokens.from_dict(state)
