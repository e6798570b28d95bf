"""A certificate buys its successor over real mutual TLS, for its own supervisor, while that lives; and nothing else."""

import asyncio
from datetime import timedelta

import grpc
import pytest

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.spiffe import sandbox_identity
from tests.integration.distributing import (
    AUTHORITY,
    NOW,
    Operator,
    a_pod,
    a_sealed,
    a_supervisor,
    an_operator,
    bought,
    credentials_of,
    enroll,
    renew,
    renewal_refusal,
)
from tests.integration.distributing import refusal as stream_refusal
from tests.pki.builders import TRUST_DOMAIN
from tests.waiting import eventually

ONE = a_sealed("one")
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, "the certificate does not prove a live sandbox")


async def successor(operator: Operator, client: Credentials) -> Credentials:
    key, csr = new_key_and_csr()
    return bought(await renew(operator, csr, client), key)


async def enrolled(operator: Operator) -> Credentials:
    key, csr = new_key_and_csr()
    return bought(await enroll(operator, csr, "token-a"), key)


async def refusal(operator: Operator, client: Credentials) -> tuple[grpc.StatusCode, str | None]:
    error = await renewal_refusal(operator, new_key_and_csr()[1], client)
    return error.code(), error.details()


async def test_a_successor_is_the_same_supervisors_and_opens_its_stream() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        before = await enrolled(operator)
        after = await successor(operator, before)
        assert sandbox_identity(after.certificate_chain_pem, trust_domain=TRUST_DOMAIN) == a_pod("a")
        assert after.private_key_pem != before.private_key_pem
        assert after.expires_at == NOW.replace(microsecond=0) + timedelta(hours=1)
        async with a_supervisor(operator, after) as supervisor:
            await supervisor.hello()
            assert (await supervisor.offer()).digest == ONE.digest
    assert [e.kind for e in operator.audited if isinstance(e, Changed)] == [
        ChangeKind.CREDENTIALS_ISSUED,
        ChangeKind.CREDENTIALS_ROTATED,
    ]


async def test_the_newest_key_wins() -> None:
    async with an_operator() as operator:
        first = credentials_of("a")
        second = await successor(operator, first)
        third = await successor(operator, second)
        # `second` proved itself by renewing, so `first` may be in other hands; then so may `second`.
        assert await refusal(operator, first) == REFUSED
        fourth = await successor(operator, third)
        assert await refusal(operator, second) == REFUSED
        assert await successor(operator, fourth)
        # A token ends them all.
        assert await enrolled(operator)
        assert await refusal(operator, fourth) == REFUSED


async def test_an_answer_that_was_lost_can_be_asked_for_again() -> None:
    async with an_operator() as operator:
        current = credentials_of("a")
        lost = await successor(operator, current)
        found = await successor(operator, current)
        assert await refusal(operator, lost) == REFUSED
        assert await successor(operator, found)


async def test_another_supervisors_renewal_changes_nothing() -> None:
    async with an_operator() as operator:
        ours, theirs = credentials_of("a"), credentials_of("b")
        assert await successor(operator, theirs)
        assert await successor(operator, ours)


async def test_a_sandbox_that_is_gone_renews_no_more() -> None:
    async with an_operator() as operator:
        current = credentials_of("a")
        operator.reviewer.gone.add(a_pod("a"))
        assert await refusal(operator, current) == REFUSED
        assert await successor(operator, credentials_of("b"))
    assert len(operator.audited) == 1


async def test_whoever_cannot_be_asked_about_is_told_to_try_again() -> None:
    async with an_operator() as operator:
        current = credentials_of("a")
        operator.reviewer.is_away = True
        code, _ = await refusal(operator, current)
        assert code is grpc.StatusCode.UNAVAILABLE
        operator.reviewer.is_away = False
        operator.is_leading = False
        code, _ = await refusal(operator, current)
        assert code is grpc.StatusCode.UNAVAILABLE
        operator.is_leading = True
        operator.reviewer.error = ValueError("canary")
        code, details = await refusal(operator, current)
        assert code is grpc.StatusCode.INTERNAL
        assert "canary" not in (details or "")
    assert operator.audited == []


