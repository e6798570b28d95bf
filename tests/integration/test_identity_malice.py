"""No supervisor obtains another's identity or scope: a malicious client, over real TLS and real gRPC.

Every refusal tells the peer the same; what was wrong is in our log, without a token.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from structlog.testing import capture_logs

from supervisor_middleware.apps.joins import Joins
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import key_to_pem, new_key, new_key_and_csr
from supervisor_middleware.pki.spiffe import SandboxIdentity, sandbox_identity
from supervisor_middleware.pki.store import join_tokens
from tests.integration.distributing import (
    AUTHORITY,
    LONG_AGO,
    NOW,
    STRANGER,
    Operator,
    a_pod,
    a_sealed,
    a_supervisor,
    an_operator,
    bought,
    credentials_of,
    enroll,
    enrolment_refusal,
    other_roots,
    refusal,
    renew,
    renewal_refusal,
)
from tests.integration.forgeries import (
    GREEDY,
    UNFIT_KEYS,
    a_request,
    a_request_for_another_key,
    by_a_supervisor,
    by_a_twin_of,
    self_made,
)
from tests.pki.builders import TRUST_DOMAIN, leaf_of, supervisor_credentials

ONE, TWO = a_sealed("one"), a_sealed("two")
NO_SANDBOX: Final = "the token does not prove a live sandbox"


def is_our_profile(leaf: x509.Certificate, pod: SandboxIdentity) -> bool:
    """Whether it says what we say of `pod` and no more."""
    extensions = {type(e.value): e.value for e in leaf.extensions}
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    key_usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    uri = f"spiffe://{TRUST_DOMAIN}/ns/{pod.namespace}/sandbox/{pod.sandbox}"
    return (
        set(extensions)
        == {
            x509.BasicConstraints,
            x509.KeyUsage,
            x509.ExtendedKeyUsage,
            x509.SubjectAlternativeName,
            x509.SubjectKeyIdentifier,
            x509.AuthorityKeyIdentifier,
        }
        and list(names) == [x509.UniformResourceIdentifier(uri)]
        and list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        and constraints.critical
        and not constraints.value.ca
        and not key_usage.key_cert_sign
        and leaf.subject == x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, pod.pod_uid)])
        and leaf.issuer == AUTHORITY.certificate.subject
    )


# --------------------------------------------------------------------------------------------------- signing requests


@pytest.mark.parametrize("wish", GREEDY)
async def test_a_request_that_asks_for_more_gets_what_it_proved_and_no_more(wish: str) -> None:
    extensions, subject = GREEDY[wish]
    async with an_operator() as operator:
        key = new_key()
        csr = a_request(key, *extensions, subject=subject)
        enrolled = await enroll(operator, csr, "token-a")
        assert is_our_profile(leaf_of(enrolled.certificate_chain_pem), a_pod("a"))
        renewed = await renew(operator, csr, credentials_of("b"))
        assert is_our_profile(leaf_of(renewed.certificate_chain_pem), a_pod("b"))
        for response in (enrolled, renewed):
            assert leaf_of(response.certificate_chain_pem).public_key() == key.public_key()
            assert len(x509.load_pem_x509_certificates(response.certificate_chain_pem)) == 1


@pytest.mark.parametrize("kind", UNFIT_KEYS)
async def test_a_key_that_is_none_of_ours_is_not_certified(kind: str) -> None:
    async with an_operator() as operator:
        csr = a_request(UNFIT_KEYS[kind])
        for error in (
            await enrolment_refusal(operator, csr, "token-a"),
            await renewal_refusal(operator, csr, credentials_of("a")),
        ):
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == "the signing request's key must be ECDSA P-256 or P-384"
        assert operator.audited == []


async def test_a_request_for_a_key_that_the_peer_does_not_hold_is_refused() -> None:
    async with an_operator() as operator:
        csr = a_request_for_another_key()
        with capture_logs() as logs:
            error = await enrolment_refusal(operator, csr, "token-a")
            again = await renewal_refusal(operator, csr, credentials_of("a"))
        assert {error.code(), again.code()} == {grpc.StatusCode.UNAUTHENTICATED}
        assert {entry["reason"] for entry in logs} == {"the signing request is not signed by its own key"}
        assert operator.audited == []


@pytest.mark.parametrize(
    ("csr", "code"),
    [
        (b"", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x00" * 1000, grpc.StatusCode.INVALID_ARGUMENT),
        (AUTHORITY.certificate_pem, grpc.StatusCode.INVALID_ARGUMENT),
        (new_key_and_csr()[0].reveal(), grpc.StatusCode.INVALID_ARGUMENT),
        (new_key_and_csr()[1][:-30], grpc.StatusCode.INVALID_ARGUMENT),
        (new_key_and_csr()[1] * 60, grpc.StatusCode.INVALID_ARGUMENT),
        (b"x" * 300_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["empty", "zeros", "a certificate", "a private key", "cut off", "too large", "huge"],
)
async def test_garbage_is_refused_and_harms_nobody(csr: bytes, code: grpc.StatusCode) -> None:
    async with an_operator() as operator:
        for error in (
            await enrolment_refusal(operator, csr, "token-a"),
            await renewal_refusal(operator, csr, credentials_of("a")),
        ):
            assert error.code() is code
            assert "PRIVATE" not in (error.details() or "")
        assert operator.audited == []
        assert (await enroll(operator, new_key_and_csr()[1], "token-a")).certificate_chain_pem


# ------------------------------------------------------------------------------------------------------- certificates

WEBHOOK = Authority.create(trust_domain=TRUST_DOMAIN, now=LONG_AGO)
"""Of the same name as the root of identities, as the webhook's is."""
SHARED = Authority(trust_domain="other.test", certificate=AUTHORITY.certificate, private_key=AUTHORITY.private_key)

