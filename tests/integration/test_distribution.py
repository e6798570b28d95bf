"""Generations and identities over real mutual TLS: who gets what, who gets nothing, and what the operator then knows."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import grpc
import pytest
import structlog.testing

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.distribution.endings import PUSHBACK
from supervisor_middleware.distribution.issuance import OF_ONE
from supervisor_middleware.distribution.ledger import State
from supervisor_middleware.distribution.turns import Turns
from supervisor_middleware.distribution.watch import MAX_STREAMS, Patience
from supervisor_middleware.model.generation import seal
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.spiffe import SandboxIdentity, sandbox_identity
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.builders import a_generation, a_service, a_stage
from tests.integration.distributing import (
    AUTHORITY,
    LONG_AGO,
    NOW,
    STRANGER,
    Operator,
    a_channel,
    a_pod,
    a_running_supervisor,
    a_sealed,
    a_supervisor,
    an_operator,
    credentials_of,
    enroll,
    enrolment_refusal,
    other_roots,
    refusal,
    watch,
)
from tests.pki.builders import TRUST_DOMAIN, an_authority, an_identity, supervisor_credentials
from tests.waiting import eventually

ONE, TWO = a_sealed("one"), a_sealed("two")


def state_of(operator: Operator, name: str, digest: str) -> State:
    return operator.discovery.view(f"uid-{name}", digest=digest).state


# ---------------------------------------------------------------------------------------------------------- enrolment


async def test_a_token_and_a_csr_buy_a_certificate_that_opens_the_stream() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        key, csr = new_key_and_csr()
        response = await enroll(operator, csr, "token-a")
        credentials = Credentials(
            certificate_chain_pem=response.certificate_chain_pem,
            private_key_pem=key,
            trust_bundle_pem=response.trust_bundle_pem,
        )
        assert sandbox_identity(response.certificate_chain_pem, trust_domain=TRUST_DOMAIN) == a_pod("a")
        assert credentials.expires_at == NOW.replace(microsecond=0) + timedelta(hours=1)
        async with a_supervisor(operator, credentials) as supervisor:
            await supervisor.hello()
            assert (await supervisor.offer()).digest == ONE.digest
    assert operator.audited == [Changed(kind=ChangeKind.CREDENTIALS_ISSUED, subject="Sandbox team-a/a")]


async def test_a_bad_token_buys_nothing_and_is_told_nothing() -> None:
    async with an_operator() as operator:
        error = await enrolment_refusal(operator, new_key_and_csr()[1], "guess")
    assert (error.code(), error.details()) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "the token does not prove a live sandbox",
    )
    assert not operator.audited


async def test_a_reviewer_that_is_away_says_try_again() -> None:
    async with an_operator() as operator:
        operator.reviewer.is_away = True
        error = await enrolment_refusal(operator, new_key_and_csr()[1], "token-a")
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_flood_of_enrolments_is_bounded_and_then_forgotten() -> None:
    async with an_operator() as operator:
        gate, at_work = asyncio.Event(), list[int]()

        class SlowReviewer:
            now = 0

            async def review(self, token: str, *, holder: Callable[[], str]) -> SandboxIdentity:
                self.now += 1
                at_work.append(self.now)
                await gate.wait()
                self.now -= 1
                return await operator.reviewer.review(token, holder=holder)

        operator.enrollment._reviewer = SlowReviewer()
        operator.enrollment._turns = Turns(at_work=4, waiting=12)
        _, csr = new_key_and_csr()
        flood = [asyncio.ensure_future(enrolment_refusal(operator, csr, "no")) for _ in range(48)]
        await eventually(lambda: sum(f.done() for f in flood) == 32)
        over = [f.result() for f in flood if f.done()]
        assert {error.code() for error in over} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert {error.details() for error in over} == {"too many wait; try again in 3 s"}
        assert {repr(tuple(error.trailing_metadata())) for error in over} == {f"(('{PUSHBACK}', '3000'),)"}
        assert max(at_work) == 4
        gate.set()
        codes = [refused.code() for refused in await asyncio.gather(*flood)]
        assert codes.count(grpc.StatusCode.UNAUTHENTICATED) == 16
        assert (await enroll(operator, csr, "token-a")).certificate_chain_pem


async def test_whoever_guesses_tokens_for_ever_does_not_fill_the_log() -> None:
    async with an_operator() as operator:
        with structlog.testing.capture_logs() as logs:
            for _ in range(60):
                await enrolment_refusal(operator, b"", "no")
        told = [e for e in logs if e["event"] == "refused an enrolment"]
        assert 32 <= len(told) < 50


async def test_one_supervisor_gets_so_many_certificates_and_others_theirs() -> None:
    async with an_operator() as operator:
        operator.reviewer.tokens["token-b"] = a_pod("b")
        _, csr = new_key_and_csr()
        for _ in range(OF_ONE.burst):
            await enroll(operator, csr, "token-a")
        error = await enrolment_refusal(operator, csr, "token-a")
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == "this supervisor had too many certificates; try again in 5 s"
        assert (await enroll(operator, csr, "token-b")).certificate_chain_pem


async def test_an_unreadable_csr_is_the_callers_fault() -> None:
    async with an_operator() as operator:
        error = await enrolment_refusal(operator, b"nonsense", "token-a")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_csr_that_asks_for_more_gets_no_more() -> None:
    """The CSR of an operator's key: only its public key counts."""
    async with an_operator() as operator:
        response = await enroll(operator, new_key_and_csr()[1], "token-a")
    assert sandbox_identity(response.certificate_chain_pem, trust_domain=TRUST_DOMAIN).sandbox == "a"


