import asyncio
import threading

import pytest

from supervisor_middleware.distribution.reports import record_of
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.generation import Rank
from supervisor_middleware.supervisor.activation import RejectionReason
from supervisor_middleware.supervisor.capability import ServiceState
from supervisor_middleware.supervisor.messages import decode_offer, encode_report
from supervisor_middleware.supervisor.pacing import Backoff, Watched, first_of, jittered
from supervisor_middleware.supervisor.persistence import Persistence
from supervisor_middleware.supervisor.record import Defect, Record
from supervisor_middleware.supervisor.reports import (
    Accepted,
    Active,
    Hello,
    NotReady,
    Outbox,
    Rejected,
    ServiceReport,
)
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.fakes.supervisor_clock import QuickClock


def test_backoff_grows_to_its_ceiling_and_starts_again() -> None:
    backoff = Backoff(random=lambda: 1.0, longest=1.0)
    assert [backoff.next() for _ in range(4)] == [0.2, 0.4, 0.8, 1.0]
    backoff.reset()
    assert backoff.next() == 0.2


def test_backoff_that_was_held_down_goes_on_growing_from_there() -> None:
    backoff = Backoff(random=lambda: 1.0, longest=4.0)
    assert [backoff.next(at_most=0.5) for _ in range(4)] == [0.2, 0.4, 0.5, 0.5]
    assert [backoff.next() for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]


def test_jitter_is_the_upper_half() -> None:
    assert [jittered(8, random=lambda r=r: r) for r in (0.0, 0.5, 1.0)] == [4, 6, 8]  # type: ignore[misc]


async def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    watched = Watched(1)
    change = watched.change
    watched.set(2)
    await change.wait()
    assert watched.value == 2
    assert not watched.change.is_set()


async def test_the_first_of_several_ends_the_others_and_its_error_is_raised() -> None:
    ended: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise Unavailable("first")

    with pytest.raises(Unavailable):
        await first_of(for_ever(), fails())
    assert ended == ["other"]


async def test_a_branch_that_is_cancelled_from_within_has_ended() -> None:
    async def cancelled_inside() -> None:
        raise asyncio.CancelledError

    await first_of(cancelled_inside(), asyncio.Event().wait())


class Disk:
    def __init__(self) -> None:
        self.saved: list[Record] = []
        self.is_full = False
        self.hangs: threading.Event | None = None

    def save(self, record: Record) -> None:
        if self.hangs is not None:
            self.hangs.wait(5)
        if self.is_full:
            raise Unavailable("full")
        self.saved.append(record)


async def test_the_newest_record_is_saved_once_the_disk_takes_it() -> None:
    disk, clock = Disk(), QuickClock()
    persistence = Persistence(disk, clock=clock, random=lambda: 0.5)
    running = asyncio.create_task(persistence.run())
    disk.is_full = True
    await persistence.save(Record(version="1"))
    await persistence.save(newest := Record(version="2"))
    assert not persistence.is_saved
    disk.is_full = False
    async with asyncio.timeout(5):
        while not persistence.is_saved:  # noqa: ASYNC110 - a property
            await asyncio.sleep(0.01)
    assert disk.saved == [newest]
    running.cancel()


async def test_a_hanging_disk_holds_nobody_up() -> None:
    disk = Disk()
    disk.hangs = threading.Event()
    persistence = Persistence(disk, clock=QuickClock(), random=lambda: 0.5)
    running = asyncio.create_task(persistence.run())
    await persistence.save(Record(version="1"))
    await persistence.save(newest := Record(version="2"))
    assert not persistence.is_saved
    disk.hangs.set()
    async with asyncio.timeout(5):
        while not persistence.is_saved:  # noqa: ASYNC110 - a property
            await asyncio.sleep(0.01)
    assert disk.saved[-1] is newest
    running.cancel()


async def test_a_newer_report_takes_the_place_of_an_older_one_of_its_kind() -> None:
    outbox = Outbox()
    taking = asyncio.ensure_future(outbox.take())
    await asyncio.sleep(0)
    first, ready = Accepted(digest="a"), Active(digest="a", services=())
    newer = Active(digest="a", services=(ServiceReport(name="s", state=ServiceState.READY),))
    outbox.put(first)
    assert await taking is first
    for report in (ready, Rejected(digest="b", reason=RejectionReason.STALE), newer):
        outbox.put(report)
    assert [type(await outbox.take()) for _ in range(2)] == [Rejected, Active]
    outbox.put(ready)
    outbox.restart(newer)
    assert await outbox.take() is newer


@pytest.mark.parametrize("state", ServiceState)
def test_every_state_of_a_service_has_its_number(state: ServiceState) -> None:
    report = NotReady(digest="d", services=(ServiceReport(name="s", state=state),))
    status = encode_report(report).not_ready.services[0]
    assert status.name == "s"
    assert pb.ServiceState.Name(status.state) == f"SERVICE_STATE_{state.name}"


@pytest.mark.parametrize("reason", RejectionReason)
def test_every_reason_has_its_number(reason: RejectionReason) -> None:
    message = encode_report(Rejected(digest="d", reason=reason)).rejected
    assert [pb.RejectionReason.Name(r) for r in message.reasons] == [f"REJECTION_REASON_{reason.name}"]


def test_a_hello_says_where_we_stand() -> None:
    hello = Hello(
        active_digest="a",
        rank=Rank(epoch=2**64 - 1, sequence=3),
        rejected_digests=("r",),
        trust_bundle_digest="t",
        version="1",
    )
    message = encode_report(hello).hello
    assert message == pb.Hello(
        active_digest="a", epoch=2**64 - 1, sequence=3, rejected_digests=["r"], trust_bundle_digest="t", version="1"
    )


@pytest.mark.parametrize("defect", [None, *Defect])
def test_every_defect_of_what_was_on_disk_is_told_by_name(defect: Defect | None) -> None:
    hello = Hello(
        active_digest="",
        rank=Rank(),
        rejected_digests=(),
        trust_bundle_digest="",
        version="1",
        defect=defect,
    )
    assert record_of("key", encode_report(hello).hello).defect == ("" if defect is None else defect.value)


def test_a_defect_of_a_later_version_is_none_we_know() -> None:
    later = pb.Hello.FromString(pb.Hello().SerializeToString() + b"\x38\x63")
    assert later.state_defect == 99
    assert record_of("key", later).defect == ""


def test_an_offer_may_hold_a_generation_a_bundle_or_both() -> None:
    alone = decode_offer(pb.GenerationOffer(trust_bundle_pem=b"x", trust_bundle_digest="d"))
    assert alone.generation is None
    assert alone.bundle is not None
    both = decode_offer(pb.GenerationOffer(epoch=1, sequence=2, digest="g", payload=b"{}", trust_bundle_pem=b"x"))
    assert both.bundle is not None
    assert both.generation is not None
    assert both.generation.rank == both.rank == Rank(epoch=1, sequence=2)
    assert decode_offer(pb.GenerationOffer(digest="g")).bundle is None
