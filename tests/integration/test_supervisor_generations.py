"""Which generation a supervisor serves, over real TLS, while operator, services and disk misbehave."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import digest as digest_of
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.model.limits import KIB, MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.supervisor.exchange import Denied
from supervisor_middleware.supervisor.record import Defect
from supervisor_middleware.supervisor.store import FILE_NAME
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.fakes.echo_generations import AUTHORITY, SERVICE, STRANGER, a_generation, a_service, echo_stage
from tests.fakes.echo_service import EchoService, echo_binding, echo_manifest
from tests.fakes.operator_server import FakeOperator
from tests.fakes.supervisor_control import RunningSupervisor, a_supervisor, prepare_folder, told_by
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


async def test_a_supervisor_that_was_never_configured_refuses_traffic(tmp_path: Path, operator: FakeOperator) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: len(operator.hellos) == 1)
        assert supervisor.runtime.pin() is None
        assert not supervisor.runtime.is_ready
        assert operator.hellos[0].active_digest == ""


async def test_the_first_generation_is_served_and_reported(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        digest = await operator.offer(a_generation("A", a_service(service.port)))
        active = await operator.heard("active", digest)
        assert [(s.name, s.state) for s in active.services] == [("echo", pb.SERVICE_STATE_READY)]
        assert set(told_by(await supervisor.ask()).values()) == {"A"}
        kinds = [e.kind for e in supervisor.audited if isinstance(e, Changed)]
        assert kinds == [ChangeKind.CREDENTIALS_ISSUED, ChangeKind.GENERATION_ACTIVATED]


async def test_a_swap_under_load_never_mixes_generations_and_keeps_the_connection(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        digest = await operator.offer(a_generation("0", a_service(service.port)))
        await operator.heard("active", digest)
        seen: list[frozenset[str]] = []
        is_over = False

        async def load() -> None:
            while not is_over:
                seen.append(frozenset(told_by(await supervisor.ask()).values()))

        async with asyncio.TaskGroup() as clients:
            for _ in range(4):
                clients.create_task(load())
            for n in range(1, 9):
                digest = await operator.offer(a_generation(str(n), a_service(service.port)), sequence=n + 1)
                await operator.heard("active", digest)
            is_over = True
        assert {len(marks) for marks in seen} == {1}
        assert len(set(seen)) > 4
        assert supervisor.pool.opened == 1
        assert len(service.peers) == 1
        assert service.described == 1


async def test_a_service_that_is_down_keeps_last_known_good_until_it_comes_up(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        first = await operator.offer(a_generation("A", a_service(service.port)))
        await operator.heard("active", first)
        async with EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem) as other:
            other.manifest = None
            second = await operator.offer(
                a_generation("B", a_service(service.port), a_service(other.port, "other")), sequence=2
            )
            waiting = await operator.heard("not_ready", second)
            assert {s.name: s.state for s in waiting.services} == {
                "echo": pb.SERVICE_STATE_READY,
                "other": pb.SERVICE_STATE_UNREACHABLE,
            }
            assert set(told_by(await supervisor.ask()).values()) == {"A"}
            assert supervisor.keeper.is_waiting
            await eventually(lambda: other.described > 3)
            other.manifest = echo_manifest(echo_binding(max_body_bytes=1))
            waiting = await operator.heard("not_ready", second)
            assert pb.SERVICE_STATE_INCAPABLE in {s.state for s in waiting.services}
            other.manifest = echo_manifest()
            await operator.heard("active", second)
            assert told_by(await supervisor.ask()) == dict.fromkeys(("echo-1", "echo-2", "other-1", "other-2"), "B")
            assert len(service.peers) == 1
            waits = [
                e for e in supervisor.audited if isinstance(e, Changed) and e.kind is ChangeKind.GENERATION_WAITING
            ]
            assert len(waits) == 1


async def test_an_activation_deadline_ends_the_wait_and_on_error_decides(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        await operator.heard("active", await operator.offer(a_generation("A", a_service(service.port))))
        nowhere = a_service(1, "nowhere", deadline=timedelta(milliseconds=300))
        candidate = a_generation("B", a_service(service.port), nowhere)
        second = await operator.offer(candidate, sequence=2)
        await operator.heard("not_ready", second)
        active = await operator.heard("active", second)
        assert {s.name: s.state for s in active.services}["nowhere"] == pb.SERVICE_STATE_UNREACHABLE
        outcome = await supervisor.ask()
        assert isinstance(outcome, Denied)
        assert outcome.key == "nowhere-1"


async def test_without_a_generation_one_is_activated_at_once_and_the_service_retried(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    service.manifest = None
    generation = Generation(
        stages=(echo_stage("open", "A", on_error=OnError.FAIL_OPEN),), services=(a_service(service.port),)
    )
    async with a_supervisor(tmp_path, operator) as supervisor:
        digest = await operator.offer(generation)
        active = await operator.heard("active", digest)
        assert active.services[0].state == pb.SERVICE_STATE_UNREACHABLE
        assert told_by(await supervisor.ask()) == {}
        service.manifest = echo_manifest()
        active = await operator.heard("active", digest)
        assert active.services[0].state == pb.SERVICE_STATE_READY
        assert told_by(await supervisor.ask()) == {"open": "A"}


async def test_a_service_outage_does_not_block_an_unrelated_policy_change_and_is_reported(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        async with EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem) as other:
            services = (a_service(service.port), a_service(other.port, "other"))
            first = await operator.offer(a_generation("A", *services))
            await operator.heard("active", first)
            await supervisor.ask()
        lost = await operator.heard("active", first)
        assert {s.name: s.state for s in lost.services}["other"] == pb.SERVICE_STATE_UNREACHABLE
        await operator.heard("active", await operator.offer(a_generation("B", *services), sequence=2))
        assert supervisor.pool.opened == 2


async def test_the_epoch_of_an_operator_that_has_nothing_to_offer_is_kept_over_a_restart(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        digest = await operator.offer(a_generation("A", a_service(service.port)), epoch=7)
        await operator.heard("active", digest)
        await operator.send(pb.GenerationOffer(epoch=9))
        await eventually(lambda: _saved_epoch(supervisor) == 9)
    async with a_supervisor(tmp_path, operator) as supervisor:
        assert supervisor.keeper.rank.epoch == 9
        stale = await operator.offer(a_generation("B", a_service(service.port)), epoch=8)
        assert list((await operator.heard("rejected", stale)).reasons) == [pb.REJECTION_REASON_STALE]
        current = supervisor.runtime.current
        assert current is not None
        assert current.digest == digest


def _saved_epoch(supervisor: RunningSupervisor) -> int:
    record = supervisor.store.load().record
    return 0 if record is None else record.held.rank.epoch


async def test_a_lower_epoch_is_refused_and_changes_nothing(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        first = await operator.offer(a_generation("A", a_service(service.port)), epoch=7)
        await operator.heard("active", first)
        stale = await operator.offer(a_generation("B", a_service(service.port)), epoch=6, sequence=99)
        rejected = await operator.heard("rejected", stale)
        assert list(rejected.reasons) == [pb.REJECTION_REASON_STALE]
        assert set(told_by(await supervisor.ask()).values()) == {"A"}


async def test_a_malformed_generation_is_refused_for_good_and_across_a_restart(
    tmp_path: Path, operator: FakeOperator
) -> None:
    offer = pb.GenerationOffer(epoch=1, sequence=1, digest="sha256:" + "0" * 64, payload=b"{}")
    async with a_supervisor(tmp_path, operator) as supervisor:
        await operator.send(offer)
        assert list((await operator.heard("rejected")).reasons) == [pb.REJECTION_REASON_DIGEST_MISMATCH]
        await eventually(lambda: supervisor.persistence.is_saved)
    async with a_supervisor(tmp_path, operator):
        await eventually(lambda: len(operator.hellos) == 2)
        assert list(operator.hellos[1].rejected_digests) == [offer.digest]


async def test_last_known_good_is_served_before_any_contact_with_the_operator(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        digest = await operator.offer(a_generation("A", a_service(service.port)))
        await operator.heard("active", digest)
        await eventually(lambda: supervisor.persistence.is_saved)
    operator.addresses = operator.enrollment_addresses = ("127.0.0.1:1",)
    async with a_supervisor(tmp_path, operator) as supervisor:
        assert set(told_by(await supervisor.ask()).values()) == {"A"}
        assert supervisor.keeper.hello().active_digest == digest


async def test_a_full_disk_does_not_stop_a_generation_from_being_served(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    attempts = 0

    def full(path: Path, content: bytes) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise Unavailable(f"{path}: No space left on device")
        path.write_bytes(content)

    async with a_supervisor(tmp_path, operator, write=full) as supervisor:
        digest = await operator.offer(a_generation("A", a_service(service.port)))
        await operator.heard("active", digest)
        assert set(told_by(await supervisor.ask()).values()) == {"A"}
        await eventually(lambda: supervisor.persistence.is_saved)
        assert supervisor.store.load().record is not None


async def test_the_newest_offer_wins_over_one_that_is_being_prepared(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with (
        EchoService.serving(SERVICE, clients=AUTHORITY.certificate_pem) as slow,
        a_supervisor(tmp_path, operator) as supervisor,
    ):
        slow.answers.clear()
        await operator.heard("active", await operator.offer(a_generation("A", a_service(service.port))))
        slow_one = a_service(slow.port, "slow", timeout=timedelta(seconds=30))
        await operator.offer(a_generation("B", a_service(service.port), slow_one), sequence=2)
        await eventually(lambda: slow.described == 1)
        await operator.heard("active", await operator.offer(a_generation("C", a_service(service.port)), sequence=3))
        assert set(told_by(await supervisor.ask()).values()) == {"C"}
        await eventually(lambda: len(supervisor.pool.keys) == 1)


async def test_a_damaged_file_is_not_served_and_the_operator_offers_anew(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        digest = await operator.offer(a_generation("A", a_service(service.port)))
        await operator.heard("active", digest)
        await eventually(lambda: supervisor.persistence.is_saved)
    path = tmp_path / "state" / FILE_NAME
    path.write_bytes(path.read_bytes()[:-1])
    operator.newest = None
    async with a_supervisor(tmp_path, operator) as supervisor:
        assert supervisor.runtime.pin() is None
        await eventually(lambda: len(operator.hellos) == 2)
        assert operator.hellos[1].active_digest == ""
        assert operator.hellos[1].state_defect == pb.STATE_DEFECT_TRUNCATED
        (said,) = (e for e in supervisor.audited if isinstance(e, Changed) and e.kind is ChangeKind.STATE_DEFECTIVE)
        assert said.reason == Defect.TRUNCATED.value == supervisor.keeper.defect
        await operator.heard("active", await operator.offer(a_generation("A", a_service(service.port))))
        await eventually(lambda: supervisor.keeper.hello().defect is None)
    async with a_supervisor(tmp_path, operator):
        await eventually(lambda: len(operator.hellos) == 3)
        assert operator.hellos[2].state_defect == pb.STATE_DEFECT_UNSPECIFIED


async def test_the_next_address_is_tried_when_one_does_not_answer(tmp_path: Path, operator: FakeOperator) -> None:
    operator.addresses = ("127.0.0.1:1", "127.0.0.1:2", *operator.addresses)
    async with a_supervisor(tmp_path, operator) as supervisor:
        await operator.heard("active", await operator.offer(Generation()))
        assert supervisor.subscriber.is_connected


async def test_a_return_to_what_is_served_ends_the_wait_for_another(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        good = a_generation("A", a_service(service.port))
        await operator.heard("active", await operator.offer(good))
        waiting = await operator.offer(a_generation("B", a_service(1, "nowhere")), sequence=2)
        await operator.heard("not_ready", waiting)
        await operator.heard("active", await operator.offer(good, sequence=3))
        assert not supervisor.keeper.is_waiting
        assert supervisor.keeper.rank.sequence == 3


async def test_an_operator_that_comes_back_hears_what_is_served_and_what_waits(
    tmp_path: Path, operator: FakeOperator, service: EchoService
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        first = await operator.offer(a_generation("A", a_service(service.port)))
        await operator.heard("active", first)
        waiting = await operator.offer(a_generation("B", a_service(1, "nowhere")), sequence=2)
        await operator.heard("not_ready", waiting)
        supervisor.identity.refused()  # a new certificate means a new stream
        await eventually(lambda: len(operator.hellos) == 2)
        assert (operator.hellos[1].active_digest, operator.hellos[1].sequence) == (first, 2)
        await operator.heard("active", first)
        await operator.heard("not_ready", waiting)


@pytest.mark.parametrize("who", ["another authority's", "of another name"])
async def test_a_service_that_is_not_the_one_that_was_registered_is_shown_nothing(
    tmp_path: Path, operator: FakeOperator, who: str
) -> None:
    now, here = datetime.now(UTC), [ip_address("127.0.0.1")]
    impostor = (
        STRANGER.issue_server(ip_addresses=here, now=now)
        if who == "another authority's"
        else AUTHORITY.issue_server(dns_names=["other.test"], now=now)
    )
    async with (
        EchoService.serving(impostor, clients=AUTHORITY.certificate_pem) as other,
        a_supervisor(tmp_path, operator) as supervisor,
    ):
        digest = await operator.offer(a_generation("A", a_service(other.port)))
        active = await operator.heard("active", digest)
        assert [s.state for s in active.services] == [pb.SERVICE_STATE_UNREACHABLE]
        assert isinstance(await supervisor.ask(), Denied)
        assert other.peers == set()
        assert other.described == 0


async def test_content_is_never_sent_in_the_clear_to_a_service_that_was_registered_with_tls(
    tmp_path: Path, operator: FakeOperator
) -> None:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(65536))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server, a_supervisor(tmp_path, operator) as supervisor:
        port = server.sockets[0].getsockname()[1]
        await operator.heard("active", await operator.offer(a_generation("A", a_service(port))))
        assert isinstance(await supervisor.ask(), Denied)
        await eventually(lambda: bool(heard))
    assert heard.startswith(b"\x16\x03"), "a TLS handshake and nothing else"
    assert b"hello" not in heard
    assert b"PRI * HTTP/2" not in heard


async def test_the_largest_offer_arrives_and_is_answered(tmp_path: Path, operator: FakeOperator) -> None:
    payload = b" " * (MAX_STREAM_MESSAGE_BYTES - 64 * KIB)
    async with a_supervisor(tmp_path, operator):
        await operator.send(pb.GenerationOffer(epoch=1, sequence=1, digest=digest_of(payload), payload=payload))
        rejected = await operator.heard("rejected", digest_of(payload))
        assert list(rejected.reasons) == [pb.REJECTION_REASON_MALFORMED]
        assert len(operator.hellos) == 1
