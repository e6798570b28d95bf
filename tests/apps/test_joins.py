"""Who may join a standalone control plane, and who may go on: the ledger and the folder, both read when asked.

A token is good for the key that showed it first.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor_middleware.apps.joins import Joins
from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import Kind, Snapshot
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.pki.store import TOKENS_FILE, join_tokens
from supervisor_middleware.pki.tokens import Holder, JoinTokens
from tests.waiting import eventually


def a_key(name: str) -> Holder:
    return lambda: name


KEY, OTHER = a_key("k1"), a_key("k2")


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
    identity = await joins.review(a_token(tmp_path), holder=KEY)
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
    identity = await joins.review(a_token(tmp_path), holder=KEY)
    another = a_token(tmp_path, secret=b"t" * 32)
    folder.names.clear()
    before = ledger(tmp_path)
    with pytest.raises(Untrusted, match="no sandbox team-a/agent"):
        await joins.vouch(identity)
    with pytest.raises(Untrusted, match="no sandbox team-a/agent"):
        await joins.review(another, holder=KEY)
    assert ledger(tmp_path) == before
    folder.names.add("agent")
    assert (await joins.review(another, holder=KEY)).pod_uid != identity.pod_uid


async def test_a_folder_that_cannot_be_read_says_nothing_of_its_sandboxes(tmp_path: Path) -> None:
    folder = Folder()
    folder.unknown = [Kind.SANDBOX]
    joins = Joins(tmp_path, snapshot=folder.snapshot)
    with pytest.raises(Unavailable):
        await joins.review(a_token(tmp_path), holder=KEY)


async def test_a_token_shown_twice_at_once_is_spent_once(tmp_path: Path) -> None:
    joins = Joins(tmp_path, snapshot=Folder("agent").snapshot)
    token = a_token(tmp_path)
    keys = [f"key-{number}" for number in range(8)]
    outcomes = await asyncio.gather(*(joins.review(token, holder=a_key(key)) for key in keys), return_exceptions=True)
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
        await joins.review(a_token(tmp_path), holder=KEY),
        await joins.review(a_token(tmp_path, "other", secret=b"o" * 32), holder=KEY),
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
    identity = await joins.review(a_token(tmp_path), holder=KEY)
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
        identity = await joins.review(a_token(tmp_path), holder=KEY)
        revoke(tmp_path)
        await eventually(lambda: looks.stood[1:2] == [frozenset()])
        assert not joins.stands(identity)


async def test_a_token_that_is_none_does_not_have_the_folder_read(tmp_path: Path) -> None:
    folder = Folder("agent")
    joins = Joins(tmp_path, snapshot=folder.snapshot)
    spent = a_token(tmp_path)
    await joins.review(spent, holder=OTHER)
    folder.readings = 0
    for token, reason in (("", "malformed"), ("smw-join.0.x", "unknown"), (spent, "used")):
        with pytest.raises(Untrusted, match=f"join token: {reason}"):
            await joins.review(token, holder=KEY)
    assert folder.readings == 0


# --------------------------------------------------------------------------------------------- an answer that was lost


def joins_of(state: Path, emit: Callable[[Event], None] = lambda _: None) -> Joins:
    return Joins(state, snapshot=Folder("agent").snapshot, emit=emit)


async def test_the_same_key_gets_the_same_join_again_also_after_a_restart_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    token = a_token(tmp_path)
    identity = await joins_of(tmp_path).review(token, holder=KEY)
    before = ledger(tmp_path)
    restarted = joins_of(tmp_path)
    assert await restarted.review(token, holder=KEY) == identity
    assert ledger(tmp_path) == before
    assert restarted.stands(identity)


async def test_another_key_finds_the_token_used_which_is_audited_but_not_for_ever(tmp_path: Path) -> None:
    audited = list[Event]()
    joins, token = joins_of(tmp_path, audited.append), a_token(tmp_path)
    identity = await joins.review(token, holder=KEY)
    for number in range(20):
        with pytest.raises(Untrusted, match="join token: used"):
            await joins.review(token, holder=a_key(f"thief-{number}"))
    refused = Changed(kind=ChangeKind.JOIN_REFUSED, subject="Sandbox team-a/agent", reason="token_used")
    assert audited == [refused] * 4
    await joins.vouch(identity)
    with pytest.raises(Untrusted, match="join token: unknown"):
        await joins.review(f"{token[:-1]}{'A' if token[-1] != 'A' else 'B'}", holder=OTHER)
    assert len(audited) == 4


async def test_a_token_that_was_revoked_or_has_expired_meanwhile_is_good_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited = list[Event]()
    joins = joins_of(tmp_path, audited.append)
    first = a_token(tmp_path)
    await joins.review(first, holder=KEY)
    revoke(tmp_path)
    with pytest.raises(Untrusted, match="join token: revoked"):
        await joins.review(first, holder=KEY)
    second = a_token(tmp_path, secret=b"t" * 32)
    await joins.review(second, holder=KEY)
    later = datetime.now(UTC) + timedelta(minutes=10)
    monkeypatch.setattr("supervisor_middleware.apps.joins.utc_now", lambda: later)
    with pytest.raises(Untrusted, match="join token: expired"):
        await joins.review(second, holder=KEY)
    assert audited == []


async def test_a_later_join_of_the_sandbox_ends_what_the_earlier_token_was_good_for(tmp_path: Path) -> None:
    joins, first, second = joins_of(tmp_path), a_token(tmp_path), a_token(tmp_path, secret=b"t" * 32)
    await joins.review(first, holder=KEY)
    await joins.review(second, holder=OTHER)
    with pytest.raises(Untrusted, match="join token: revoked"):
        await joins.review(first, holder=KEY)


async def test_whoever_renewed_has_its_answer_and_the_token_is_good_for_nobody(tmp_path: Path) -> None:
    joins, token = joins_of(tmp_path), a_token(tmp_path)
    identity = await joins.review(token, holder=KEY)
    await joins.vouch(identity)
    with pytest.raises(Untrusted, match="join token: used"):
        await joins.review(token, holder=KEY)
    await joins.vouch(identity)


async def test_a_ledger_that_cannot_be_written_ends_no_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Unavailable("no space left")

    joins = joins_of(tmp_path)
    identity = await joins.review(a_token(tmp_path), holder=KEY)
    monkeypatch.setattr("supervisor_middleware.pki.store.replace_file", full)
    await joins.vouch(identity)


async def test_a_signing_request_that_is_no_good_costs_no_token(tmp_path: Path) -> None:
    def bad() -> str:
        raise InvalidInput("cannot be read")

    joins, token = joins_of(tmp_path), a_token(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        await joins.review(token, holder=bad)
    # Who has no token is not told what is wrong with its request.
    with pytest.raises(Untrusted, match="join token: unknown"):
        await joins.review("smw-join.0.x", holder=bad)
    assert (await joins.review(token, holder=KEY)).sandbox == "agent"


async def test_nobody_has_joined_until_it_has_and_before_the_first_look_anybody_may_have(tmp_path: Path) -> None:
    joins = joins_of(tmp_path)
    assert joins.has_joined("team-a/agent")
    await joins.review(a_token(tmp_path), holder=KEY)
    assert [key for key in ("team-a/agent", "team-a/other") if joins.has_joined(key)] == ["team-a/agent"]
    revoke(tmp_path)
    joins._read()
    assert not joins.has_joined("team-a/agent")
