"""Who may join a standalone control plane, and who may go on: the ledger and the folder, both read when asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor_middleware.apps.joins import Joins
from supervisor_middleware.errors import Unavailable, Untrusted
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import Kind, Snapshot
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.pki.store import TOKENS_FILE, join_tokens
from supervisor_middleware.pki.tokens import JoinTokens
from tests.waiting import eventually


class Folder:
    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.unknown = list[str]()
        self.readings = 0

    async def snapshot(self) -> Snapshot:
        self.readings += 1
        sandboxes = (Sandbox(namespace="team-a", name=n, uid=f"team-a/{n}", labels={}) for n in sorted(self.names))
        return Snapshot(sandboxes=tuple(sandboxes), unknown=frozenset(self.unknown))


def a_token(state: Path, sandbox: str = "agent", *, secret: bytes = b"s" * 32) -> str:
    with join_tokens(state) as tokens:
        now = datetime.now(UTC)
        return tokens.issue("team-a", sandbox, now=now, lifetime=timedelta(minutes=10), secret=secret)


def revoke(state: Path, sandbox: str = "agent") -> None:
    with join_tokens(state) as tokens:
        tokens.revoke("team-a", sandbox, datetime.now(UTC))


def ledger(state: Path) -> dict[str, object]:
    with join_tokens(state) as tokens:
        assert isinstance(tokens, JoinTokens)
        return tokens.to_dict()


async def test_whoever_joined_is_vouched_for_until_revoked(tmp_path: Path) -> None:
    joins = Joins(tmp_path, snapshot=Folder("agent").snapshot)
    identity = await joins.review(a_token(tmp_path))
    await joins.vouch(identity)
    assert joins.stands(identity)
    revoke(tmp_path)
    with pytest.raises(Untrusted, match="revoked"):
        await joins.vouch(identity)
    assert not joins.stands(identity)


async def test_a_sandbox_that_left_the_folder_neither_renews_nor_joins_and_its_token_is_not_spent(
    tmp_path: Path,
) -> None:
    folder = Folder("agent")
    joins = Joins(tmp_path, snapshot=folder.snapshot)
    identity = await joins.review(a_token(tmp_path))
    another = a_token(tmp_path, secret=b"t" * 32)
    folder.names.clear()
    before = ledger(tmp_path)
    with pytest.raises(Untrusted, match="no sandbox team-a/agent"):
        await joins.vouch(identity)
    with pytest.raises(Untrusted, match="no sandbox team-a/agent"):
        await joins.review(another)
    assert ledger(tmp_path) == before
    folder.names.add("agent")
    assert (await joins.review(another)).pod_uid != identity.pod_uid


async def test_a_folder_that_cannot_be_read_says_nothing_of_its_sandboxes(tmp_path: Path) -> None:
    folder = Folder()
    folder.unknown = [Kind.SANDBOX]
    joins = Joins(tmp_path, snapshot=folder.snapshot)
    with pytest.raises(Unavailable):
        await joins.review(a_token(tmp_path))


async def test_a_token_shown_twice_at_once_is_spent_once(tmp_path: Path) -> None:
    joins = Joins(tmp_path, snapshot=Folder("agent").snapshot)
    token = a_token(tmp_path)
    outcomes = await asyncio.gather(*(joins.review(token) for _ in range(8)), return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    refused = [str(outcome) for outcome in outcomes if isinstance(outcome, Untrusted)]
    assert refused == ["join token: used"] * 7


class Looks:
    """Who stood at the looks so far."""

    def __init__(self, joins: Joins) -> None:
        self._joins, self.stood = joins, list[frozenset[SandboxIdentity]]()

    def looked(self) -> None:
        self.stood.append(self._joins._standing or frozenset())


@asynccontextmanager
async def looking(joins: Joins) -> AsyncIterator[Looks]:
    looks = Looks(joins)
    task = asyncio.create_task(joins.follow(looks.looked))
    try:
        yield looks
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_revocation_is_noticed_and_a_broken_ledger_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_middleware.apps.joins.LOOK_INTERVAL", 0.01)
    joins = Joins(tmp_path, snapshot=Folder("agent", "other").snapshot)
    identity, other = (
        await joins.review(a_token(tmp_path)),
        await joins.review(a_token(tmp_path, "other", secret=b"o" * 32)),
    )
    content = (tmp_path / TOKENS_FILE).read_bytes()
    (tmp_path / TOKENS_FILE).write_bytes(b"nonsense")
    async with looking(joins) as looks:
        await asyncio.sleep(0.05)
        assert (joins.stands(identity), looks.stood) == (True, [])
        (tmp_path / TOKENS_FILE).write_bytes(content)
        await eventually(lambda: looks.stood[-1:] == [{identity, other}])
        revoke(tmp_path)
        await eventually(lambda: looks.stood[-1:] == [{other}])
        assert (joins.stands(identity), joins.stands(other)) == (False, True)


async def test_a_revocation_that_a_question_saw_first_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_middleware.apps.joins.LOOK_INTERVAL", 0.1)
    joins = Joins(tmp_path, snapshot=Folder("agent").snapshot)
    identity = await joins.review(a_token(tmp_path))
    async with looking(joins) as looks:
        await eventually(lambda: looks.stood == [{identity}])
        revoke(tmp_path)
        # Whoever was revoked asks to renew before the next look.
        with pytest.raises(Untrusted, match="revoked"):
            await joins.vouch(identity)
        await eventually(lambda: looks.stood[1:2] == [frozenset()])


async def test_who_joined_and_was_revoked_between_two_looks_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_middleware.apps.joins.LOOK_INTERVAL", 0.1)
    joins = Joins(tmp_path, snapshot=Folder("agent").snapshot)
    async with looking(joins) as looks:
        await eventually(lambda: looks.stood == [frozenset()])
        identity = await joins.review(a_token(tmp_path))
        revoke(tmp_path)
        await eventually(lambda: looks.stood[1:2] == [frozenset()])
        assert not joins.stands(identity)


async def test_a_token_that_is_none_does_not_have_the_folder_read(tmp_path: Path) -> None:
    folder = Folder("agent")
    joins = Joins(tmp_path, snapshot=folder.snapshot)
    spent = a_token(tmp_path)
    await joins.review(spent)
    folder.readings = 0
    for token, reason in (("", "malformed"), ("smw-join.0.x", "unknown"), (spent, "used")):
        with pytest.raises(Untrusted, match=f"join token: {reason}"):
            await joins.review(token)
    assert folder.readings == 0
