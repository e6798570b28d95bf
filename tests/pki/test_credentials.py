"""Credentials are consistent or do not exist, and are renewed at about half-life."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.errors import Bug, Untrusted
from supervisor_middleware.pki.credentials import Credentials, CredentialsRefused, Part, renewal_time, should_renew
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.secret import SecretBytes
from tests.pki.builders import DAY, NOW, TRUST_DOMAIN, an_authority, supervisor_credentials

AUTHORITY = an_authority()
CREDENTIALS = supervisor_credentials(AUTHORITY)


def test_credentials_know_who_they_are_and_how_long() -> None:
    assert str(CREDENTIALS.spiffe_id) == f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/coder"
    assert CREDENTIALS.not_before < NOW < CREDENTIALS.expires_at == NOW + DAY


def test_credentials_do_not_show_their_key() -> None:
    assert "PRIVATE" not in f"{CREDENTIALS} {CREDENTIALS!r}"
    assert "redacted" in repr(CREDENTIALS)


def test_a_bundle_may_be_replaced_alone() -> None:
    bundle = AUTHORITY.certificate_pem + an_authority().certificate_pem
    changed = replace(CREDENTIALS, trust_bundle_pem=bundle)
    assert changed.leaf == CREDENTIALS.leaf
    assert changed != CREDENTIALS


def test_a_plain_server_has_no_spiffe_id() -> None:
    with pytest.raises(Untrusted, match="0 URI names"):
        _ = AUTHORITY.issue_server(dns_names=["localhost"], now=NOW).spiffe_id


@pytest.mark.parametrize(
    ("part", "chain", "key", "bundle"),
    [
        (Part.CERTIFICATE, b"junk", CREDENTIALS.private_key_pem, AUTHORITY.certificate_pem),
        (Part.BUNDLE, CREDENTIALS.certificate_chain_pem, CREDENTIALS.private_key_pem, b""),
        (Part.KEY, CREDENTIALS.certificate_chain_pem, SecretBytes(b"SECRET"), AUTHORITY.certificate_pem),
        (Part.KEY, CREDENTIALS.certificate_chain_pem, new_key_and_csr()[0], AUTHORITY.certificate_pem),
    ],
    ids=["certificate", "bundle", "corrupt key", "another key"],
)
def test_inconsistent_credentials_do_not_exist(part: Part, chain: bytes, key: SecretBytes, bundle: bytes) -> None:
    with pytest.raises(CredentialsRefused, match=part) as caught:
        Credentials(certificate_chain_pem=chain, private_key_pem=key, trust_bundle_pem=bundle)
    assert caught.value.part is part
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.floats(min_value=0, max_value=1), st.timedeltas(min_value=timedelta(seconds=10), max_value=365 * DAY))
def test_renewal_is_due_from_about_half_life_on(jitter: float, lifetime: timedelta) -> None:
    end = NOW + lifetime
    due = renewal_time(not_before=NOW, not_after=end, jitter=jitter)
    assert NOW + lifetime * 0.449 < due < NOW + lifetime * 0.551
    assert should_renew(due, not_before=NOW, not_after=end, jitter=jitter)
    assert not should_renew(due - timedelta(microseconds=1), not_before=NOW, not_after=end, jitter=jitter)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_jitter_lies_between_0_and_1(jitter: float) -> None:
    with pytest.raises(Bug, match="jitter"):
        renewal_time(not_before=NOW, not_after=NOW + DAY, jitter=jitter)