async def test_an_exceptions_text_never_reaches_the_peer() -> None:
    async with an_operator() as operator:
        operator.reviewer.error = ValueError("canary token-a")
        error = await enrolment_refusal(operator, new_key_and_csr()[1], "token-a")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "canary" not in (error.details() or "")


# --------------------------------------------------------------------------------------------------------- the stream


async def test_hello_offer_reports_view() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            offer = await supervisor.offer()
            assert (offer.epoch, offer.sequence, offer.digest, offer.payload) == (7, 1, ONE.digest, ONE.payload)
            assert offer.trust_bundle_pem == AUTHORITY.certificate_pem
            assert offer.trust_bundle_digest == bundle_digest(AUTHORITY.certificate_pem)
            assert state_of(operator, "a", ONE.digest) is State.OFFERED
            await supervisor.say(accepted=pb.Accepted(digest=ONE.digest))
            await eventually(lambda: state_of(operator, "a", ONE.digest) is State.PREPARED)
            await supervisor.say(active=pb.Active(digest=ONE.digest))
            await eventually(lambda: state_of(operator, "a", ONE.digest) is State.ACTIVE)
            assert operator.discovery.states() == {"active": 1}
            await operator.publish({"uid-a": TWO})
            assert (await supervisor.offer()).sequence == 2
            services = [pb.ServiceStatus(name="acme", state=pb.SERVICE_STATE_UNREACHABLE)]
            await supervisor.say(not_ready=pb.NotReady(digest=TWO.digest, services=services))
            await eventually(lambda: state_of(operator, "a", TWO.digest) is State.WAITING)
            assert operator.discovery.view("uid-a", digest=TWO.digest).services == ("acme",)
        await eventually(lambda: not operator.discovery.view("uid-a", digest=TWO.digest).is_connected)
        assert operator.discovery.states() == {"not_connected": 1}


async def test_an_equal_digest_on_reconnect_sends_the_epoch_and_nothing_else() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            known = bundle_digest(AUTHORITY.certificate_pem)
            await supervisor.hello(active_digest=ONE.digest, trust_bundle_digest=known)
            assert await supervisor.offer() == pb.GenerationOffer(epoch=7)
            await supervisor.hears_nothing()
            assert state_of(operator, "a", ONE.digest) is State.ACTIVE
            assert operator.discovery.encodings == 0


