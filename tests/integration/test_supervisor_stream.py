"""When a supervisor comes back: after an end that is none of its faults, and when the operator asked for a pause."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import structlog.testing

from supervisor_middleware.supervisor.operator_channel import MAX_PAUSE
from supervisor_middleware.supervisor.pacing import BACKOFF_MAX, BACKOFF_MIN
from supervisor_middleware.supervisor.subscriber import RENEWED_PAUSE, TAKEOVER, TAKEOVER_PAUSE
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.fakes.echo_generations import AUTHORITY
from tests.fakes.operator_server import FakeOperator
from tests.fakes.supervisor_clock import QuickClock
from tests.fakes.supervisor_control import a_supervisor, prepare_folder
from tests.pki.builders import an_identity
from tests.waiting import eventually


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[FakeOperator]:
    async with FakeOperator.serving(AUTHORITY, an_identity()) as running:
        prepare_folder(tmp_path, running)
        yield running


@pytest.mark.parametrize(
    ("pushback", "pause"), [(40_000, 50.0), (86_400_000, MAX_PAUSE * 1.25)], ids=["as asked", "in bounds"]
)
async def test_a_busy_operator_is_left_alone_for_as_long_as_it_asks(
    tmp_path: Path, operator: FakeOperator, pushback: int, pause: float
) -> None:
    operator.refusal, operator.pushback = grpc.StatusCode.RESOURCE_EXHAUSTED, pushback
    async with a_supervisor(tmp_path, operator) as supervisor:
        # With a jitter of up to half as much again.
        await eventually(lambda: pause in supervisor.clock.slept)
        operator.refusal = None
        await eventually(lambda: len(operator.hellos) == 1)


async def test_a_stream_that_was_long_enough_is_begun_anew_without_a_word(
    tmp_path: Path, operator: FakeOperator
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: supervisor.subscriber.is_connected and len(operator.hellos) == 1)
        supervisor.clock.ahead += 3600
        with structlog.testing.capture_logs() as logs:
            await operator.end_streams()
            await eventually(lambda: RENEWED_PAUSE * 0.75 in supervisor.clock.slept)
            assert not [e for e in logs if "no stream" in e["event"]]
            operator.is_ending = False
            await eventually(lambda: len(operator.hellos) > 1)
        assert RENEWED_PAUSE * 0.75 in supervisor.clock.slept


async def test_one_that_ends_every_stream_at_once_is_not_asked_again_and_again(
    tmp_path: Path, operator: FakeOperator
) -> None:
    operator.is_ending = True
    async with a_supervisor(tmp_path, operator) as supervisor:
        await eventually(lambda: len(operator.hellos) > 3)
        assert max(supervisor.clock.slept) > RENEWED_PAUSE / 4
        assert RENEWED_PAUSE * 0.75 not in supervisor.clock.slept


async def test_whoever_takes_over_is_looked_for_often_and_an_operator_that_is_away_for_long_is_not(
    tmp_path: Path, operator: FakeOperator
) -> None:
    async with a_supervisor(tmp_path, operator) as supervisor:
        # Its own clock: other loops wait by the supervisor's.
        supervisor.subscriber._clock = clock = QuickClock()
        for epoch in (1, 2):
            operator.refusal, operator.is_ending = None, False
            await operator.send(pb.GenerationOffer(epoch=epoch))
            await eventually(lambda epoch=epoch: supervisor.keeper.rank.epoch == epoch)  # type: ignore[misc]
            clock.slept.clear()
            operator.refusal = grpc.StatusCode.UNAVAILABLE
            await operator.end_streams()
            await eventually(lambda: len(clock.slept) > 8)
            assert max(clock.slept) == TAKEOVER_PAUSE * 0.75, "with jitter"
            assert clock.slept[:2] == [TAKEOVER_PAUSE * 0.75, BACKOFF_MIN * 0.75], "everybody lost it at this moment"
            clock.ahead += TAKEOVER
            await eventually(lambda: clock.slept.count(BACKOFF_MAX * 0.75) > 1)
            assert TAKEOVER_PAUSE * 2 * 0.75 in clock.slept, "it grows from there"
