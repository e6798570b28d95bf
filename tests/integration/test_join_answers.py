"""A join whose answer never arrived costs no token: the same key asks again. Anybody else's key does not.

Over real TLS and real gRPC, with the ledger on disk; every operator here is a new process as far as joins go.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from supervisor_middleware.apps.clock import SystemClock
from supervisor_middleware.apps.joins import Joins
from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.pki.keys import new_key_and_csr
from supervisor_middleware.pki.pending_key import PENDING_KEY, PendingKey
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.pki.store import join_tokens
from supervisor_middleware.supervisor.enrollment import Enroller, TokenRefused
from supervisor_middleware.supervisor.identity import Identity, Surroundings
from supervisor_middleware.supervisor.renewal import Renewer
from supervisor_middleware.supervisor.trust import TrustBundle
from tests.drills.relay import Network, a_network
from tests.integration.distributing import AUTHORITY, Operator, an_operator, enroll, enrolment_refusal
from tests.pki.builders import TRUST_DOMAIN

OWNER = f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/agent"


class Reviewing(Joins):
    """Does something once a token is spent, before the answer is on its way."""

    then: Callable[[], None] = staticmethod(lambda: None)

    async def review(self, token: str, *, holder: Callable[[], str]) -> SandboxIdentity:
        identity = await super().review(token, holder=holder)
        self.then()
        return identity


@pytest.fixture
def network() -> Iterator[Network]:
    with a_network() as network:
        yield network


@asynccontextmanager
async def a_control_plane(state: Path) -> AsyncIterator[tuple[Operator, Reviewing]]:
    async def snapshot() -> Snapshot:
        return Snapshot(sandboxes=(Sandbox(namespace="team-a", name="agent"),))

    async with an_operator() as operator:
        joins = Reviewing(state, snapshot=snapshot, emit=operator.audited.append)
        operator.enrollment._reviewer = joins
        operator.renewal._vouching = joins
        yield operator, joins


def a_token(state: Path, folder: Path, *, lifetime: timedelta = timedelta(minutes=10)) -> str:
    with join_tokens(state) as tokens:
        token = tokens.issue("team-a", "agent", now=datetime.now(UTC), lifetime=lifetime, secret=b"s" * 32)
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(token)
    return token


def an_identity(folder: Path, *, port: int) -> Identity:
    """What a supervisor that keeps its state in `folder` begins with: after a crash, or at first."""
    folder.mkdir(exist_ok=True)
    (folder / "bundle.pem").write_bytes(AUTHORITY.certificate_pem)
    trust = TrustBundle(folder / "bundle.pem")
    enroller = Enroller(
        addresses=(f"127.0.0.1:{port}",),
        trust_domain=TRUST_DOMAIN,
        trust=trust,
        owner=OWNER,
        token_file=folder / "token",
        pending=PendingKey(folder / "identity" / PENDING_KEY),
    )
    renewer = Renewer(addresses=("127.0.0.1:1",), trust_domain=TRUST_DOMAIN, trust=trust, owner=OWNER)
    identity = Identity(
        Surroundings(
            directory=folder / "identity",
            enroller=enroller,
            renewer=renewer,
            trust=trust,
            audit=lambda _: None,
            clock=SystemClock(),
            random=lambda: 0.5,
        )
    )
    identity.load()
    return identity


def holds_a_certificate(folder: Path) -> bool:
    credentials = read_credentials(folder / "identity")
    return credentials is not None and str(credentials.spiffe_id) == OWNER


async def lose_the_answer(state: Path, folder: Path, network: Network) -> None:
    """The token is spent, and the network takes the answer with it."""
    async with a_control_plane(state) as (operator, joins):

        def cut() -> None:
            network.cut()
            network.mend()  # connections of before are reset: what was on its way is lost

        joins.then = cut
        identity = an_identity(folder, port=network.relay(operator.enrollment_port))
        with pytest.raises(Unavailable):
            await identity.attempt()
    assert not holds_a_certificate(folder)
    with join_tokens(state) as tokens:
        assert len(tokens.standing()) == 1


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_answer_that_the_network_lost_is_given_again_to_the_same_key(
    tmp_path: Path, network: Network, *, restarts: bool
) -> None:
    token = a_token(tmp_path / "state", tmp_path / "agent")
    await lose_the_answer(tmp_path / "state", tmp_path / "agent", network)
    assert (tmp_path / "agent" / "identity" / PENDING_KEY).exists()
    # A control plane that was restarted meanwhile knows it all the same.
    async with a_control_plane(tmp_path / "state") as (operator, _):
        thief = await enrolment_refusal(operator, new_key_and_csr()[1], token)
        assert thief.code() is grpc.StatusCode.UNAUTHENTICATED
        used = Changed(kind=ChangeKind.JOIN_REFUSED, subject="Sandbox team-a/agent", reason="token_used")
        assert operator.audited == [used]
        identity = an_identity(tmp_path / "agent", port=operator.enrollment_port)
        await identity.attempt()
        assert holds_a_certificate(tmp_path / "agent")
        assert not (tmp_path / "agent" / "identity" / PENDING_KEY).exists()
        if restarts:  # nothing is asked for again
            assert not an_identity(tmp_path / "agent", port=operator.enrollment_port).is_due()


async def test_a_supervisor_that_dies_between_the_answer_and_its_disk_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    a_token(tmp_path / "state", tmp_path / "agent")
    async with a_control_plane(tmp_path / "state") as (operator, _):
        with monkeypatch.context() as patched:
            patched.setattr("supervisor_middleware.supervisor.identity.write_credentials", die)
            with pytest.raises(Killed):
                await an_identity(tmp_path / "agent", port=operator.enrollment_port).attempt()
        assert not holds_a_certificate(tmp_path / "agent")
        await an_identity(tmp_path / "agent", port=operator.enrollment_port).attempt()
        assert holds_a_certificate(tmp_path / "agent")


async def test_a_disk_that_was_full_costs_no_token_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise Unavailable("no space left")

    a_token(tmp_path / "state", tmp_path / "agent")
    async with a_control_plane(tmp_path / "state") as (operator, _):
        with monkeypatch.context() as patched:
            patched.setattr("supervisor_middleware.supervisor.identity.write_credentials", full)
            identity = an_identity(tmp_path / "agent", port=operator.enrollment_port)
            await identity.attempt()
            assert identity.credentials.value is not None
        await an_identity(tmp_path / "agent", port=operator.enrollment_port).attempt()
        assert holds_a_certificate(tmp_path / "agent")


async def test_a_token_that_was_revoked_after_the_answer_was_lost_is_refused_and_a_new_one_is_not(
    tmp_path: Path, network: Network
) -> None:
    a_token(tmp_path / "state", tmp_path / "agent")
    await lose_the_answer(tmp_path / "state", tmp_path / "agent", network)
    with join_tokens(tmp_path / "state") as tokens:
        tokens.revoke("team-a", "agent", datetime.now(UTC))
        fresh = tokens.issue(
            "team-a", "agent", now=datetime.now(UTC), lifetime=timedelta(minutes=1), secret=b"t" * 32
        )
    async with a_control_plane(tmp_path / "state") as (operator, _):
        identity = an_identity(tmp_path / "agent", port=operator.enrollment_port)
        with pytest.raises(TokenRefused, match="smw token create team-a/agent"):
            await identity.attempt()
        (tmp_path / "agent" / "token").write_text(fresh)
        await identity.attempt()
        assert holds_a_certificate(tmp_path / "agent")


async def test_a_token_that_has_expired_meanwhile_is_refused(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_token(tmp_path / "state", tmp_path / "agent")
    await lose_the_answer(tmp_path / "state", tmp_path / "agent", network)
    later = datetime.now(UTC) + timedelta(minutes=10)
    monkeypatch.setattr("supervisor_middleware.apps.joins.utc_now", lambda: later)
    async with a_control_plane(tmp_path / "state") as (operator, _):
        with pytest.raises(TokenRefused):
            await an_identity(tmp_path / "agent", port=operator.enrollment_port).attempt()


async def test_a_signing_request_that_is_no_good_costs_no_token(tmp_path: Path) -> None:
    token = a_token(tmp_path / "state", tmp_path / "agent")
    async with a_control_plane(tmp_path / "state") as (operator, _):
        error = await enrolment_refusal(operator, b"nonsense", token)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await enroll(operator, new_key_and_csr()[1], token)).certificate_chain_pem
