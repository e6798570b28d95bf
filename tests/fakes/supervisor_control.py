"""The supervisor's control side, wired as an app wires it, over a folder and a fake operator.

async with a_supervisor(folder, operator) as supervisor:
    await operator.heard("active")
    await supervisor.ask()
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from supervisor_middleware.audit.events import Event
from supervisor_middleware.pki.spiffe import supervisor_id
from supervisor_middleware.supervisor.announcements import Announcer
from supervisor_middleware.supervisor.connections import Pool
from supervisor_middleware.supervisor.describe import GrpcDescriber
from supervisor_middleware.supervisor.enrollment import Enroller
from supervisor_middleware.supervisor.exchange import Allowed, Outcome, Request, Whole
from supervisor_middleware.supervisor.identity import Identity
from supervisor_middleware.supervisor.identity import Surroundings as IdentitySurroundings
from supervisor_middleware.supervisor.keeper import Keeper
from supervisor_middleware.supervisor.keeping import Surroundings
from supervisor_middleware.supervisor.persistence import Persistence
from supervisor_middleware.supervisor.preparation import Preparer
from supervisor_middleware.supervisor.renewal import Renewer
from supervisor_middleware.supervisor.runtime import Evaluator, Runtime
from supervisor_middleware.supervisor.store import Writer, open_store
from supervisor_middleware.supervisor.subscriber import Operator, Subscriber
from supervisor_middleware.supervisor.trust import TrustBundle
from tests.fakes.operator_server import FakeOperator
from tests.fakes.supervisor_clock import QuickClock
from tests.pki.builders import TRUST_DOMAIN
from tests.supervisor.builders import CONTEXT, target


class RunningSupervisor:
    """What tests look at and ask through."""

    def __init__(self, folder: Path, operator: FakeOperator, *, write: Writer | None) -> None:
        self.clock = QuickClock()
        self.audited = list[Event]()
        self.pool = Pool()
        self.runtime = Runtime()
        trust = TrustBundle(folder / "bundle.pem")
        owner = supervisor_id(TRUST_DOMAIN, namespace=operator.identity.namespace, sandbox=operator.identity.sandbox)
        self.store = open_store(folder / "state", owner=str(owner), write=write)
        self.announcer = Announcer(subject=str(owner), audit=self.audited.append)
        self.persistence = Persistence(self.store, clock=self.clock, random=lambda: 0.5)
        self.identity = Identity(
            IdentitySurroundings(
                directory=folder / "identity",
                enroller=Enroller(
                    addresses=operator.enrollment_addresses,
                    trust_domain=TRUST_DOMAIN,
                    trust=trust,
                    owner=str(owner),
                    token_file=folder / "token",
                ),
                renewer=Renewer(
                    addresses=operator.addresses, trust_domain=TRUST_DOMAIN, trust=trust, owner=str(owner)
                ),
                trust=trust,
                audit=self.audited.append,
                clock=self.clock,
                random=lambda: 0.5,
            )
        )
        self.keeper = Keeper(
            Surroundings(
                runtime=self.runtime,
                preparation=Preparer(
                    pool=self.pool,
                    describer=GrpcDescriber(),
                    evaluator=Evaluator(builtins={}, clock=self.clock.monotonic),
                ),
                saving=self.persistence,
                credentials=self.identity.credentials,
                trust_bundle_digest=trust.digest,
                announcer=self.announcer,
                clock=self.clock,
                random=lambda: 0.5,
                version="test",
            )
        )
        self.subscriber = Subscriber(
            Operator(addresses=operator.addresses, trust_domain=TRUST_DOMAIN, trust=trust),
            following=self.keeper,
            speaking=self.announcer,
            identity=self.identity,
            clock=self.clock,
            random=lambda: 0.5,
        )

    async def ask(self) -> Outcome | None:
        """One request through whatever is served; None: traffic is refused."""
        pinned = self.runtime.pin()
        if pinned is None:
            return None
        with pinned as prepared:
            request = Request(context=CONTEXT, target=target(), headers=(), body=Whole(b"hello"))
            return await prepared.evaluate(prepared.chain_for("api.example.com"), request)


def told_by(outcome: Outcome | None) -> Mapping[str, str]:
    """Which config each stage was asked with, by the stage's key."""
    assert isinstance(outcome, Allowed), outcome
    return {key: values["generation"] for key, values in outcome.metadata.items()}


def prepare_folder(folder: Path, operator: FakeOperator, *, token: str = "good") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bundle.pem").write_bytes(operator.authority.certificate_pem)
    (folder / "token").write_text(token)


@asynccontextmanager
async def a_supervisor(
    folder: Path, operator: FakeOperator, *, write: Writer | None = None
) -> AsyncIterator[RunningSupervisor]:
    supervisor = RunningSupervisor(folder, operator, write=write)
    supervisor.identity.load()
    await supervisor.keeper.restore(supervisor.store.load())
    loops = (supervisor.identity, supervisor.keeper, supervisor.persistence, supervisor.subscriber)
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    try:
        yield supervisor
    finally:
        failed = [t.exception() for t in tasks if t.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        supervisor.runtime.stop()
        await supervisor.pool.close()
        supervisor.store.close()
        assert failed == []
