"""Supervisors by the dozen in one process: each with a certificate, a connection and the product's own `Subscriber`.

    with a_fleet(installation, certified(installation, sandboxes, namespace=namespace), operators=HOSTS) as fleet:
        fleet.members["agent-0"].active

They begin streams, back off and come back as the product does, and look at an offer by its rules. What they do not do is
ask services and serve traffic: an offer that could be run is said to run at once. Times are the machine's steady clock.
"""

import asyncio
import base64
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import yaml

from e2e.harness import OPERATOR_NAMESPACE, TRUST_DOMAIN, Installation, a_pod
from supervisor_middleware.apps.clock import SystemClock
from supervisor_middleware.model.generation import Rank
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.sources.cluster_authority import CA_SECRET
from supervisor_middleware.supervisor.activation import NOTHING_HELD, Held, OfferedGeneration, Refusal, examine
from supervisor_middleware.supervisor.announcements import Announcer
from supervisor_middleware.supervisor.pacing import Watched
from supervisor_middleware.supervisor.reports import Hello, Outbox, StateReport
from supervisor_middleware.supervisor.subscriber import Operator, Subscriber
from supervisor_middleware.supervisor.trust import TrustBundle

_END_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Offered:
    """One offer, as it came."""

    rank: Rank
    digest: str


@dataclass(slots=True)
class Member(SystemClock):
    """One of them: what its `Subscriber` works with, its clock too, and what became of it."""

    announcer: Announcer
    credentials: Watched[Credentials | None] = field(repr=False)
    bundle: str
    """Digest of the roots it believes."""
    active: str = ""
    rank: Rank = NOTHING_HELD.rank
    offered: list[Offered] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)
    """When it dialled an operator."""
    ends: list[float] = field(default_factory=list)
    """When a stream, or an attempt to have one, was over."""
    plans: list[float] = field(default_factory=list)
    """When it meant to dial again; on a busy machine it is later."""
    heard: dict[int, float] = field(default_factory=dict)
    """By epoch: when the operator that leads under it spoke first."""
    refusals: int = 0
    """How often its certificate was not taken."""

    # -------------------------------------------------------------------------------- what is offered (`Following`)

    def hello(self) -> Hello:
        """How a stream begins."""
        self.attempts.append(self.monotonic())
        return Hello(
            active_digest=self.active,
            rank=self.rank,
            rejected_digests=(),
            trust_bundle_digest=self.bundle,
            version="1.0.0",
        )

    def offer(self, offered: OfferedGeneration) -> None:
        """Run it, if it could be run."""
        self.heard.setdefault(offered.rank.epoch, self.monotonic())
        self.offered.append(Offered(offered.rank, offered.digest))
        found = examine(offered, held=Held(rank=self.rank))
        if isinstance(found, Refusal):
            self.announcer.refused(found)
            return
        self.rank, self.active = offered.rank, offered.digest
        self.announcer.accepted(offered.digest)
        self.announcer.active(offered.digest, ())

    def follow(self, epoch: int) -> None:
        """Take note of who leads."""
        self.heard.setdefault(epoch, self.monotonic())
        self.rank = max(self.rank, Rank(epoch=epoch))

    # ------------------------------------------------------------------------- what is said and shown, and how it waits

    @property
    def outbox(self) -> Outbox:
        """Reports to be sent (`Speaking`)."""
        return self.announcer.outbox

    def state(self) -> tuple[StateReport, ...]:
        """What a stream says after its hello (`Speaking`)."""
        return self.announcer.state()

    def refused(self) -> None:
        """The operator does not take the certificate (`Proving`)."""
        self.refusals += 1

    async def sleep(self, seconds: float) -> None:
        """As real ones do."""
        self.ends.append(self.monotonic())
        self.plans.append(self.ends[-1] + seconds)
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Standing:
    """What one runs (a digest), and how many offers it took to get there."""

    active: str
    offers: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of them, by the name of their sandbox."""

    members: Mapping[str, Member]

    def standing(self) -> Mapping[str, Standing]:
        """How each stands."""
        return {name: Standing(m.active, len(m.offered)) for name, m in self.members.items()}

    def moved(self, epoch: int) -> Mapping[str, float]:
        """When the operator of this epoch spoke first, of those to whom it did."""
        return {name: m.heard[epoch] for name, m in self.members.items() if epoch in m.heard}

    def attempts(self, *, since: float) -> Mapping[str, Sequence[float]]:
        """When each dialled an operator, since then."""
        return {name: [at for at in m.attempts if at >= since] for name, m in self.members.items()}

    def ends(self, *, since: float) -> Sequence[float]:
        """When a stream of somebody, the first since then, was over."""
        return sorted(next(at for at in m.ends if at >= since) for m in self.members.values())


def most_within(seconds: float, times: Iterable[float]) -> int:
    """The most of `times` that lie so close together."""
    ordered = sorted(times)
    return max((sum(first <= at <= first + seconds for at in ordered) for first in ordered), default=0)


def certified(
    installation: Installation, sandboxes: Mapping[str, Mapping[str, str]], *, namespace: str
) -> Mapping[str, Credentials]:
    """A Pod for each sandbox, with these labels, and a certificate of the cluster's root, as if it had enrolled."""
    pods = [a_pod(name, namespace=namespace, sandbox=name, labels=labels) for name, labels in sandboxes.items()]
    shown = 'go-template={{.metadata.name}} {{.metadata.uid}}{{"\\n"}}'
    created = installation.plane.kubectl("create", "-f", "-", "-o", shown, input=yaml.safe_dump_all(pods)).stdout
    root, roots = _root(installation), installation.trust_bundle().read_bytes()
    return {
        name: _certified(SandboxIdentity(namespace=namespace, sandbox=name, pod_uid=uid), root, roots)
        for name, uid in map(str.split, created.splitlines())
    }


