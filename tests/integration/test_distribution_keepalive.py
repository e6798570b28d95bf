"""A connection that is gone without a word: each end finds out by its own pings, and no healthy one is ended by them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from supervisor_middleware.apps.standalone import run_standalone
from supervisor_middleware.model.generation import Rank
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.settings import StandaloneSettings
from supervisor_middleware.supervisor.activation import OfferedGeneration
from supervisor_middleware.supervisor.announcements import Announcer
from supervisor_middleware.supervisor.operator_channel import OPTIONS, Options
from supervisor_middleware.supervisor.pacing import Watched
from supervisor_middleware.supervisor.reports import Hello
from supervisor_middleware.supervisor.subscriber import Operator as Addressed
from supervisor_middleware.supervisor.subscriber import Subscriber
from supervisor_middleware.supervisor.trust import TrustBundle
from supervisor_middleware.wire.sockets import own_sockets
from tests.drills.relay import Network, a_network
from tests.fakes.supervisor_clock import QuickClock
from tests.integration.distributing import AUTHORITY, Operator, a_sealed, an_operator, credentials_of
from tests.pki.builders import TRUST_DOMAIN
from tests.waiting import eventually

ONE, TWO = a_sealed("one"), a_sealed("two")
BRISK: Final = (("grpc.keepalive_time_ms", 1000), ("grpc.http2.ping_timeout_ms", 2000))
# Whoever pings as often as here would else be sent away.
LENIENT: Final = (("grpc.http2.min_ping_interval_without_data_ms", 300),)
LONG: Final = 30.0
"""Seconds: more than a brisk end needs, less than either end in production, and than what gRPC does by itself."""


@dataclass
class Follower:
    """What a subscriber tells of offers, and whom it proves to be."""

    credentials: Watched[Credentials | None] = field(default_factory=lambda: Watched(credentials_of("a")))
    rank: Rank = field(default_factory=Rank)
    offered: list[str] = field(default_factory=list)

    def hello(self) -> Hello:
        return Hello(active_digest="", rank=self.rank, rejected_digests=(), trust_bundle_digest="", version="1.0.0")

    def offer(self, offered: OfferedGeneration) -> None:
        self.rank = offered.rank
        self.offered.append(offered.digest)

    def follow(self, epoch: int) -> None:
        """Of no interest here."""

    def refused(self) -> None:
        raise AssertionError("the certificate is good")


@pytest.fixture
def network() -> Iterator[Network]:
    with a_network() as made:
        yield made


@asynccontextmanager
async def following(folder: Path, *ports: int, options: Options = ()) -> AsyncIterator[tuple[Subscriber, Follower]]:
    """A supervisor's own subscriber, which knows the operator by these ports in turn."""
    (folder / "ca.crt").write_bytes(AUTHORITY.certificate_pem)
    follower = Follower()
    subscriber = Subscriber(
        Addressed(
            addresses=tuple(f"127.0.0.1:{port}" for port in ports),
            trust_domain=TRUST_DOMAIN,
            trust=TrustBundle(folder / "ca.crt"),
            options=tuple(dict((*OPTIONS, *options)).items()),
        ),
        following=follower,
        speaking=Announcer(subject="a", audit=lambda _: None),
        identity=follower,
        clock=QuickClock(),
        random=lambda: 0.5,
    )
    running = asyncio.create_task(subscriber.run())
    try:
        yield subscriber, follower
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def is_connected(operator: Operator) -> bool:
    return operator.discovery.view("uid-a", digest=ONE.digest).is_connected


def reconnects(operator: Operator) -> int:
    visits = operator.discovery.standing("uid-a").visits
    return 0 if visits is None else visits.reconnects


async def is_pinged_and_stays(network: Network, operator: Operator) -> None:
    """On a quiet stream nothing comes through but pings and what answers them."""
    before = network.passed
    await eventually(lambda: network.passed >= before + 4, seconds=LONG)
    assert is_connected(operator)
    assert reconnects(operator) == 0


