"""Whom a supervisor believes and how it proves itself, over real TLS."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import grpc
import pytest

from supervisor_middleware.model.generation import Generation
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.fakes.echo_generations import AUTHORITY, SERVICE, STRANGER, a_generation, a_service
from tests.fakes.echo_service import EchoService
from tests.fakes.operator_server import FakeOperator
from tests.fakes.supervisor_control import a_supervisor, prepare_folder, told_by
from tests.pki.builders import an_identity
from tests.waiting import eventually


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[FakeOperator]:
    async with FakeOperator.serving(AUTHORITY, an_identity()) as running:
        prepare_folder(tmp_path, running)
        yield running


@pytest.fixture
async def service() -> AsyncIterator[EchoService]:
    async with EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem) as running:
        yield running


async def test_a_stranger_in_the_operators_place_gets_no_token_and_gives_no_policy(
    tmp_path: Path, operator: FakeOperator
) -> None:
    credentials = STRANGER.issue_operator(namespace="system", now=datetime.now(UTC))
    async with FakeOperator.serving(AUTHORITY, an_identity(), credentials=credentials) as stranger:
        await stranger.offer(Generation())
        async with a_supervisor(tmp_path, stranger) as supervisor:
            await asyncio.sleep(0.3)
            assert stranger.tokens == []
            assert supervisor.identity.credentials.value is None
    # Enrolled already, and then the stranger takes over discovery:
    stolen = AUTHORITY.issue_server(dns_names=["elsewhere.test"], now=datetime.now(UTC))
    async with FakeOperator.serving(AUTHORITY, an_identity(), credentials=stolen) as misnamed:
        await misnamed.offer(Generation())
        misnamed.enrollment_addresses = operator.enrollment_addresses
        async with a_supervisor(tmp_path, misnamed) as supervisor:
            await eventually(lambda: supervisor.identity.credentials.value is not None)
            await asyncio.sleep(0.3)
            assert misnamed.hellos == []
            assert supervisor.runtime.pin() is None


async def test_a_refused_token_is_tried_again_and_read_anew(tmp_path: Path, operator: FakeOperator) -> None:
    prepare_folder(tmp_path, operator, token="bad")
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: len(operator.tokens) > 1)
        assert supervisor.identity.credentials.value is None
        (tmp_path / "token").write_text("good\n")
        await eventually(lambda: len(operator.hellos) == 1)


async def test_an_identity_that_the_operator_refuses_is_enrolled_anew(tmp_path: Path, operator: FakeOperator) -> None:
    operator.refusal = operator.renewal_refusal = grpc.StatusCode.UNAUTHENTICATED
    async with a_supervisor(tmp_path, operator):
        await eventually(lambda: len(operator.tokens) > 1)
        assert set(operator.renewals) == {operator.identity}
        operator.refusal = None
        await eventually(lambda: len(operator.hellos) == 1)


async def test_renewed_credentials_open_a_new_channel_and_drain_the_old_one(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        await operator.heard("active", await operator.offer(a_generation("A", a_service(service.port))))
        before, first = supervisor.pool.keys, supervisor.runtime.current
        pinned = supervisor.runtime.pin()
        assert pinned is not None
        with pinned:
            supervisor.identity.refused()
            await eventually(lambda: supervisor.runtime.current is not first)
            await asyncio.sleep(0.1)
            assert supervisor.pool.opened == 2
            assert before < supervisor.pool.keys
        assert not before & supervisor.pool.keys
        assert set(told_by(await supervisor.ask()).values()) == {"A"}
        await eventually(lambda: len(operator.hellos) == 2)


async def test_a_trust_bundle_alone_is_installed_and_acknowledged_by_a_new_stream(
    tmp_path: Path, operator: FakeOperator
) -> None:
    both = AUTHORITY.certificate_pem + STRANGER.certificate_pem
    async with a_supervisor(tmp_path, operator):
        await eventually(lambda: len(operator.hellos) == 1)
        await operator.send(pb.GenerationOffer(trust_bundle_pem=both, trust_bundle_digest=bundle_digest(both)))
        await eventually(lambda: len(operator.hellos) > 1)
        assert operator.hellos[-1].trust_bundle_digest == bundle_digest(both)
        assert (tmp_path / "bundle.pem").read_bytes() == both


async def test_a_trust_bundle_of_an_operator_that_lost_its_lease_is_not_believed(
    tmp_path: Path, operator: FakeOperator
) -> None:
    def bundle(epoch: int, *authorities: Authority) -> pb.GenerationOffer:
        pem = b"".join(a.certificate_pem for a in authorities)
        return pb.GenerationOffer(epoch=epoch, trust_bundle_pem=pem, trust_bundle_digest=bundle_digest(pem))

    async with a_supervisor(tmp_path, operator):
        await operator.heard("active", await operator.offer(a_generation("A"), epoch=7))
        both = bundle(8, AUTHORITY, STRANGER)
        await operator.send(both)
        await eventually(lambda: operator.hellos[-1].trust_bundle_digest == both.trust_bundle_digest)
        # What the stale one says, with a generation or without, changes nothing.
        await operator.send(bundle(7, AUTHORITY))
        await asyncio.sleep(0.1)
        stale = await operator.offer(a_generation("B"), epoch=7, sequence=99)
        assert list((await operator.heard("rejected", stale)).reasons) == [pb.REJECTION_REASON_STALE]
        assert (tmp_path / "bundle.pem").read_bytes() == both.trust_bundle_pem


async def test_a_trust_bundle_that_is_none_is_rejected_and_the_old_one_stays(
    tmp_path: Path, operator: FakeOperator
) -> None:
    async with a_supervisor(tmp_path, operator):
        await operator.send(pb.GenerationOffer(trust_bundle_pem=b"nonsense", trust_bundle_digest="sha256:x"))
        rejected = await operator.heard("rejected")
        assert list(rejected.reasons) == [pb.REJECTION_REASON_TRUST_BUNDLE_INVALID]
        assert (tmp_path / "bundle.pem").read_bytes() == AUTHORITY.certificate_pem


async def test_a_certificate_for_another_sandbox_is_refused(tmp_path: Path, operator: FakeOperator) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: len(operator.hellos) == 1)
        before = supervisor.identity.credentials.value
        operator.identity = an_identity(sandbox="other")
        supervisor.identity.refused()
        await eventually(lambda: operator.renewals != [])
        await asyncio.sleep(0.1)
        assert supervisor.identity.credentials.value is before


async def test_a_certificate_buys_its_successor_without_a_token(tmp_path: Path, operator: FakeOperator) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: len(operator.hellos) == 1)
        before = supervisor.identity.credentials.value
        (tmp_path / "token").unlink()
        supervisor.identity.refused()
        await eventually(lambda: len(operator.hellos) == 2)
        after = supervisor.identity.credentials.value
        assert before is not None
        assert after is not None
        assert after.private_key_pem != before.private_key_pem
    assert operator.renewals == [operator.identity]
    assert operator.tokens == ["good"]


async def test_an_operator_that_knows_no_renewal_is_asked_with_the_token(
    tmp_path: Path, operator: FakeOperator
) -> None:
    operator.renewal_refusal = grpc.StatusCode.UNIMPLEMENTED
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: len(operator.hellos) == 1)
        supervisor.identity.refused()
        await eventually(lambda: len(operator.tokens) == 2)
        await eventually(lambda: len(operator.hellos) == 2)


async def test_an_operator_that_is_away_costs_no_token(tmp_path: Path, operator: FakeOperator) -> None:
    operator.renewal_refusal = grpc.StatusCode.UNAVAILABLE
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: len(operator.hellos) == 1)
        for expected in range(1, 4):
            supervisor.identity.refused()
            await eventually(partial(_reached, operator.renewals, expected))
        assert operator.tokens == ["good"]
        operator.renewal_refusal = None
        supervisor.identity.refused()
        await eventually(lambda: len(operator.hellos) == 2)


def _reached(renewals: list[SandboxIdentity], count: int) -> bool:
    return len(renewals) >= count