async def test_a_supervisor_with_an_old_bundle_gets_the_new_one_alone() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            await supervisor.hello(active_digest=ONE.digest, trust_bundle_digest="sha256:" + "0" * 64)
            offer = await supervisor.offer()
            assert (offer.digest, offer.payload, offer.epoch, offer.sequence) == ("", b"", 7, 0)
            assert offer.trust_bundle_pem == AUTHORITY.certificate_pem


async def test_an_operator_that_leads_no_more_says_nothing_to_anybody() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, "uid-b": ONE})
        async with a_running_supervisor(operator, "a", active=ONE.digest) as supervisor:
            await supervisor.offer()
            operator.is_leading = False
            # As after it was stopped for long: it works on what it knew.
            await operator.publish({"uid-a": TWO, "uid-b": ONE})
            assert await supervisor.end() is grpc.StatusCode.UNAVAILABLE
        assert await refusal(operator, credentials_of("b")) is grpc.StatusCode.UNAVAILABLE
        _, csr = new_key_and_csr()
        assert (await enrolment_refusal(operator, csr, "token-a")).code() is grpc.StatusCode.UNAVAILABLE
        assert not operator.audited
        assert operator.discovery.encodings == 0


async def test_an_operator_that_ends_sends_everybody_to_the_next_one() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a", active=ONE.digest) as supervisor:
            await supervisor.offer()
            operator.discovery.leave()
            assert await supervisor.end() is grpc.StatusCode.UNAVAILABLE


async def test_a_rejected_generation_is_counted_and_not_sent_again() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            reasons = [pb.REJECTION_REASON_UNSUPPORTED, 99]
            await supervisor.say(rejected=pb.Rejected(digest=ONE.digest, reasons=reasons))  # type: ignore[arg-type]
            await eventually(lambda: state_of(operator, "a", ONE.digest) is State.REJECTED)
            await operator.publish({"uid-a": ONE})
            await supervisor.hears_nothing()
        text = operator.metrics.render().decode()
    assert 'generation_rejections_total{reason="unsupported"} 1.0' in text
    assert 'generation_rejections_total{reason="unspecified"} 1.0' in text


async def test_a_rejected_generation_is_not_sent_again_to_one_that_comes_back_without_a_memory() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            await supervisor.say(rejected=pb.Rejected(digest=ONE.digest))
            await eventually(lambda: state_of(operator, "a", ONE.digest) is State.REJECTED)
        await eventually(lambda: not operator.discovery._streams)
        async with a_running_supervisor(operator, "a") as supervisor:
            assert await supervisor.offer() == pb.GenerationOffer(epoch=7)
            await operator.publish({"uid-a": ONE, "uid-b": ONE})
            await supervisor.hears_nothing()
            assert state_of(operator, "a", ONE.digest) is State.REJECTED
            await operator.publish({"uid-a": TWO, "uid-b": ONE})
            assert (await supervisor.offer()).digest == TWO.digest


async def test_a_rejection_is_audited_once_even_of_one_that_comes_back_as_another_version_each_time() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        for version in ("1", "2", "3"):
            async with a_supervisor(operator, credentials_of("a")) as supervisor:
                await supervisor.say(hello=pb.Hello(version=version))
                assert (await supervisor.offer()).digest == ONE.digest
                reasons = [pb.REJECTION_REASON_UNSUPPORTED]
                await supervisor.say(rejected=pb.Rejected(digest=ONE.digest, reasons=reasons))
                await eventually(lambda: state_of(operator, "a", ONE.digest) is State.REJECTED)
            await eventually(lambda: not operator.discovery._streams)
        text = operator.metrics.render().decode()
    assert 'generation_rejections_total{reason="unsupported"} 1.0' in text
    assert operator.audited == [
        Changed(
            kind=ChangeKind.GENERATION_REJECTED,
            subject="Sandbox team-a/a",
            reason="unsupported",
            digest=ONE.digest,
        )
    ]


async def test_the_newest_wins_while_one_is_outstanding() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            for sealed in (TWO, a_sealed("three"), a_sealed("four")):
                await operator.publish({"uid-a": sealed})
            await supervisor.hears_nothing(0.05)
            await supervisor.say(accepted=pb.Accepted(digest=ONE.digest))
            offer = await supervisor.offer()
            assert (offer.digest, offer.sequence) == (a_sealed("four").digest, 4)