async def test_the_operator_finds_out_by_itself_that_a_supervisor_is_gone_without_a_word(
    network: Network, tmp_path: Path
) -> None:
    async with an_operator(options=BRISK) as operator:
        await operator.publish({"uid-a": ONE})
        async with following(tmp_path, network.relay(operator.port)) as (subscriber, follower):
            await eventually(lambda: follower.offered == [ONE.digest])
            await is_pinged_and_stays(network, operator)
            network.cut()
            await eventually(lambda: not is_connected(operator), seconds=LONG)
            # Nobody told the supervisor, whose own pings are seldom.
            assert subscriber.is_connected
            assert operator.discovery.states() == {"not_connected": 1}
            await operator.publish({"uid-a": TWO})
            network.mend()
            await eventually(lambda: follower.offered == [ONE.digest, TWO.digest])
            assert reconnects(operator) == 1


async def test_a_supervisor_finds_out_by_itself_that_its_operator_is_gone_without_a_word_and_takes_another_way(
    network: Network, tmp_path: Path
) -> None:
    async with an_operator(options=LENIENT) as operator:
        await operator.publish({"uid-a": ONE})
        ways = network.relay(operator.port), operator.port
        async with following(tmp_path, *ways, options=BRISK) as (subscriber, follower):
            await eventually(lambda: follower.offered == [ONE.digest])
            await is_pinged_and_stays(network, operator)
            network.cut()
            await operator.publish({"uid-a": TWO})
            # The operator, whose own pings are seldom, believes that it is there, and that it was told.
            assert is_connected(operator)
            await eventually(lambda: follower.offered == [ONE.digest, TWO.digest], seconds=LONG)
            assert subscriber.is_connected
            assert is_connected(operator)
            assert reconnects(operator) == 1


async def test_each_end_hands_grpc_what_it_is_set_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else the numbers that both tests above replace, and others hold against each other, would be words."""
    served, dialled = list[dict[str, Any]](), list[dict[str, Any]]()
    serve, dial = grpc.aio.server, grpc.aio.secure_channel

    def server(*arguments: Any, **named: Any) -> grpc.aio.Server:
        served.append(dict(named["options"]))
        return serve(*arguments, **named)

    def channel(*arguments: Any, **named: Any) -> grpc.aio.Channel:
        dialled.append(dict(named["options"]))
        return dial(*arguments, **named)

    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        monkeypatch.setattr(grpc.aio, "server", server)
        monkeypatch.setattr(grpc.aio, "secure_channel", channel)
        async with following(tmp_path, operator.port) as (_, follower):
            await eventually(lambda: follower.offered == [ONE.digest])
    settings = StandaloneSettings(state=tmp_path / "state", enrollment_port=0, discovery_port=0, health_port=0)
    (tmp_path / "config").mkdir()
    running = asyncio.create_task(run_standalone(tmp_path / "config", settings))
    await eventually(lambda: len(served) == 2, seconds=LONG)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert {_keepalive(options) for options in served} == {(300_000, 20_000, 20_000, 1)}
    assert {_keepalive(options) for options in dialled} == {(300_000, 20_000, 20_000, None)}


async def test_the_kernel_asks_after_the_other_end_from_both(tmp_path: Path) -> None:
    """Of a real control plane, and of a real supervisor."""
    settings = StandaloneSettings(state=tmp_path / "state", enrollment_port=0, discovery_port=0, health_port=0)
    (tmp_path / "config").mkdir()
    ours = dict[bool, set[tuple[int, ...]]]()
    running = asyncio.create_task(run_standalone(tmp_path / "config", settings))
    try:
        await eventually(lambda: bool(_probed(is_listening=True)), seconds=LONG)
        ours[True] = _probed(is_listening=True)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    async with an_operator() as operator:
        await operator.publish({"uid-a": ONE})
        async with following(tmp_path, operator.port) as (_, follower):
            await eventually(lambda: follower.offered == [ONE.digest])
            ours[False] = _probed(is_listening=False)
    assert ours == {True: {(30, 10, 3)}, False: {(15, 5, 3)}}


def _probed(*, is_listening: bool) -> set[tuple[int, ...]]:
    found = set[tuple[int, ...]]()
    for each in own_sockets():
        with each:
            listens = bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            if listens is is_listening and each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
                found.add(tuple(each.getsockopt(socket.IPPROTO_TCP, o) for o in options))
    return found


def _keepalive(options: dict[str, Any]) -> tuple[int | None, ...]:
    names = "keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms", "keepalive_permit_without_calls"
    return tuple(options.get(f"grpc.{name}") for name in names)