def _certified(identity: SandboxIdentity, root: Authority, roots: bytes) -> Credentials:
    key, request = new_key_and_csr()
    issued = root.issue_supervisor(request, identity=identity, now=datetime.now(UTC))
    return Credentials(
        certificate_chain_pem=issued.certificate_chain_pem, private_key_pem=key, trust_bundle_pem=roots
    )


def _root(installation: Installation) -> Authority:
    data = installation.get("secret", CA_SECRET, namespace=OPERATOR_NAMESPACE)["data"]
    certificate, key = (base64.b64decode(data[part]) for part in ("tls.crt", "tls.key"))
    return Authority.load(certificate, SecretBytes(key), trust_domain=TRUST_DOMAIN, now=datetime.now(UTC))


@contextmanager
def a_fleet(
    installation: Installation, certificates: Mapping[str, Credentials], *, operators: Iterable[str]
) -> Iterator[Fleet]:
    """Connect them to whichever of `operators` (hosts) leads, and keep them connected until the end of the block."""
    where = Operator(
        addresses=tuple(f"{host}:{installation.discovery_port}" for host in operators),
        trust_domain=TRUST_DOMAIN,
        trust=TrustBundle(installation.trust_bundle()),
    )
    fleet = Fleet({name: _member(name, credentials) for name, credentials in certificates.items()})

    async def run() -> None:
        await asyncio.gather(*(_follow(where, member) for member in fleet.members.values()))

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fleet", daemon=True)
    thread.start()
    running = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        yield fleet
    finally:
        if running.done():
            running.result()  # nobody of the fleet gives up
        running.cancel()
        asyncio.run_coroutine_threadsafe(_settled(), loop).result(_END_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _member(name: str, credentials: Credentials) -> Member:
    return Member(
        Announcer(subject=name, audit=lambda _: None),
        Watched(credentials),
        bundle_digest(credentials.trust_bundle_pem),
    )


async def _follow(where: Operator, member: Member) -> None:
    await Subscriber(
        where, following=member, speaking=member, identity=member, clock=member, random=random.random
    ).run()


async def _settled() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