# --------------------------------------------------------------------------------------------------------- who is who


async def test_a_certificate_gets_its_own_generation_whatever_the_hello_says() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, "uid-b": TWO})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            await supervisor.hello(active_digest=TWO.digest, epoch=99, sequence=99, rejected_digests=[TWO.digest])
            assert (await supervisor.offer()).digest == ONE.digest
            await supervisor.runs(TWO.digest)
            await supervisor.runs(ONE.digest)
            await eventually(lambda: state_of(operator, "a", ONE.digest) is State.ACTIVE)
            await supervisor.hears_nothing()
            assert not operator.discovery.view("uid-b", digest=TWO.digest).is_connected


async def test_a_pod_that_took_over_a_sandboxs_name_is_another_supervisor() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        successor = an_identity(sandbox="a", pod_uid="uid-of-the-next-pod")
        code = await refusal(operator, supervisor_credentials(AUTHORITY, identity=successor, now=NOW))
        assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_one_that_joined_without_a_pod_is_known_by_its_sandbox() -> None:
    async with an_operator() as operator:
        await operator.publish({"team-a/a": ONE})
        identity = an_identity(sandbox="a", pod_uid="join-0123456789abcdef")
        credentials = supervisor_credentials(AUTHORITY, identity=identity, now=NOW)
        async with a_supervisor(operator, credentials) as supervisor:
            await supervisor.hello()
            assert (await supervisor.offer()).digest == ONE.digest


@pytest.mark.parametrize(
    "client",
    [
        None,
        other_roots(supervisor_credentials(STRANGER, identity=a_pod("a"), now=NOW)),
        supervisor_credentials(AUTHORITY, identity=a_pod("a"), now=LONG_AGO),
        AUTHORITY.issue_server(dns_names=["service.team-a.svc"], now=NOW),
    ],
    ids=["no certificate", "another CA", "expired", "a server's certificate"],
)
async def test_tls_refuses(client: Credentials | None) -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        assert await refusal(operator, client) is grpc.StatusCode.UNAVAILABLE
        assert operator.changes == 0


def of_another_trust_domain() -> Credentials:
    """Signed by our own root, as a CA that several domains share would."""
    shared = Authority(
        trust_domain="other.test", certificate=AUTHORITY.certificate, private_key=AUTHORITY.private_key
    )
    return supervisor_credentials(shared, identity=a_pod("a"), now=NOW)


@pytest.mark.parametrize(
    "client",
    [AUTHORITY.issue_operator(namespace="system", now=NOW), of_another_trust_domain()],
    ids=["the operator's own", "another trust domain"],
)
async def test_a_valid_certificate_that_names_no_sandbox_of_ours_is_refused(client: Credentials) -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        assert await refusal(operator, client) is grpc.StatusCode.UNAUTHENTICATED
        assert operator.changes == 0


async def test_a_new_stream_closes_the_old_one_and_stands() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as old:
            await old.offer()
            async with a_running_supervisor(operator, "a") as new:
                assert await old.end() is grpc.StatusCode.ABORTED
                await new.offer()
                await new.runs(ONE.digest)
                await eventually(lambda: state_of(operator, "a", ONE.digest) is State.ACTIVE)


async def test_a_sandbox_that_is_gone_loses_its_stream_and_cannot_come_back() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, "uid-b": TWO})
        async with a_running_supervisor(operator, "a") as gone, a_running_supervisor(operator, "b") as stays:
            await gone.offer()
            await stays.offer()
            await operator.publish({"uid-b": TWO})
            assert not operator.discovery.view("uid-a", digest=ONE.digest).is_connected
            assert await gone.end() is grpc.StatusCode.PERMISSION_DENIED
            assert await refusal(operator, credentials_of("a")) is grpc.StatusCode.PERMISSION_DENIED
            await stays.runs(TWO.digest)
            await eventually(lambda: state_of(operator, "b", TWO.digest) is State.ACTIVE)