@pytest.mark.parametrize("csr", [b"", b"nonsense", b"x" * 20_000])
async def test_a_request_that_cannot_be_signed_spends_nothing(csr: bytes) -> None:
    async with an_operator() as operator:
        current = credentials_of("a")
        error = await renewal_refusal(operator, csr, current)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await successor(operator, current)


async def test_renewals_at_once_leave_one_that_counts() -> None:
    async with an_operator() as operator:
        current = credentials_of("a")
        bought_at_once = await asyncio.gather(*(successor(operator, current) for _ in range(5)))
        outcomes = [await _renews(operator, credentials) for credentials in bought_at_once]
        assert outcomes.count(True) == 1


async def test_one_supervisor_holds_up_nobody_with_renewals() -> None:
    async with an_operator() as operator:
        gate = asyncio.Event()
        vouch = operator.reviewer.vouch

        async def slow(identity: object) -> None:
            if identity == a_pod("a"):
                await gate.wait()
            await vouch(a_pod("b"))

        operator.reviewer.vouch = slow  # type: ignore[method-assign]
        current = credentials_of("a")
        many = [asyncio.ensure_future(refusal(operator, current)) for _ in range(40)]
        await eventually(lambda: sum(task.done() for task in many) == 38)
        assert {task.result()[0] for task in many if task.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert await successor(operator, credentials_of("b"))
        gate.set()
        await asyncio.gather(*many, return_exceptions=True)


async def _renews(operator: Operator, client: Credentials) -> bool:
    try:
        await successor(operator, client)
    except grpc.aio.AioRpcError:
        return False
    return True


def test_the_tests_supervisors_are_of_the_operators_root() -> None:
    credentials_of("a").leaf.verify_directly_issued_by(AUTHORITY.certificate)


# --------------------------------------------------------------------------------------------------------- the stream


async def test_an_older_certificate_opens_no_stream_and_ends_nobodys() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        old = credentials_of("a")
        new = await successor(operator, old)
        async with a_supervisor(operator, new) as supervisor:
            await supervisor.hello()
            await supervisor.offer()
            assert await stream_refusal(operator, old) is grpc.StatusCode.UNAUTHENTICATED
            await supervisor.hears_nothing()


async def test_the_stream_of_a_certificate_that_asked_for_a_successor_goes_on_until_that_is_shown() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        old = credentials_of("a")
        async with a_supervisor(operator, old) as supervisor:
            await supervisor.hello()
            await supervisor.offer()
            new = await successor(operator, old)
            operator.discovery.revise()
            await supervisor.hears_nothing()
            async with a_supervisor(operator, new) as its_next:
                await its_next.hello()
                await its_next.offer()
                assert await supervisor.end() is grpc.StatusCode.ABORTED


async def test_whoever_is_revoked_loses_an_open_stream_and_gets_no_other() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, "uid-b": ONE})
        ours, theirs = credentials_of("a"), credentials_of("b")
        async with a_supervisor(operator, ours) as revoked, a_supervisor(operator, theirs) as other:
            for supervisor in (revoked, other):
                await supervisor.hello()
                await supervisor.offer()
            operator.reviewer.gone.add(a_pod("a"))
            operator.discovery.revise()
            assert await revoked.end() is grpc.StatusCode.UNAUTHENTICATED
            assert not operator.discovery.view("uid-a", digest=ONE.digest).is_connected
            await other.hears_nothing()
        assert await stream_refusal(operator, ours) is grpc.StatusCode.UNAUTHENTICATED


async def test_whoever_is_revoked_before_its_hello_gets_nothing() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            await supervisor.hears_nothing()
            operator.reviewer.gone.add(a_pod("a"))
            await supervisor.hello()
            assert await supervisor.end() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_token_ends_the_stream_of_whoever_holds_an_earlier_certificate() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        earlier = await enrolled(operator)
        async with a_supervisor(operator, earlier) as thief:
            await thief.hello()
            await thief.offer()
            # The owner only wants files: no stream of its own would take over.
            await enrolled(operator)
            assert await thief.end() is grpc.StatusCode.UNAUTHENTICATED
        assert await stream_refusal(operator, earlier) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_renewal_ends_no_stream_before_its_answer_has_come() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        earlier = await enrolled(operator)
        async with a_supervisor(operator, earlier) as supervisor:
            await supervisor.hello()
            await supervisor.offer()
            await successor(operator, earlier)
            await supervisor.hears_nothing()
