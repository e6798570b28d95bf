"""Hosts of `networkPolicies` endpoints: which can be compared, and which are refused where that matters."""

import pytest

from supervisor_middleware.compiler.endpoints import draft_endpoints
from supervisor_middleware.model.violation import Reason, Subject

SUBJECT = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")


@pytest.mark.parametrize(
    "host", ["010.0.0.1", "0xa.0.0.1", "167772161", "256.0.0.1", "1.2.3", "db.example.com:443", "a b"]
)
def test_a_skipped_host_that_is_none_would_be_compared_in_vain(host: str) -> None:
    drafts, violations = draft_endpoints(
        {"networkPolicies": {"p": {"endpoints": [{"host": host, "tls": "skip"}]}}}, subject=SUBJECT
    )
    assert [d.host for d in drafts] == [None]
    assert [(v.reason, v.path) for v in violations] == [
        (Reason.INVALID_PATTERN, "spec.networkPolicies.p.endpoints[0].host")
    ]
    assert host not in str(violations[0])


@pytest.mark.parametrize("host", ["10.0.0.1", "10.*.0.1", "DB.example.com", "*", "**.example.com", "::1", "[::1]"])
def test_a_skipped_host_may_be_a_name_a_pattern_or_an_address(host: str) -> None:
    drafts, violations = draft_endpoints(
        {"networkPolicies": {"p": {"endpoints": [{"host": host, "tls": "skip"}]}}}, subject=SUBJECT
    )
    assert violations == ()
    assert drafts[0].host is not None


def test_a_host_nobody_reads_may_be_anything() -> None:
    _, violations = draft_endpoints(
        {"networkPolicies": {"p": {"endpoints": [{"host": "010.0.0.1"}]}}}, subject=SUBJECT
    )
    assert violations == ()