async def test_an_unknown_sandbox_is_waited_for_and_then_refused() -> None:
    async with an_operator(patience=Patience(sandbox=timedelta(seconds=0.3))) as operator:
        began = time.monotonic()
        assert await refusal(operator, credentials_of("a")) is grpc.StatusCode.PERMISSION_DENIED
        assert time.monotonic() - began >= 0.3
        async with a_running_supervisor(operator, "b") as early:
            await asyncio.sleep(0.05)
            await operator.publish({"uid-b": TWO})
            assert (await early.offer()).digest == TWO.digest


async def test_a_sandbox_that_goes_before_it_said_hello_gets_nothing() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            await asyncio.sleep(0.1)
            await operator.publish({})
            await supervisor.hello()
            assert await supervisor.end() is grpc.StatusCode.PERMISSION_DENIED
            assert operator.changes == 0


# ----------------------------------------------------------------------------------------------------- hostile peers


@pytest.mark.parametrize(
    "first",
    [pb.SupervisorReport(active=pb.Active(digest=ONE.digest)).SerializeToString(), b"", b"\xff\xff\xff"],
    ids=["another report", "an empty report", "garbage"],
)
async def test_the_first_report_must_be_hello(first: bytes) -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            await supervisor.say_bytes(first)
            assert await supervisor.end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_one_that_says_nothing_is_not_waited_for_long() -> None:
    async with an_operator(patience=Patience(hello=timedelta(seconds=0.1))) as operator:
        await operator.publish({"uid-a": ONE})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            assert await supervisor.end() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_garbage_later_ends_the_stream() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            await supervisor.say_bytes(b"\xff\xff\xff")
            assert await supervisor.end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_oversize_report_ends_the_stream() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            await supervisor.say(active=pb.Active(digest="x" * 300_000))
            assert await supervisor.end() is not grpc.StatusCode.OK
        await eventually(lambda: not operator.discovery.view("uid-a", digest=ONE.digest).is_connected)


async def test_nonsense_changes_nothing_and_is_not_kept() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as noisy:
            await noisy.offer()
            before, record = operator.changes, operator.discovery._ledger.record("uid-a")
            services = [pb.ServiceStatus(name="\n" * 50, state=99) for _ in range(100)]  # type: ignore[arg-type]
            for number in range(4):
                foreign = f"sha256:{number:064x}"
                await noisy.say()
                await noisy.hello(active_digest=foreign)
                await noisy.say(accepted=pb.Accepted(digest=foreign))
                await noisy.say(rejected=pb.Rejected(digest=foreign, reasons=[7] * 50))  # type: ignore[list-item]
                await noisy.say(not_ready=pb.NotReady(digest="x" * 1000, services=services))
                await noisy.say(active=pb.Active(digest="x" * 1000, services=services))
                await noisy.say(not_ready=pb.NotReady(digest=foreign, services=services))
            await asyncio.sleep(0.1)
            assert (operator.changes, operator.discovery._ledger.record("uid-a")) == (before, record)
            await noisy.runs(ONE.digest)
            await eventually(lambda: state_of(operator, "a", ONE.digest) is State.ACTIVE)


async def test_one_that_floods_us_is_sent_away_for_a_while_and_starves_nobody() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, "uid-b": TWO})
        async with a_running_supervisor(operator, "a") as noisy, a_running_supervisor(operator, "b") as other:
            await noisy.offer()
            await other.offer()
            flood = asyncio.create_task(noisy.floods(active=pb.Active(digest=ONE.digest)))
            await other.runs(TWO.digest)
            await eventually(lambda: state_of(operator, "b", TWO.digest) is State.ACTIVE)
            await flood
            assert not operator.discovery.view("uid-a", digest=ONE.digest).is_connected
            assert operator.discovery.view("uid-b", digest=TWO.digest).is_connected