CERTIFICATES: Final[Mapping[str, Callable[[], Credentials]]] = {
    "of another CA": lambda: supervisor_credentials(STRANGER, identity=a_pod("a"), now=NOW),
    "of the webhook's CA": lambda: supervisor_credentials(WEBHOOK, identity=a_pod("a"), now=NOW),
    "the webhook's own": lambda: WEBHOOK.issue_server(dns_names=["webhook.system.svc"], now=NOW),
    "expired": lambda: supervisor_credentials(AUTHORITY, identity=a_pod("a"), now=LONG_AGO),
    "not valid yet": lambda: supervisor_credentials(AUTHORITY, identity=a_pod("a"), now=NOW + timedelta(days=2)),
    "a service's": lambda: AUTHORITY.issue_server(dns_names=["service.team-a.svc"], now=NOW),
    "the operator's own": lambda: AUTHORITY.issue_operator(namespace="system", now=NOW),
    "of another trust domain": lambda: supervisor_credentials(SHARED, identity=a_pod("a"), now=NOW),
    "of a twin of our CA": lambda: by_a_twin_of(AUTHORITY, NOW),
    "issued by a supervisor": lambda: by_a_supervisor(credentials_of("b"), NOW),
    "self-made": lambda: self_made(NOW),
}


@pytest.mark.parametrize("which", CERTIFICATES)
async def test_a_certificate_that_is_no_supervisors_gets_neither_a_generation_nor_a_successor(which: str) -> None:
    client = other_roots(CERTIFICATES[which]())
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        refused = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED}
        assert await refusal(operator, client) in refused
        error = await renewal_refusal(operator, new_key_and_csr()[1], client)
        assert error.code() in refused
        assert "sandbox" not in (error.details() or "").replace("the certificate does not prove a live sandbox", "")
        assert (operator.changes, operator.audited) == (0, [])


async def test_without_a_certificate_nobody_renews() -> None:
    async with an_operator() as operator:
        error = await renewal_refusal(operator, new_key_and_csr()[1], None)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert operator.audited == []


async def test_whoever_proves_one_sandbox_gets_its_generation_however_its_request_was_made() -> None:
    extensions, subject = GREEDY["another sandbox"]
    victim = SandboxIdentity(namespace="team-b", sandbox="victim", pod_uid="uid-victim")
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, victim.pod_uid: TWO})
        key = new_key()
        response = await enroll(operator, a_request(key, *extensions, subject=subject), "token-a")
        async with a_supervisor(operator, bought(response, key_to_pem(key))) as supervisor:
            await supervisor.hello()
            assert (await supervisor.offer()).digest == ONE.digest


# --------------------------------------------------------------------------------------------------------- join tokens


class Folder:
    async def snapshot(self) -> Snapshot:
        return Snapshot(sandboxes=(Sandbox(namespace="team-a", name="agent", uid="team-a/agent", labels={}),))


def a_join_token(state: Path, *, minutes: int = 10, secret: bytes = b"s" * 32) -> str:
    with join_tokens(state) as tokens:
        made = datetime.now(UTC) - timedelta(minutes=20)
        return tokens.issue("team-a", "agent", now=made, lifetime=timedelta(minutes=20 + minutes), secret=secret)


