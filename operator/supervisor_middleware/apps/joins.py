"""Who may join a standalone control plane, and who may go on: its ledger of join tokens, and its folder.

The ledger is the truth and is read at every question; `smw token` writes it beside us. A token that somebody shows
after another key used it is audited: it is in two hands, or its supervisor has lost its state.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.distribution.guests import supervisor_key
from supervisor_middleware.distribution.pacing import Allowances, Pace
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable, Untrusted
from supervisor_middleware.model.snapshot import Kind, Snapshot
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.pki.store import join_tokens
from supervisor_middleware.pki.tokens import Holder, JoinTokenRefused, Refusal

LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks at the ledger: revocation ends open streams."""

_AUDITED: Final = Pace(burst=4, rate=1 / 900)
"""Refused tokens of one sandbox: a supervisor tries again for ever, and so may a thief."""

_log = structlog.get_logger(__name__)


class Joins:
    """Checks tokens and joins; a token is good for one key, and only for a sandbox that the folder holds."""

    def __init__(
        self,
        state: Path,
        *,
        snapshot: Callable[[], Awaitable[Snapshot]],
        emit: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """`state` is where `smw token create` keeps them; `snapshot` reads the folder now."""
        self._state, self._snapshot, self._emit = state, snapshot, emit
        self._standing: frozenset[SandboxIdentity] | None = None
        self._audited = Allowances(_AUDITED)

    async def review(self, token: str, *, holder: Holder) -> SandboxIdentity:
        """The sandbox a token is for, which spends it for `holder`.

        Raises:
            Untrusted: the token is unknown, another's, expired or revoked, or its sandbox is not there.
            Unavailable: the folder cannot be read.
            InvalidInput: the signing request is no good; the token is not spent.
        """
        try:
            # Anybody may ask: the folder is read only for a token that is good.
            await asyncio.to_thread(self._check, token, holder)
            sandboxes = await self._sandboxes()
            return await asyncio.to_thread(self._redeem, token, holder, sandboxes)
        except JoinTokenRefused as error:
            self._audit(error)
            # In our log alone: what the peer is told is the same for all.
            raise Untrusted(f"join token: {error.reason}") from error

    async def vouch(self, identity: SandboxIdentity) -> None:
        """Return if the sandbox is still there and its join was not revoked.

        Raises:
            Untrusted: it is not, or was.
            Unavailable: the folder or the ledger cannot be read.
        """
        _require(identity, among=await self._sandboxes())
        if identity not in await asyncio.to_thread(self._read):
            raise Untrusted(f"the join of sandbox {identity.namespace}/{identity.sandbox} was revoked, or is unknown")
        await asyncio.to_thread(self._settle, identity)

    def stands(self, identity: SandboxIdentity) -> bool:
        """Whether the join was in force when the ledger was last looked at."""
        return self._standing is None or identity in self._standing

    def has_joined(self, key: str) -> bool:
        """Whether a join of the sandbox (by its supervisor's key) was in force when the ledger was last looked at."""
        return self._standing is None or key in {supervisor_key(identity) for identity in self._standing}

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

    def _check(self, token: str, holder: Holder) -> None:
        with join_tokens(self._state) as tokens:
            tokens.check(token, utc_now(), holder=holder)

    def _redeem(self, token: str, holder: Holder, sandboxes: frozenset[tuple[str, str]]) -> SandboxIdentity:
        with join_tokens(self._state) as tokens:
            identity = tokens.redeem(token, utc_now(), holder=holder)
            # Within: what is raised here leaves the token unspent.
            _require(identity, among=sandboxes)
            self._standing = tokens.standing()
        return identity

    def _read(self) -> frozenset[SandboxIdentity]:
        with join_tokens(self._state) as tokens:
            # Under the lock, so that of two looks the later one stays.
            self._standing = standing = tokens.standing()
        return standing

    def _settle(self, identity: SandboxIdentity) -> None:
        try:
            with join_tokens(self._state) as tokens:
                tokens.settle(identity)
        except SupervisorMiddlewareError as error:
            # A disk that is full ends no renewal.
            _log.warning("a join token stays good for the key that it was used with", reason=str(error))

    def _audit(self, refused: JoinTokenRefused) -> None:
        if refused.reason is not Refusal.USED or refused.identity is None:
            return
        place, now = f"{refused.identity.namespace}/{refused.identity.sandbox}", time.monotonic()
        if self._audited.of(place, now=now).take(now):
            kind = ChangeKind.JOIN_REFUSED
            self._emit(Changed(kind=kind, subject=f"Sandbox {place}", reason="token_used"))


def _require(identity: SandboxIdentity, *, among: frozenset[tuple[str, str]]) -> None:
    if (identity.namespace, identity.sandbox) not in among:
        raise Untrusted(f"there is no sandbox {identity.namespace}/{identity.sandbox} in the folder")