async def test_one_that_reports_too_much_is_told_for_how_long_to_stay_away() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as noisy:
            await noisy.offer()
            while operator.discovery.view("uid-a", digest=ONE.digest).is_connected:
                # Not while the stream ends: gRPC's client would forget the status for its failed write.
                await noisy.say(active=pb.Active(digest=ONE.digest))
                await asyncio.sleep(0.005)
            assert await noisy.end() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await noisy.pause() == 60.0


async def test_a_supervisor_speaks_of_the_services_of_its_own_generation_only() -> None:
    mine = seal(a_generation(a_stage("mine", service="acme"), services=[a_service("acme")]))
    foreign = seal(a_generation(a_stage("foreign", service="other"), services=[a_service("other")]))
    down = [pb.ServiceStatus(name=name, state=pb.SERVICE_STATE_INCAPABLE) for name in ("acme", "other", "made-up")]
    async with an_operator() as operator:
        await operator.publish({"uid-a": mine, "uid-b": foreign})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            await supervisor.say(not_ready=pb.NotReady(digest=mine.digest, services=down))
            await eventually(lambda: state_of(operator, "a", mine.digest) is State.WAITING)
            assert operator.discovery.view("uid-a", digest=mine.digest).services == ("acme",)
            await supervisor.say(active=pb.Active(digest=foreign.digest, services=down))
            await supervisor.say(accepted=pb.Accepted(digest=mine.digest))
            await eventually(lambda: state_of(operator, "a", mine.digest) is State.PREPARED)
            assert operator.discovery.view("uid-a", digest=mine.digest).services == ()
            assert operator.discovery.view("uid-a", digest=foreign.digest).services == ()
            assert operator.audited == []


async def test_a_hello_is_kept_in_bounds() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_supervisor(operator, credentials_of("a")) as supervisor:
            rejected = ["x" * 100, *(f"sha256:{n:064x}" for n in range(1000)), TWO.digest]
            await supervisor.hello(active_digest="y" * 1000, rejected_digests=rejected)
            await supervisor.offer()
            record = operator.discovery._ledger.record("uid-a")
    assert record is not None
    assert (record.active, record.version, len(record.rejected)) == ("", "1.0.0", 64)
    assert TWO.digest in record.rejected


async def test_one_that_ends_its_side_is_let_go() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as supervisor:
            await supervisor.offer()
            await supervisor.half_close()
            assert await supervisor.end() is grpc.StatusCode.OK
        assert not operator.discovery.view("uid-a", digest=ONE.digest).is_connected


async def test_streams_that_are_cut_leave_nothing_behind() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        for _ in range(20):
            async with a_running_supervisor(operator, "a") as supervisor:
                supervisor.cut()
        await eventually(lambda: not operator.discovery._streams)
        assert operator.discovery._ledger.record("uid-a") is None
        await eventually(lambda: not [t for t in asyncio.all_tasks() if "Watch" in t.get_coro().__qualname__])  # type: ignore[union-attr]


