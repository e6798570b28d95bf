"""Who may join a standalone control plane, and who may go on: its ledger of join tokens, and its folder.

The ledger is the truth and is read at every question; `smw token` writes it beside us.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable, Untrusted
from supervisor_middleware.model.snapshot import Kind, Snapshot
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.pki.store import join_tokens
from supervisor_middleware.pki.tokens import JoinTokenRefused

LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks at the ledger: revocation ends open streams."""

_log = structlog.get_logger(__name__)


class Joins:
    """Checks tokens and joins; a token is good once, and only for a sandbox that the folder holds."""

    def __init__(self, state: Path, *, snapshot: Callable[[], Awaitable[Snapshot]]) -> None:
        """`state` is where `smw token create` keeps them; `snapshot` reads the folder now."""
        self._state, self._snapshot = state, snapshot
        self._standing: frozenset[SandboxIdentity] | None = None

    async def review(self, token: str) -> SandboxIdentity:
        """The sandbox a token is for, which spends it.

        Raises:
            Untrusted: the token is unknown, spent, expired or revoked, or its sandbox is not there.
            Unavailable: the folder cannot be read.
        """
        # Anybody may ask: the folder is read only for a token that is good.
        await asyncio.to_thread(self._check, token)
        sandboxes = await self._sandboxes()
        return await asyncio.to_thread(self._redeem, token, sandboxes)

    async def vouch(self, identity: SandboxIdentity) -> None:
        """Return if the sandbox is still there and its join was not revoked.

        Raises:
            Untrusted: it is not, or was.
            Unavailable: the folder or the ledger cannot be read.
        """
        _require(identity, among=await self._sandboxes())
        if identity not in await asyncio.to_thread(self._read):
            raise Untrusted(f"the join of sandbox {identity.namespace}/{identity.sandbox} was revoked, or is unknown")

    def stands(self, identity: SandboxIdentity) -> bool:
        """Whether the join was in force when the ledger was last looked at."""
        return self._standing is None or identity in self._standing

    async def follow(self, looked: Callable[[], None]) -> None:
        """Look at the ledger for ever; `looked` is called after each look: somebody's join may have ended.

        It is not told whose: a question meanwhile (the revoked one's, say), or a join that lasted for less than a
        look, would be what is missed.
        """
        while True:
            try:
                await asyncio.to_thread(self._read)
            except SupervisorMiddlewareError as error:
                _log.error("the ledger of join tokens cannot be read; revocations wait", reason=str(error))
            else:
                looked()
            await asyncio.sleep(LOOK_INTERVAL)

    async def _sandboxes(self) -> frozenset[tuple[str, str]]:
        snapshot = await self._snapshot()
        if Kind.SANDBOX in snapshot.unknown:
            raise Unavailable("the folder cannot be read now")
        return frozenset((s.namespace, s.name) for s in snapshot.sandboxes)

    def _check(self, token: str) -> None:
        with _told(), join_tokens(self._state) as tokens:
            tokens.check(token, utc_now())

    def _redeem(self, token: str, sandboxes: frozenset[tuple[str, str]]) -> SandboxIdentity:
        with _told(), join_tokens(self._state) as tokens:
            identity = tokens.redeem(token, utc_now())
            # Within: what is raised here leaves the token unspent.
            _require(identity, among=sandboxes)
            self._standing = tokens.standing()
        return identity

    def _read(self) -> frozenset[SandboxIdentity]:
        with join_tokens(self._state) as tokens:
            # Under the lock, so that of two looks the later one stays.
            self._standing = standing = tokens.standing()
        return standing


@contextmanager
def _told() -> Iterator[None]:
    """Say in our log why a token was refused."""
    try:
        yield
    except JoinTokenRefused as error:
        raise Untrusted(f"join token: {error.reason}") from error


def _require(identity: SandboxIdentity, *, among: frozenset[tuple[str, str]]) -> None:
    if (identity.namespace, identity.sandbox) not in among:
        raise Untrusted(f"there is no sandbox {identity.namespace}/{identity.sandbox} in the folder")
