"""`smw enroll` against an operator on loopback: what is in the files, when, and what it says where there are none."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from supervisor_middleware.apps.enroll import OWN_BUNDLE, Manner, _is_obtained, run_enroll
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.pki.credential_files import read_credentials, write_credentials
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.settings import EnrollSettings
from supervisor_middleware.supervisor.identity import Identity
from supervisor_middleware.supervisor.operator_channel import Busy
from tests.fakes.operator_server import FakeOperator
from tests.pki.builders import TRUST_DOMAIN, an_authority, an_identity, supervisor_credentials
from tests.waiting import eventually

AUTHORITY = an_authority(now=datetime.now(UTC) - timedelta(days=30))
IDENTITY = an_identity()
ONCE = Manner(patience=None)


class World:
    def __init__(self, folder: Path, operator: FakeOperator) -> None:
        self.folder, self.operator = folder, operator
        self.out = folder / "certs"
        self.told: list[str] = []
        (folder / "token").write_text("good")
        (folder / "trust.crt").write_bytes(AUTHORITY.certificate_pem)

    def settings(self, **changes: Any) -> EnrollSettings:
        return EnrollSettings(
            **{
                "trust_domain": TRUST_DOMAIN,
                "namespace": IDENTITY.namespace,
                "sandbox": IDENTITY.sandbox,
                "operators": ("127.0.0.1",),
                "enrollment_port": _port(self.operator.enrollment_addresses[0]),
                "discovery_port": _port(self.operator.addresses[0]),
                "trust_bundle": self.folder / "trust.crt",
                "token_file": self.folder / "token",
                "out": self.out,
                **changes,
            }
        )

    async def enroll(self, manner: Manner = ONCE, **changes: Any) -> Credentials:
        await run_enroll(self.settings(**changes), manner, tell=self.told.append)
        return self.kept()

    def kept(self) -> Credentials:
        credentials = read_credentials(self.out)
        assert credentials is not None
        return credentials

    def aged(self, share: float) -> Credentials:
        """Files in which that much of the certificate's day has gone."""
        credentials = supervisor_credentials(AUTHORITY, now=datetime.now(UTC) - timedelta(hours=24 * share))
        write_credentials(self.out, credentials)
        return credentials


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with FakeOperator.serving(AUTHORITY, IDENTITY) as operator:
        yield World(tmp_path, operator)


async def test_the_files_are_there_whole_and_the_key_is_private(world: World) -> None:
    credentials = await world.enroll()
    assert str(credentials.spiffe_id) == f"spiffe://{TRUST_DOMAIN}/ns/team-a/sandbox/coder"
    assert (world.out / "ca.crt").read_bytes() == AUTHORITY.certificate_pem
    modes = {name: (world.out / name).stat().st_mode & 0o777 for name in ("tls.crt", "tls.key", "ca.crt", OWN_BUNDLE)}
    assert modes == {"tls.crt": 0o644, "tls.key": 0o600, "ca.crt": 0o644, OWN_BUNDLE: 0o600}
    assert world.told == [
        f"{world.out}: {credentials.spiffe_id}, good until {credentials.expires_at:%Y-%m-%dT%H:%M:%SZ}"
    ]
    assert world.operator.tokens == ["good"]


async def test_a_young_certificate_is_left_alone(world: World) -> None:
    before = world.aged(0.2)
    (world.folder / "token").unlink()
    assert await world.enroll() == before
    assert (world.operator.tokens, world.operator.renewals) == ([], [])


async def test_an_older_one_is_renewed_without_the_token(world: World) -> None:
    before = world.aged(0.7)
    (world.folder / "token").unlink()
    assert (await world.enroll()).expires_at > before.expires_at
    assert (world.operator.tokens, world.operator.renewals) == ([], [IDENTITY])


async def test_an_expired_one_is_replaced_with_the_token(world: World) -> None:
    before = world.aged(1.1)
    assert (await world.enroll()).expires_at > before.expires_at
    assert (world.operator.tokens, world.operator.renewals) == (["good"], [])


async def test_a_bundle_that_changed_is_in_the_files_without_a_new_certificate(world: World) -> None:
    before = await world.enroll()
    both = AUTHORITY.certificate_pem + an_authority().certificate_pem
    (world.folder / "trust.crt").write_bytes(both)
    after = await world.enroll()
    assert (after.leaf, after.trust_bundle_pem) == (before.leaf, both)
    assert world.operator.tokens == ["good"]


async def test_a_token_that_is_refused_says_whose_move_it_is_and_not_the_token(world: World) -> None:
    (world.folder / "token").write_text("canary-token")
    with pytest.raises(Untrusted, match="smw token create") as refused:
        await world.enroll(Manner())
    assert "canary-token" not in str(refused.value)
    assert world.operator.tokens == ["canary-token"]
    assert read_credentials(world.out) is None


async def test_an_operator_that_is_away_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor_middleware.apps.enroll._PAUSE", 0.01)
    world.aged(0.7)
    world.operator.renewal_refusal = grpc.StatusCode.UNAVAILABLE
    waiting = asyncio.create_task(world.enroll(Manner(patience=timedelta(seconds=5))))
    await eventually(lambda: len(world.operator.renewals) > 2)
    world.operator.renewal_refusal = None
    await waiting
    assert world.operator.tokens == []


async def test_a_busy_operator_is_asked_again_no_sooner_than_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()

    class BusyIdentity(Identity):
        def __init__(self) -> None:
            """It has nothing."""

        async def attempt(self) -> None:
            raise Busy("too many at once", pause=40.0)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("supervisor_middleware.apps.enroll.asyncio.sleep", sleep)
    assert not await _is_obtained(BusyIdentity(), retries=True)
    assert [40 <= seconds <= 60 for seconds in slept] == [True]


async def test_patience_that_ends_leaves_a_certificate_that_is_still_good(world: World) -> None:
    before = world.aged(0.7)
    world.operator.renewal_refusal = grpc.StatusCode.UNAVAILABLE
    assert await world.enroll(Manner(patience=timedelta(seconds=0.2))) == before
    assert await world.enroll(ONCE) == before


async def test_patience_that_ends_without_a_certificate_is_no_answer(world: World) -> None:
    nowhere = {"enrollment_port": 1, "discovery_port": 1}
    with pytest.raises(Unavailable):
        await world.enroll(ONCE, **nowhere)
    with pytest.raises(Unavailable, match="in time"):
        await world.enroll(Manner(patience=timedelta(seconds=0.2)), **nowhere)


async def test_files_that_cannot_be_written_are_no_success(world: World) -> None:
    world.out.mkdir()
    (world.out / "tls.crt").mkdir()
    with pytest.raises(InvalidInput, match="certs"):
        await world.enroll()


async def test_an_audit_file_tells_what_was_got(world: World) -> None:
    audit = world.folder / "audit.jsonl"
    await world.enroll(audit_file=audit)
    assert "credentials_issued" in audit.read_text()
    assert audit.stat().st_mode & 0o777 == 0o600


async def test_as_a_sidecar_it_stays_and_renews(world: World) -> None:
    before = world.aged(0.7)
    staying = asyncio.create_task(run_enroll(world.settings(), Manner(stays=True), tell=world.told.append))
    try:
        await eventually(lambda: world.kept() != before)
        both = AUTHORITY.certificate_pem + an_authority().certificate_pem
        assert not staying.done()
        assert world.operator.renewals == [IDENTITY]
        assert world.kept().trust_bundle_pem != both
    finally:
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)
