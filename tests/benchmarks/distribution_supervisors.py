"""Many supervisors in one process, for benchmarks: each with a certificate and a connection of its own.

They keep to the protocol: hello, then for each offer its digest is checked and `active` is said, as by a supervisor
that reuses its connections and whose disk is prompt. What they do not do is serve traffic. Commands come as lines of JSON (an `Opening`, or the name of a group to close), and a
line goes out whenever all of a group run one generation, with the time on the machine's clock at which the last of
them had said so.
"""

import asyncio
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from grpc import aio

from supervisor_middleware.distribution.connections import raise_descriptor_limit
from supervisor_middleware.model.generation import Rank
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.supervisor.messages import encode_report
from supervisor_middleware.supervisor.operator_channel import open_operator_channel
from supervisor_middleware.supervisor.reports import Active, Hello
from supervisor_middleware.wire.gen import distribution_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["GenerationDiscovery"].full_name
_MAX_LINE: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class Group:
    """Streams to one operator, and what they run."""

    name: str
    streams: set[asyncio.Task[None]] = field(default_factory=set)
    running: Counter[str] = field(default_factory=Counter)
    encoded: dict[str, bytes] = field(default_factory=dict)

    def report(self, digest: str) -> bytes:
        """`active`, encoded once."""
        if digest not in self.encoded:
            active = encode_report(Active(digest=digest, services=())).SerializeToString()
            self.encoded = {digest: active} | dict(list(self.encoded.items())[-20:])
        return self.encoded[digest]

    def moved(self, before: str, after: str, *, size: int) -> None:
        """One of them runs another generation."""
        self.running[before] -= 1
        self.running[after] += 1
        if self.running[after] == len(self.streams):
            self.running = Counter({after: len(self.streams)})
            _tell(group=self.name, digest=after, at=time.monotonic(), size=size)

    async def close(self) -> None:
        """End all of them."""
        for stream in self.streams:
            stream.cancel()
        await asyncio.gather(*self.streams, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Open streams to `address`, for each certificate (and key) one."""

    group: str
    address: str
    trust_domain: str
    roots: str
    certificates: tuple[tuple[str, str], ...] = field(repr=False)


async def _follow(opening: Opening, group: Group, certificate: str, key: str) -> None:
    roots = opening.roots.encode()
    credentials = Credentials(
        certificate_chain_pem=certificate.encode(),
        private_key_pem=SecretBytes(key.encode()),
        trust_bundle_pem=roots,
    )
    channel = open_operator_channel(
        opening.address, trust_domain=opening.trust_domain, roots_pem=roots, credentials=credentials
    )
    hello = Hello(
        active_digest="",
        rank=Rank(epoch=0),
        rejected_digests=(),
        trust_bundle_digest=bundle_digest(roots),
        version="1.0.0",
    )
    async with channel:
        # Bytes as they are: offers of equal bytes are decoded by each, as by real supervisors, reports encoded once.
        method: Any = channel.stream_stream(f"/{SERVICE}/Watch", None, None)
        call = method()
        await call.write(encode_report(hello).SerializeToString())
        active = ""
        while isinstance(data := await call.read(), bytes):
            offer = pb.GenerationOffer.FromString(data)
            if not offer.digest:
                continue
            if offer.digest != f"sha256:{hashlib.sha256(offer.payload).hexdigest()}":
                raise AssertionError("an offer's digest is not its payload's")
            await call.write(group.report(offer.digest))
            group.moved(active, offer.digest, size=len(data))
            active = offer.digest
        raise AssertionError(f"a stream ended: {await call.code()} {await call.details()}")


async def _one(opening: Opening, group: Group, certificate: str, key: str) -> None:
    try:
        await _follow(opening, group, certificate, key)
    except (aio.AioRpcError, AssertionError, asyncio.InvalidStateError) as error:
        _tell(group=group.name, error=str(error)[:300])


def _tell(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _opening(command: Mapping[str, Any]) -> Opening:
    return Opening(**{**command, "certificates": tuple(map(tuple, command["certificates"]))})


async def _main() -> None:
    raise_descriptor_limit()
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    groups: dict[str, Group] = {}
    while line := await reader.readline():
        command = json.loads(line)
        if "close" in command:
            await groups.pop(command["close"]).close()
            _tell(closed=command["close"])
            continue
        opening = _opening(command)
        group = groups.setdefault(opening.group, Group(opening.group))
        for certificate, key in opening.certificates:
            group.streams.add(asyncio.create_task(_one(opening, group, certificate, key)))
    for group in groups.values():
        await group.close()


if __name__ == "__main__":
    asyncio.run(_main())
