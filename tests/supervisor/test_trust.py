"""Whom a supervisor believes when the bundle it was given and those that operators send disagree."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.supervisor.trust import TrustBundle
from tests.pki.builders import an_authority

OLD, NEW, THIRD = (an_authority().certificate_pem for _ in range(3))


class World:
    def __init__(self, folder: Path) -> None:
        self.given = folder / "given.crt"
        self.own = folder / "state" / "trust.pem"
        self.own.parent.mkdir()
        self.given.write_bytes(OLD)
        self.audited: list[Event] = []

    def trust(self) -> TrustBundle:
        """As a start of the process makes it."""
        trust = TrustBundle(self.own, given=self.given, subject="us", audit=self.audited.append)
        trust.adopt()
        return trust


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def changed(pem: bytes, reason: str) -> Changed:
    kind = ChangeKind.TRUST_BUNDLE_CHANGED
    return Changed(kind=kind, subject="us", reason=reason, digest=bundle_digest(pem))


def sent(trust: TrustBundle, pem: bytes) -> None:
    trust.install(pem, stated_digest=bundle_digest(pem))


def test_the_given_bundle_is_where_trust_begins(world: World) -> None:
    assert world.trust().read() == OLD
    assert world.audited == []
    assert world.own.stat().st_mode & 0o777 == 0o600


def test_what_an_operator_sent_stays_while_the_given_one_is_as_it_was(world: World) -> None:
    sent(world.trust(), NEW)
    # A given bundle that nobody touches must not bring back a root that a rotation has ended.
    trust = world.trust()
    assert not trust.adopt()
    assert trust.read() == NEW
    assert world.audited == [changed(NEW, "sent")]


def test_a_given_bundle_that_changes_is_taken_at_a_start_and_while_running(world: World) -> None:
    sent(world.trust(), NEW)
    world.given.write_bytes(THIRD)
    trust = world.trust()
    assert trust.read() == THIRD
    world.given.write_bytes(OLD + THIRD)
    assert trust.adopt()
    assert not trust.adopt()
    assert trust.read() == OLD + THIRD
    assert world.audited == [changed(NEW, "sent"), changed(THIRD, "given"), changed(OLD + THIRD, "given")]


def test_only_content_counts(world: World) -> None:
    trust = world.trust()
    sent(trust, NEW)
    world.given.write_bytes(b"# the same root\n" + OLD + OLD)
    assert not trust.adopt()
    assert trust.read() == NEW


def test_a_given_bundle_that_comes_to_say_what_we_believe_changes_nothing(world: World) -> None:
    trust = world.trust()
    sent(trust, NEW)
    world.given.write_bytes(NEW)
    assert not trust.adopt()
    world.given.write_bytes(OLD)
    assert trust.adopt()


@pytest.mark.parametrize("content", [None, b"", b"nonsense", NEW[:-40]])
def test_a_given_bundle_that_is_none_changes_nothing_and_is_told_once(world: World, content: bytes | None) -> None:
    trust = world.trust()
    sent(trust, NEW)
    world.given.unlink() if content is None else world.given.write_bytes(content)
    with capture_logs() as logs:
        assert not trust.adopt()
        assert not trust.adopt()
    assert [str(world.given) in entry["reason"] for entry in logs] == [True]
    assert world.trust().read() == NEW


def test_without_any_bundle_there_is_no_start(world: World) -> None:
    world.given.unlink()
    with pytest.raises(InvalidInput, match="nobody is trusted on first use"):
        world.trust()


def test_an_own_copy_that_is_broken_is_replaced_by_the_given_one(world: World) -> None:
    sent(world.trust(), NEW)
    world.own.write_bytes(b"torn")
    assert world.trust().read() == OLD


def test_a_copy_of_an_earlier_release_stays_until_the_given_one_changes(world: World) -> None:
    world.own.write_bytes(NEW)
    trust = world.trust()
    assert trust.read() == NEW
    world.given.write_bytes(THIRD)
    assert trust.adopt()
    assert trust.read() == THIRD


def test_without_a_given_one_there_is_nothing_to_take(world: World) -> None:
    assert not TrustBundle(world.own).adopt()
