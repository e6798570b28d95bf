"""Supervisors that are none: they speak the protocol, serve no traffic, and answer offers as a drill wants them to.

    with a_fleet(drill, {"sleeper": accepts_only}) as fleet:
        fleet["sleeper"].offered

They run in a thread of their own, each with a certificate and a connection of its own, and come back when a stream ends.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import grpc.aio
import yaml

from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.store import join_tokens, load_or_create_authority
from supervisor_middleware.supervisor.operator_channel import open_operator_channel
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.apps.rig import NAMESPACE, Rig
from tests.drills.drill import API_VERSION, Drill

TRUST_DOMAIN: Final = "openshell.internal"
DISCOVERY: Final = pb.DESCRIPTOR.services_by_name["GenerationDiscovery"].full_name
_LIFETIME: Final = timedelta(hours=1)
_PAUSE: Final = 0.2

Answer = Callable[["Fake", str], Sequence[pb.SupervisorReport]]
"""What one says to an offer of a digest."""


@dataclass(slots=True)
class Fake:
    """One of them. What it says in its hello is what it last was, or claims to be."""

    name: str
    credentials: Credentials = field(repr=False)
    answer: Answer = field(repr=False)
    offered: list[str] = field(default_factory=list)
    active: str = ""
    rejected: list[str] = field(default_factory=list)
    connections: int = 0
    _call: Any = None

    async def run(self, address: str) -> None:
        """For ever."""
        while True:
            channel = open_operator_channel(
                address,
                trust_domain=TRUST_DOMAIN,
                roots_pem=self.credentials.trust_bundle_pem,
                credentials=self.credentials,
            )
            try:
                await self._follow(channel)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the operator is away
            finally:
                await channel.close(None)
            await asyncio.sleep(_PAUSE)

    def cut(self) -> None:
        """End the stream; it comes back."""
        self._call.cancel()

    async def _follow(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.stream_stream(
            f"/{DISCOVERY}/Watch",
            request_serializer=pb.SupervisorReport.SerializeToString,
            response_deserializer=pb.GenerationOffer.FromString,
        )(None)
        hello = pb.Hello(version="1.0.0", active_digest=self.active, rejected_digests=self.rejected)
        await self._call.write(pb.SupervisorReport(hello=hello))
        self.connections += 1
        try:
            while isinstance(offer := await self._call.read(), pb.GenerationOffer):
                if offer.digest:
                    self.offered.append(offer.digest)
                    for report in self.answer(self, offer.digest):
                        await self._call.write(report)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # not the call was cancelled, but we are


def runs_it(fake: Fake, digest: str) -> Sequence[pb.SupervisorReport]:
    """As a good one does."""
    fake.active = digest
    active = pb.SupervisorReport(active=pb.Active(digest=digest))
    return (pb.SupervisorReport(accepted=pb.Accepted(digest=digest)), active)


def accepts_only(fake: Fake, digest: str) -> Sequence[pb.SupervisorReport]:
    """And never activates it."""
    return (pb.SupervisorReport(accepted=pb.Accepted(digest=digest)),)


def rejects(fake: Fake, digest: str) -> Sequence[pb.SupervisorReport]:
    """Whatever it is."""
    fake.rejected.append(digest)
    reasons = [pb.REJECTION_REASON_UNSUPPORTED]
    return (pb.SupervisorReport(rejected=pb.Rejected(digest=digest, reasons=reasons)),)


@dataclass(slots=True)
class Fleet(Mapping[str, Fake]):
    """All of them, by name."""

    fakes: Mapping[str, Fake]
    loop: asyncio.AbstractEventLoop

    def __getitem__(self, name: str) -> Fake:
        return self.fakes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fakes)

    def __len__(self) -> int:
        return len(self.fakes)

    def cut(self, name: str) -> None:
        """End its stream."""
        self.loop.call_soon_threadsafe(self.fakes[name].cut)


def join(rig: Rig, names: Sequence[str]) -> Mapping[str, Credentials]:
    """Make them known to the control plane, each with a certificate, as if it had enrolled."""
    rig.write(f"sandboxes-{names[0]}.yaml", yaml.safe_dump_all(map(_sandbox, names)))
    now = datetime.now(UTC)
    authority = load_or_create_authority(rig.state, trust_domain=TRUST_DOMAIN, now=now)
    key, csr = new_key_and_csr()
    found = dict[str, Credentials]()
    with join_tokens(rig.state) as tokens:
        for number, name in enumerate(names):
            secret = number.to_bytes(4) + name.encode().ljust(32, b".")
            token = tokens.issue(NAMESPACE, name, now=now, lifetime=_LIFETIME, secret=secret)
            identity = tokens.redeem(token, now)
            issued = authority.issue_supervisor(csr, identity=identity, now=now)
            found[name] = Credentials(
                certificate_chain_pem=issued.certificate_chain_pem,
                private_key_pem=key,
                trust_bundle_pem=authority.certificate_pem,
            )
    return found


@contextmanager
def a_fleet(drill: Drill, answers: Mapping[str, Answer]) -> Iterator[Fleet]:
    """Connect them, and keep them connected until the end of the block."""
    credentials = join(drill.rig, list(answers))
    loop = asyncio.new_event_loop()
    fleet = Fleet({n: Fake(n, credentials[n], answer) for n, answer in answers.items()}, loop)
    address = f"127.0.0.1:{drill.rig.control.environment['SMW_DISCOVERY_PORT']}"

    async def run() -> None:
        await asyncio.gather(*(fake.run(address) for fake in fleet.values()))

    thread = threading.Thread(target=loop.run_forever, name="fleet", daemon=True)
    thread.start()
    running = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        yield fleet
    finally:
        running.cancel()
        asyncio.run_coroutine_threadsafe(_settled(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _settled() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


def _sandbox(name: str) -> Mapping[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": API_VERSION, "kind": "Sandbox", "metadata": metadata}