async def test_a_supervisor_has_so_many_streams_and_harms_nobody_with_more() -> None:
    async with an_operator(patience=Patience(hello=timedelta(seconds=30))) as operator:
        await operator.publish({"uid-a": ONE, "uid-b": ONE})
        async with a_channel(operator.port, credentials_of("a")) as channel:
            calls = [watch(channel) for _ in range(3 * MAX_STREAMS)]
            await eventually(lambda: sum(call.done() for call in calls) == 2 * MAX_STREAMS)
            assert {await call.code() for call in calls if call.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            async with a_running_supervisor(operator, "b"):
                pass
        await eventually(lambda: not operator.watch._open_calls)
        async with a_running_supervisor(operator, "a"):
            pass


# ------------------------------------------------------------------------------------------------------- at some scale


async def test_many_streams_of_one_generation_share_its_bytes() -> None:
    names = [f"s{n}" for n in range(12)]
    three, is_over = a_sealed("three"), asyncio.Event()
    async with an_operator() as operator, asyncio.TaskGroup() as group:
        await operator.publish({f"uid-{n}": ONE if n != "s0" else TWO for n in names})

        async def live(name: str) -> None:
            async with a_running_supervisor(operator, name) as supervisor:
                await supervisor.runs((await supervisor.offer()).digest)
                await supervisor.runs((await supervisor.offer()).digest)
                await is_over.wait()

        for name in names:
            group.create_task(live(name))
        await eventually(lambda: operator.discovery.states() == {"active": len(names)})
        assert operator.discovery.encodings == 2
        await operator.publish({f"uid-{n}": three for n in names})
        await eventually(lambda: all(state_of(operator, n, three.digest) is State.ACTIVE for n in names))
        assert operator.discovery.encodings == 3
        is_over.set()


async def test_a_new_pod_of_a_known_generation_moves_nobody_else() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with a_running_supervisor(operator, "a") as first:
            await first.runs((await first.offer()).digest)
            await operator.publish({"uid-a": ONE, "uid-b": ONE})
            async with a_running_supervisor(operator, "b") as second:
                assert (await second.offer()).sequence == 2
                await first.hears_nothing()


async def test_a_slow_reader_holds_back_only_itself() -> None:
    big, bigger = a_sealed("big", size=500_000), a_sealed("bigger", size=500_000)
    narrow = (("grpc.http2.bdp_probe", 0),)
    async with an_operator() as operator:
        await operator.publish({"uid-a": big, "uid-b": big})
        async with (
            a_supervisor(operator, credentials_of("a"), options=narrow) as slow,
            a_running_supervisor(operator, "b") as quick,
        ):
            await slow.hello()
            await quick.runs((await quick.offer()).digest)
            await slow.say(accepted=pb.Accepted(digest=big.digest))
            await eventually(lambda: state_of(operator, "a", big.digest) is State.PREPARED)
            for sealed in (ONE, TWO, bigger):
                await operator.publish({"uid-a": sealed, "uid-b": sealed})
                offer = await quick.offer()
                assert offer.digest == sealed.digest
                await quick.runs(offer.digest)
            assert (await slow.offer()).digest == big.digest
            assert (await slow.offer()).digest == ONE.digest
            await slow.runs(ONE.digest)
            assert (await slow.offer()).digest == bigger.digest


async def test_a_slow_reader_that_is_gone_is_no_more_known() -> None:
    narrow = (("grpc.http2.bdp_probe", 0),)
    async with an_operator() as operator:
        await operator.publish({"uid-a": a_sealed("big", size=500_000)})
        async with a_supervisor(operator, credentials_of("a"), options=narrow) as slow:
            await slow.hello()
            await eventually(lambda: operator.discovery.states() == {"offered": 1})
            await operator.publish({})
            assert operator.discovery.states() == {}
            assert await slow.end() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_renewed_server_certificate_is_used_for_new_handshakes() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, "uid-b": TWO})
        async with a_running_supervisor(operator, "a") as first:
            await first.offer()
            operator.current = other_roots(STRANGER.issue_operator(namespace="system", now=NOW))
            assert await refusal(operator, credentials_of("b")) is grpc.StatusCode.UNAVAILABLE
            operator.current = AUTHORITY.issue_operator(namespace="system", now=NOW)
            async with a_running_supervisor(operator, "b") as second:
                assert (await second.offer()).digest == TWO.digest
            await first.runs(ONE.digest)
            await eventually(lambda: state_of(operator, "a", ONE.digest) is State.ACTIVE)


async def test_a_renewed_trust_bundle_travels_with_the_next_offer() -> None:
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE, "uid-b": ONE})
        async with a_running_supervisor(operator, "a") as first:
            await first.offer()
            operator.bundle += an_authority(now=LONG_AGO).certificate_pem
            async with a_running_supervisor(operator, "b") as second:
                assert (await second.offer()).trust_bundle_pem == operator.bundle


async def test_enrolment_asks_for_no_certificate_and_discovery_is_not_there() -> None:
    async with an_operator() as operator, a_channel(operator.enrollment_port, None) as channel:
        assert await watch(channel).code() is grpc.StatusCode.UNIMPLEMENTED


def test_identities_of_tests_are_what_they_claim() -> None:
    assert a_pod("a") == SandboxIdentity(namespace="team-a", sandbox="a", pod_uid="uid-a")
