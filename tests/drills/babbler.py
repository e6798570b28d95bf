"""A supervisor that reports nonsense as fast as it can, for as long as it lives: `python -m tests.drills.babbler`.

Arguments: the operator's address and a directory with credentials. What it says begins with a hello and is random after
that: digests that nobody offered, states in no order, services that do not exist and ones that do, reports that are none.
"""

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio

from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.supervisor.operator_channel import open_operator_channel
from supervisor_middleware.wire.gen import distribution_pb2 as pb

WORD = "babble"
AGAIN = "again"
"""What it says, a line each time, when its stream ended and it comes back; for however long it was told to stay away."""
DISCOVERY = pb.DESCRIPTOR.services_by_name["GenerationDiscovery"].full_name


def nonsense(draw: random.Random, known: list[str]) -> Iterator[bytes]:
    """Without an end."""
    while True:
        digest = draw.choice([*known, f"sha256:{draw.randbytes(32).hex()}", WORD, ""])
        names = ["recorder", *(f"{WORD}-{draw.randrange(10**9)}" for _ in range(draw.randrange(200)))]
        services = [pb.ServiceStatus(name=n, state=draw.choice(_STATES)) for n in names]
        yield draw.choice(
            (
                pb.SupervisorReport(accepted=pb.Accepted(digest=digest)),
                pb.SupervisorReport(active=pb.Active(digest=digest, services=services)),
                pb.SupervisorReport(not_ready=pb.NotReady(digest=digest, services=services)),
                pb.SupervisorReport(rejected=pb.Rejected(digest=digest, reasons=_REASONS)),
                pb.SupervisorReport(hello=pb.Hello(version=WORD)),
            )
        ).SerializeToString()


_STATES = (pb.SERVICE_STATE_UNREACHABLE, pb.SERVICE_STATE_INCAPABLE, pb.SERVICE_STATE_UNSPECIFIED)
_REASONS = [pb.REJECTION_REASON_MALFORMED, pb.REJECTION_REASON_DIGEST_MISMATCH, pb.REJECTION_REASON_STALE]


async def _listen(call: Any, known: list[str]) -> None:
    while isinstance(data := await call.read(), bytes):
        known.append(pb.GenerationOffer.FromString(data).digest)
        del known[:-4]


async def _babble(channel: Any, draw: random.Random) -> None:
    call, known = channel.stream_stream(f"/{DISCOVERY}/Watch")(), list[str]()
    await call.write(pb.SupervisorReport(hello=pb.Hello(version=WORD, active_digest=WORD)).SerializeToString())
    listening = asyncio.ensure_future(_listen(call, known))
    try:
        for number, report in enumerate(nonsense(draw, known)):
            await call.write(report)
            if number == 20_000:
                await call.write(b"\xff" * 1000)
                return
    finally:
        listening.cancel()


async def _main(address: str, folder: Path) -> None:
    credentials, draw = read_credentials(folder), random.Random(1)
    if credentials is None:
        raise SystemExit(2)
    roots = credentials.trust_bundle_pem
    while True:
        channel = open_operator_channel(
            address, trust_domain="openshell.internal", roots_pem=roots, credentials=credentials
        )
        async with channel:
            try:
                await _babble(channel, draw)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.sleep(0.01)
            finally:
                print(AGAIN, flush=True)  # noqa: T201 - for whoever counts


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