def joining(operator: Operator, state: Path) -> Joins:
    joins = Joins(state, snapshot=Folder().snapshot)
    operator.enrollment._reviewer = joins
    operator.renewal._vouching = joins
    return joins


async def test_of_two_that_show_a_join_token_at_once_exactly_one_joins(tmp_path: Path) -> None:
    token = a_join_token(tmp_path)

    async def attempt(operator: Operator) -> grpc.StatusCode:
        try:
            await enroll(operator, new_key_and_csr()[1], token)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    async with an_operator() as operator:
        joining(operator, tmp_path)
        codes = await asyncio.gather(*(attempt(operator) for _ in range(12)))
        assert codes.count(grpc.StatusCode.OK) == 1
        assert codes.count(grpc.StatusCode.UNAUTHENTICATED) == 11
        assert len(operator.audited) == 1


async def test_join_tokens_that_are_worth_nothing_are_told_apart_in_the_log_alone(tmp_path: Path) -> None:
    spent, expired = a_join_token(tmp_path), a_join_token(tmp_path, minutes=-5, secret=b"e" * 32)
    tokens = {
        "used": spent,
        "expired": expired,
        "unknown": spent[:-1] + ("A" if spent[-1] != "A" else "B"),
        "malformed": "smw-join.nonsense",
    }
    async with an_operator() as operator:
        joining(operator, tmp_path)
        await enroll(operator, new_key_and_csr()[1], spent)
        with capture_logs() as logs:
            errors = [await enrolment_refusal(operator, new_key_and_csr()[1], token) for token in tokens.values()]
        assert {(e.code(), e.details()) for e in errors} == {(grpc.StatusCode.UNAUTHENTICATED, NO_SANDBOX)}
        assert [entry["reason"] for entry in logs] == [f"join token: {kind}" for kind in tokens]
        assert not [token for token in tokens.values() if token in str(logs)]


async def test_whoever_joined_renews_without_a_token_until_revoked(tmp_path: Path) -> None:
    async with an_operator() as operator:
        joins = joining(operator, tmp_path)
        key, csr = new_key_and_csr()
        joined = bought(await enroll(operator, csr, a_join_token(tmp_path)), key)
        key, csr = new_key_and_csr()
        renewed = bought(await renew(operator, csr, joined), key)
        identity = sandbox_identity(renewed.certificate_chain_pem, trust_domain=TRUST_DOMAIN)
        assert identity.pod_uid.startswith("join-")
        with join_tokens(tmp_path) as tokens:
            tokens.revoke("team-a", "agent", datetime.now(UTC))
        error = await renewal_refusal(operator, new_key_and_csr()[1], renewed)
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not joins.stands(identity)


# ---------------------------------------------------------------------------------------------------------- odd names


@pytest.mark.parametrize(
    ("namespace", "sandbox"),
    [
        ("n" * 63, "s" * 63),
        ("a", ".".join(["x" * 63] * 3 + ["x" * 61])),
        ("0", "0"),
        ("sandbox", "operator"),
        ("ns", "ns.sandbox.operator"),
        ("xn--80ak6aa92e", "xn--80ak6aa92e"),
    ],
)
async def test_odd_names_that_are_allowed_name_themselves_and_nobody_else(namespace: str, sandbox: str) -> None:
    identity = SandboxIdentity(namespace=namespace, sandbox=sandbox, pod_uid="u" * 64)
    async with an_operator() as operator:
        operator.reviewer.tokens["odd"] = identity
        its_own = Sandbox(namespace=namespace, name=sandbox, uid=identity.pod_uid)
        other = Sandbox(namespace="team-a", name="a", uid="uid-a")
        await operator.discovery.publish(
            {
                its_own.uid: Assignment(sandbox=its_own, sealed=ONE),
                other.uid: Assignment(sandbox=other, sealed=TWO),
            }
        )
        key, csr = new_key_and_csr()
        credentials = bought(await enroll(operator, csr, "odd"), key)
        key, csr = new_key_and_csr()
        credentials = bought(await renew(operator, csr, credentials), key)
        assert sandbox_identity(credentials.certificate_chain_pem, trust_domain=TRUST_DOMAIN) == identity
        async with a_supervisor(operator, credentials) as supervisor:
            await supervisor.hello()
            assert (await supervisor.offer()).digest == ONE.digest
