"""What figures of distribution are taken of: an operator on a real API server, a fleet of supervisors, and the floor."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from e2e.harness import LOOPBACK, OPERATOR_NAMESPACE, TRUST_DOMAIN, Installation, a_pod
from e2e.objects import Document, a_policy, an_entry
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.sources.cluster_authority import CA_SECRET
from tests.benchmarks.cluster import Client, a_namespace, at_once, client_of, installed, pid_of
from tests.benchmarks.distribution_fleet import Arrival, Certificate, Fleet, Floor, a_fleet, a_floor
from tests.benchmarks.distribution_operator import VARIABLE, Notes

FLEET: Final = "fleet"
OTHERS: Final = "others"
BARE: Final = "bare"
"""Groups of streams: those of the policy that is changed, those of other policies, and those to the floor."""
AT_ONCE: Final = 1_000
_TAKEN_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.005
_STAGES, _HOSTS = 5, 30


@dataclass(slots=True)
class Stage:
    """Everything the figures are taken of."""

    installation: Installation
    client: Client
    authority: Authority
    fleet: Fleet
    floor: Floor
    notes: Notes
    certificates: list[Certificate] = field(default_factory=list)
    """The fleet's."""
    edits: int = 0
    writes: int = 0
    running: str = ""
    size: int = 0

    @property
    def pid(self) -> int:
        """The operator's process."""
        return pid_of(self.installation)

    @property
    def address(self) -> str:
        """Where supervisors find the operator."""
        return f"{LOOPBACK}:{self.installation.discovery_port}"

    async def sandboxes(self, namespace: str, numbers: range) -> list[Certificate]:
        """Pods, and a certificate for each."""
        found: list[Certificate] = []

        async def one(number: int) -> None:
            pod = a_pod(f"pod-{number}", namespace=namespace, sandbox=f"sandbox-{number}", labels=labels_of(number))
            uid = (await self.client.apply(pod))["metadata"]["uid"]
            identity = SandboxIdentity(namespace=namespace, sandbox=f"sandbox-{number}", pod_uid=uid)
            key, request = new_key_and_csr()
            issued = self.authority.issue_supervisor(request, identity=identity, now=datetime.now(UTC))
            found.append((issued.certificate_chain_pem.decode(), key.reveal().decode()))

        await at_once(16, numbers, one)
        return found

    async def certify(self, count: int) -> None:
        """Have `count` supervisors of the fleet in all, to be connected."""
        known = len(self.certificates)
        self.certificates += await self.sandboxes(FLEET, range(known, count))

    async def connect(self) -> float:
        """All of the fleet; how long until the operator took the last `active`."""
        began = time.monotonic()
        self.running = (await self._open(FLEET, self.address)).digest
        return await self.taken(self.running) - began

    async def connect_to_floor(self) -> float:
        """All of the fleet; how long until the last had answered."""
        began = time.monotonic()
        return (await self._open(BARE, self.floor.address)).at - began

    async def _open(self, group: str, address: str) -> Arrival:
        """A thousand at once. Of more at once some are told to come again, which these supervisors do not."""
        for first in range(0, len(self.certificates), AT_ONCE):
            await self.fleet.open(group, address, self.certificates[first : first + AT_ONCE])
            last = await self.fleet.arrived(group)
        return last

    async def change(self) -> float:
        """Change the fleet's policy; from the API server's answer to the last `active` taken."""
        self.edits += 1
        await self.client.apply(fleet_policy("all", FLEET, edit=self.edits))
        answered = time.monotonic()
        arrival = await self.fleet.arrived(FLEET, beyond=self.running)
        self.running, self.size = arrival.digest, arrival.size
        return await self.taken(arrival.digest) - answered

    async def two_writes(self) -> float:
        """What a change has to be persisted by before it is published: one object made, another replaced, in turn."""
        self.writes += 1
        metadata = {"name": f"write-{self.writes}", "namespace": FLEET}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"n": "1"}}
        began = time.monotonic()
        await self.client.create(f"/api/v1/namespaces/{FLEET}/configmaps", body)
        path = f"/api/v1/namespaces/{FLEET}/configmaps/{metadata['name']}"
        await self.client.replace(path, {**body, "data": {"n": "2"}})
        return time.monotonic() - began

    async def taken(self, digest: str) -> float:
        """When the operator took the last report of the fleet's that says `digest` is active."""
        count, last = len(self.certificates), 0.0
        async with asyncio.timeout(_TAKEN_SECONDS):
            while count > 0:
                for at, of in self.notes.active():
                    count, last = (count - 1, at) if of == digest else (count, last)
                await asyncio.sleep(_POLL_SECONDS)
        return last


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Everything, until the end of the block; no sandbox and no policy yet."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        notes = folder / "notes"
        notes.touch()
        module = "tests.benchmarks.distribution_operator"
        installation = stack.enter_context(installed(environment={VARIABLE: str(notes)}, module=module))
        client = await stack.enter_async_context(client_of(installation.plane))
        for namespace in (FLEET, OTHERS):
            await client.apply(a_namespace(namespace))
            metadata = {"name": "default", "namespace": namespace}
            await client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        secret = (await client.get(f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/{CA_SECRET}"))["data"]
        files = folder / "ca.crt", folder / "ca.key"
        for file, part in zip(files, ("tls.crt", "tls.key"), strict=True):
            file.touch(mode=0o600)
            file.write_bytes(base64.b64decode(secret[part]))
        authority = Authority.load(
            files[0].read_bytes(),
            SecretBytes(files[1].read_bytes()),
            trust_domain=TRUST_DOMAIN,
            now=datetime.now(UTC),
        )
        fleet = await stack.enter_async_context(a_fleet(installation.trust_bundle().read_text()))
        floor = await stack.enter_async_context(a_floor(*files))
        yield Stage(installation, client, authority, fleet, floor, Notes(notes))


def labels_of(number: int) -> dict[str, str]:
    """What a policy of one sandbox selects."""
    return {"app": f"app-{number}"}


def fleet_policy(name: str, namespace: str, *, selector: dict[str, str] | None = None, edit: int = 0) -> Document:
    """A policy of some size; each edit is another generation."""
    entries = {
        f"config{i}": an_entry(
            order=10 * i,
            config={"mode": "redact"},
            include=[f"edit-{edit}.example.com", *(f"api-{j}.team-{i}.example.org" for j in range(_HOSTS - 1))],
        )
        for i in range(_STAGES)
    }
    return a_policy(name, namespace=namespace, selector=selector, **entries)
