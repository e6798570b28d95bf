"""A thousand supervisors enrol at once: nobody for good in vain, and nobody else notices.

They are the product's own, over real TLS, all from one host: the worst there is for whoever shares turns fairly.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from supervisor_middleware.apps.clock import SystemClock
from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.distribution.ledger import State
from supervisor_middleware.distribution.turns import AT_WORK
from supervisor_middleware.distribution.watch import Patience
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.spiffe import SandboxIdentity, supervisor_id
from supervisor_middleware.supervisor.enrollment import Enroller
from supervisor_middleware.supervisor.identity import Identity, Surroundings
from supervisor_middleware.supervisor.operator_channel import Busy
from supervisor_middleware.supervisor.renewal import Renewer
from supervisor_middleware.supervisor.trust import TrustBundle
from tests.integration.distributing import (
    AUTHORITY,
    Operator,
    Supervisor,
    a_pod,
    a_running_supervisor,
    a_sealed,
    an_operator,
    credentials_of,
    renew,
)
from tests.pki.builders import TRUST_DOMAIN
from tests.waiting import eventually

THOUSAND: Final = 1000
MANY: Final = 50
MOST_ATTEMPTS: Final = 12
ISSUED: Final = ChangeKind.CREDENTIALS_ISSUED
PATIENCE: Final = 120.0
"""Of the test: all of them, and the operator, are one process."""


class Reviewer:
    """Knows every token, and answers none while it is closed; counts."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.reviewed = Counter[str]()
        self.under_way = self.most_under_way = 0

    async def review(self, token: str, *, holder: Callable[[], str]) -> SandboxIdentity:
        del holder
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.opened.wait()
            self.reviewed[token] += 1
            return a_pod(token)
        finally:
            self.under_way -= 1

    async def vouch(self, identity: SandboxIdentity) -> None:
        """Everybody lives."""


class Counting:
    """The product's `Enroller`, with its attempts counted."""

    def __init__(self, enroller: Enroller) -> None:
        self._enroller = enroller
        self.owner, self.can_enroll, self.attempts, self.refusals = enroller.owner, True, 0, 0

    async def enroll(self, *, attempt: int) -> Credentials:
        self.attempts += 1
        try:
            return await self._enroller.enroll(attempt=attempt)
        except Busy:
            self.refusals += 1
            raise

    def settled(self, credentials: Credentials) -> None:
        self._enroller.settled(credentials)


class Herd:
    """All of them."""

    def __init__(self, operator: Operator, folder: Path) -> None:
        (folder / "trust.crt").write_bytes(AUTHORITY.certificate_pem)
        self._trust = TrustBundle(folder / "trust.crt")
        self._operator, self._folder = operator, folder
        self.enrollers = [self._enroller(f"agent-{number}") for number in range(THOUSAND)]
        self.identities = [self._identity(enroller) for enroller in self.enrollers]

    async def run(self) -> None:
        """Until cancelled, as supervisors do."""
        await asyncio.gather(*(identity.run() for identity in self.identities))

    def certificates(self) -> list[Credentials]:
        return [held for identity in self.identities if (held := identity.credentials.value) is not None]

    def _enroller(self, name: str) -> Counting:
        token = self._folder / f"{name}.token"
        token.write_text(name)
        enroller = Enroller(
            addresses=(f"127.0.0.1:{self._operator.enrollment_port}",),
            trust_domain=TRUST_DOMAIN,
            trust=self._trust,
            owner=str(supervisor_id(TRUST_DOMAIN, namespace="team-a", sandbox=name)),
            token_file=token,
        )
        return Counting(enroller)

    def _identity(self, enroller: Counting) -> Identity:
        address = f"127.0.0.1:{self._operator.port}"
        renewer = Renewer(addresses=(address,), trust_domain=TRUST_DOMAIN, trust=self._trust, owner=enroller.owner)
        return Identity(
            Surroundings(
                directory=self._folder / enroller.owner.rpartition("/")[2],
                enroller=enroller,
                renewer=renewer,
                trust=self._trust,
                audit=lambda _: None,
                clock=SystemClock(),
                random=random.random,
            )
        )


async def test_a_thousand_that_enrol_at_once_all_get_one_certificate_and_keep_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thousand machines and the operator are one process here: what takes their time is mostly the others' handshakes.
    monkeypatch.setattr("supervisor_middleware.supervisor.enrollment.ENROLL_TIMEOUT", PATIENCE)
    monkeypatch.setattr("tests.integration.distributing.WAIT", PATIENCE)
    patience = Patience(sandbox=timedelta(seconds=PATIENCE))
    async with an_operator(patience=patience) as operator, a_running_supervisor(operator, "other") as other:
        await _serves(operator, other, "before")
        operator.enrollment._reviewer = reviewer = Reviewer()
        herd = Herd(operator, tmp_path)
        running = asyncio.create_task(herd.run())
        try:
            await eventually(lambda: sum(e.refusals for e in herd.enrollers) >= MANY, seconds=PATIENCE)
            # All turns are taken, and all places to wait in.
            assert reviewer.under_way == AT_WORK
            await _serves(operator, other, "full")
            reviewer.opened.set()
            await eventually(lambda: len(herd.certificates()) > THOUSAND / 10, seconds=PATIENCE)
            await _serves(operator, other, "busy")
            assert len(herd.certificates()) < THOUSAND, "others were served while many still waited"
            await eventually(lambda: len(herd.certificates()) == THOUSAND, seconds=PATIENCE)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert reviewer.most_under_way == AT_WORK
    assert set(reviewer.reviewed.values()) == {1}
    issued = Counter(e.subject for e in operator.audited if isinstance(e, Changed) and e.kind is ISSUED)
    assert len(issued) == THOUSAND
    assert set(issued.values()) == {1}
    assert len({held.leaf.serial_number for held in herd.certificates()}) == THOUSAND
    attempts = [enroller.attempts for enroller in herd.enrollers]
    assert max(attempts) <= MOST_ATTEMPTS
    assert sum(attempts) <= 3 * THOUSAND


async def _serves(operator: Operator, other: Supervisor, what: str) -> None:
    """A change reaches a stream and is answered, and a certificate is renewed."""
    sealed = a_sealed(what)
    await operator.publish({"uid-other": sealed})
    while (await other.offer()).digest != sealed.digest:
        pass
    await other.runs(sealed.digest)
    await eventually(
        lambda: operator.discovery.view("uid-other", digest=sealed.digest).state is State.ACTIVE, seconds=PATIENCE
    )
    await renew(operator, new_key_and_csr()[1], credentials_of(f"renews-{what}"))
