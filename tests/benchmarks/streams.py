"""A supervisor's stream without the supervisor: it takes whatever is offered, and says so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from e2e.harness import LOOPBACK, TRUST_DOMAIN, Installation
from supervisor_middleware.model.generation import Rank
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.supervisor.enrollment import Enroller
from supervisor_middleware.supervisor.messages import decode_offer, encode_report
from supervisor_middleware.supervisor.operator_channel import open_operator_channel
from supervisor_middleware.supervisor.reports import Accepted, Active, Hello
from supervisor_middleware.supervisor.trust import TrustBundle
from supervisor_middleware.wire.gen.distribution_pb2_grpc import GenerationDiscoveryStub
from tests.benchmarks.cluster import Client


class Stream:
    """What is offered to one sandbox. An offer that nobody awaits is a surprise."""

    def __init__(self) -> None:
        self.surprises = 0
        self.first = asyncio.Event()
        self._awaited: asyncio.Event | None = None

    @asynccontextmanager
    async def awaited(self) -> AsyncIterator[asyncio.Event]:
        """What is set at the next offer."""
        self._awaited = event = asyncio.Event()
        yield event
        self._awaited = None

    async def follow(self, call: Any) -> None:
        """Until cancelled."""
        while True:
            offer = decode_offer(await call.read())
            if offer.generation is None:
                continue
            for report in (
                Accepted(digest=offer.generation.digest),
                Active(digest=offer.generation.digest, services=()),
            ):
                await call.write(encode_report(report))
            if not self.first.is_set():
                self.first.set()
            elif self._awaited is None or self._awaited.is_set():
                self.surprises += 1
            else:
                self._awaited.set()


@asynccontextmanager
async def opened(
    installation: Installation, client: Client, *, namespace: str, sandbox: str, pod: str
) -> AsyncIterator[Stream]:
    """A stream that has its first offer, with a certificate for a token of that Pod."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": ["supervisor-middleware"],
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod},
        },
    }
    token = await client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", request)
    bundle = installation.trust_bundle()
    with TemporaryDirectory() as folder:
        (Path(folder) / "token").write_text(token["status"]["token"])
        enroller = Enroller(
            addresses=(f"{LOOPBACK}:{installation.enrollment_port}",),
            trust_domain=TRUST_DOMAIN,
            trust=TrustBundle(bundle),
            owner=f"spiffe://{TRUST_DOMAIN}/ns/{namespace}/sandbox/{sandbox}",
            token_file=Path(folder) / "token",
        )
        credentials = await enroller.enroll(attempt=0)
    roots = bundle.read_bytes()
    address = f"{LOOPBACK}:{installation.discovery_port}"
    channel = open_operator_channel(address, trust_domain=TRUST_DOMAIN, roots_pem=roots, credentials=credentials)
    async with channel:
        call: Any = GenerationDiscoveryStub(channel).Watch(None)
        hello = Hello(
            active_digest="",
            rank=Rank(epoch=0),
            rejected_digests=(),
            trust_bundle_digest=bundle_digest(roots),
            version="1.0.0",
        )
        await call.write(encode_report(hello))
        stream = Stream()
        following = asyncio.create_task(stream.follow(call))
        async with asyncio.timeout(60):
            await stream.first.wait()
        try:
            yield stream
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
