"""A thousand Pods that enrol at once with an operator on a real API server: how soon the last has its certificate.

Each has a connection and a token of its own; those that are told to come again do. The floor is a bare server that
answers the same clients at once, over the same TLS. Clients, operator and API server share the processors.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from grpc import aio

from e2e.harness import LOOPBACK, TRUST_DOMAIN, Installation, a_pod
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.settings import AUDIENCE
from supervisor_middleware.supervisor.operator_channel import asked_for, open_operator_channel, translated
from supervisor_middleware.supervisor.pacing import Backoff
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen.distribution_pb2_grpc import EnrollmentStub
from tests.benchmarks.cluster import (
    Client,
    a_namespace,
    at_once,
    client_of,
    installed,
    note,
    pid_of,
    processor_seconds,
)
from tests.benchmarks.enrollment_floor import a_floor_authority
from tests.benchmarks.figures import show

COUNT: Final = 1_000
_NAMESPACE: Final = "enrolling"
_CALL_SECONDS: Final = 30.0


async def run(count: int = COUNT) -> None:
    """The floor first."""
    async with AsyncExitStack() as stack:
        installation = stack.enter_context(installed())
        client = await stack.enter_async_context(client_of(installation.plane))
        note(f"{count} Pods, and a token for each")
        tokens = await _tokens(client, count)
        address, roots = await stack.enter_async_context(_floor())
        least, _ = await _enrol(tokens, address=address, roots=roots)
        used = processor_seconds(pid_of(installation))
        address = f"{LOOPBACK}:{installation.enrollment_port}"
        ours, attempts = await _enrol(tokens, address=address, roots=_roots(installation))
        used = processor_seconds(pid_of(installation)) - used
        show(f"enrollment_{count}_at_once", ours, "s")
        show(f"enrollment_{count}_at_once_floor", least, "s")
        show(f"enrollment_{count}_at_once_attempts_average", sum(attempts.values()) / count, "attempts")
        show(f"enrollment_{count}_at_once_attempts_max", max(attempts.values()), "attempts")
        show("enrollment_operator_processor_per_certificate", used / count * 1e3, "ms")


def _roots(installation: Installation) -> bytes:
    return installation.trust_bundle().read_bytes()


async def _tokens(client: Client, count: int) -> list[str]:
    await client.apply(a_namespace(_NAMESPACE))
    account = {"name": "default", "namespace": _NAMESPACE}
    await client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    found = list[str]()

    async def one(number: int) -> None:
        name = f"pod-{number}"
        await client.apply(a_pod(name, namespace=_NAMESPACE, sandbox=f"sandbox-{number}"))
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts/default/token"
        found.append((await client.create(path, request))["status"]["token"])

    await at_once(16, range(count), one)
    return found


async def _enrol(tokens: list[str], *, address: str, roots: bytes) -> tuple[float, Mapping[str, int]]:
    """All at once; seconds until the last has its certificate, and how often each had to ask."""
    # One key for all: what making keys costs is theirs, not the operator's.
    _, csr = new_key_and_csr()
    attempts = dict.fromkeys(tokens, 0)

    async def one(token: str) -> None:
        backoff = Backoff(random=random.random)
        while True:
            attempts[token] += 1
            try:
                await _ask(pb.EnrollRequest(csr_pem=csr, token=token), address=address, roots=roots)
            except Unavailable as error:
                await asyncio.sleep(max(backoff.next(), asked_for(error, random=random.random)))
            else:
                return

    began = time.monotonic()
    await asyncio.gather(*map(one, tokens))
    return time.monotonic() - began, attempts


async def _ask(request: pb.EnrollRequest, *, address: str, roots: bytes) -> None:
    channel = open_operator_channel(address, trust_domain=TRUST_DOMAIN, roots_pem=roots, credentials=None)
    try:
        await EnrollmentStub(channel).Enroll(request, timeout=_CALL_SECONDS)
    except aio.AioRpcError as error:
        raise translated(error, address=address) from None
    finally:
        await channel.close(None)


@asynccontextmanager
async def _floor() -> AsyncIterator[tuple[str, bytes]]:
    """Its address and its root."""
    own = a_floor_authority()
    with TemporaryDirectory() as folder:
        write_credentials(Path(folder) / "tls", own)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.benchmarks.enrollment_floor", str(Path(folder) / "tls")),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )
        try:
            if process.stdout is None:
                raise AssertionError("it has no pipe")
            port = int(await process.stdout.readline())
            yield f"{LOOPBACK}:{port}", own.trust_bundle_pem
        finally:
            process.terminate()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(run(*map(int, sys.argv[1:])))
