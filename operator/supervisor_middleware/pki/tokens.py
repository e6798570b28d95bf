"""Join tokens: how a standalone supervisor, which has no Kubernetes to vouch for it, enrols once. PURE.

A token is `smw-join.<id>.<secret>` and is good for one sandbox and one key: whoever shows it first, with the key that
its signing request proves. Only a SHA-256 of token and key are kept (the secret is random, so a slow hash gains
nothing). Persist the ledger after `redeem` and *before* the certificate is handed out: the other order would sell a
token to two. An answer that was lost costs nothing: the same key may ask again as long as the token lives, and until
its certificate has bought another. Any other key finds the token used.

What was joined stands until it is revoked, or its sandbox joins again: then it can neither renew nor connect.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from supervisor_middleware.errors import Bug, InvalidInput, Untrusted
from supervisor_middleware.pki.spiffe import SandboxIdentity

PREFIX: Final = "smw-join"
JOINED_PREFIX: Final = "join-"
"""Begins what stands in for the Pod UID of a supervisor that joined without a Pod."""
MIN_SECRET_BYTES: Final = 16
RETENTION: Final = timedelta(days=7)
"""How long a token that can serve nobody is remembered, so that our log can tell "used" from "never existed"."""

Holder: TypeAlias = Callable[[], str]
"""The digest of the public key whose possession was proved, when it is needed; empty: of none."""

_ID_DIGITS: Final = 16
_MAX_TOKEN: Final = 256
_VERSION: Final = 1


class Refusal(StrEnum):
    """Why a token was refused: for our log, never for the peer."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"


class JoinTokenRefused(Untrusted):
    """The token buys nothing. The text is the same for every `reason`, so that it may be shown to the peer.

    `identity` is what a token that we made is for; None if we did not make it.
    """

    def __init__(self, reason: Refusal, *, identity: SandboxIdentity | None = None) -> None:
        super().__init__("the join token is not valid: create a new one with `smw token create`")
        self.reason, self.identity = reason, identity


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    sha256: str
    namespace: str
    sandbox: str
    expires_at: datetime
    used_at: datetime | None = None
    revoked_at: datetime | None = None
    holder: str = ""

    @property
    def stands(self) -> bool:
        """Whether somebody joined by it and may go on."""
        return self.used_at is not None and self.revoked_at is None

    def refusal(self, now: datetime, *, holder: Holder = lambda: "") -> Refusal | None:
        if self.used_at is not None and (not self.holder or holder() != self.holder):
            return Refusal.USED
        if self.revoked_at is not None:
            return Refusal.REVOKED
        return Refusal.EXPIRED if now >= self.expires_at else None


class JoinTokens:
    """The ledger of issued tokens. One writer at a time: `store.join_tokens` holds the lock."""

    def __init__(self, entries: Mapping[str, _Entry] | None = None) -> None:
        self._entries = dict(entries or {})

    def issue(self, namespace: str, sandbox: str, *, now: datetime, lifetime: timedelta, secret: bytes) -> str:
        """A new token for `sandbox`; `secret` is fresh randomness and is not kept. Forgets tokens of long ago.

        Raises:
            InvalidInput: a name is not a DNS name, or the lifetime is not positive.
            Bug: the secret is too short or was used before.
        """
        if len(secret) < MIN_SECRET_BYTES:
            raise Bug(f"a join token needs {MIN_SECRET_BYTES} bytes of randomness")
        if lifetime <= timedelta():
            raise InvalidInput("a join token must be valid for some time")
        token_id = hashlib.sha256(b"id:" + secret).hexdigest()[:_ID_DIGITS]
        if token_id in self._entries:
            raise Bug("the randomness of a join token was used before")
        _identity(token_id, namespace=namespace, sandbox=sandbox)
        token = f"{PREFIX}.{token_id}.{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"
        entry = _Entry(sha256=_hash(token), namespace=namespace, sandbox=sandbox, expires_at=now + lifetime)
        kept = {key: old for key, old in self._entries.items() if old.stands or now < old.expires_at + RETENTION}
        self._entries = {**kept, token_id: entry}
        return token

    def check(self, token: str, now: datetime, *, holder: Holder = lambda: "") -> None:
        """Return if `redeem` would take `token`.

        Raises:
            JoinTokenRefused: as `redeem`.
        """
        self._good(token, now, holder=holder)

    def redeem(self, token: str, now: datetime, *, holder: Holder = lambda: "") -> SandboxIdentity:
        """Spend `token`, for `holder` alone; its ID stands in for the Pod UID that a standalone supervisor lacks.

        Raises:
            JoinTokenRefused: unknown, spent by another key, or expired; its `reason` is for our log only.
        """
        token_id, entry = self._good(token, now, holder=holder)
        identity = _identity(token_id, namespace=entry.namespace, sandbox=entry.sandbox)
        if entry.used_at is not None:
            return identity
        # One supervisor a sandbox: whoever joined before has no part in it any more.
        earlier = [e for e in self._of(entry.namespace, entry.sandbox) if self._entries[e].stands]
        self._revoke(earlier, now)
        self._entries[token_id] = replace(entry, used_at=now, holder=holder())
        return identity

    def settle(self, identity: SandboxIdentity) -> None:
        """`identity` showed its certificate, so no answer was lost: the token that bought it is good for nobody."""
        token_id = identity.pod_uid.removeprefix(JOINED_PREFIX)
        entry = self._entries.get(token_id)
        if entry is not None and entry.holder:
            self._entries[token_id] = replace(entry, holder="")

    def revoke(self, namespace: str, sandbox: str, now: datetime) -> int:
        """End every token and every join of a sandbox; how many there were."""
        found = self._of(namespace, sandbox)
        ended = [e for e in found if self._entries[e].stands or self._entries[e].refusal(now) is None]
        self._revoke(ended, now)
        return len(ended)

    def is_open(self, namespace: str, sandbox: str, now: datetime) -> bool:
        """Whether there is a token by which somebody may still join as the sandbox."""
        return any(self._entries[e].refusal(now) is None for e in self._of(namespace, sandbox))

    def standing(self) -> frozenset[SandboxIdentity]:
        """Whoever joined and may go on."""
        joined = ((key, entry) for key, entry in self._entries.items() if entry.stands)
        return frozenset(_identity(key, namespace=e.namespace, sandbox=e.sandbox) for key, e in joined)

    def _good(self, token: str, now: datetime, *, holder: Holder) -> tuple[str, _Entry]:
        token_id = _token_id(token)
        entry = self._entries.get(token_id)
        # The hash is compared even for an unknown ID: timing must not tell which IDs exist.
        if not hmac.compare_digest(_hash(token), entry.sha256 if entry else _hash("")) or entry is None:
            raise JoinTokenRefused(Refusal.UNKNOWN)
        if refusal := entry.refusal(now, holder=holder):
            identity = _identity(token_id, namespace=entry.namespace, sandbox=entry.sandbox)
            raise JoinTokenRefused(refusal, identity=identity)
        return token_id, entry

    def _of(self, namespace: str, sandbox: str) -> list[str]:
        return [key for key, e in self._entries.items() if (e.namespace, e.sandbox) == (namespace, sandbox)]

    def _revoke(self, token_ids: Iterable[str], now: datetime) -> None:
        for token_id in token_ids:
            self._entries[token_id] = replace(self._entries[token_id], revoked_at=now)

    def to_dict(self) -> dict[str, object]:
        """The ledger for a state file (JSON types only; no token can be made from it)."""
        tokens = {
            token_id: {
                "sha256": entry.sha256,
                "namespace": entry.namespace,
                "sandbox": entry.sandbox,
                "expiresAt": entry.expires_at.isoformat(),
                "usedAt": entry.used_at.isoformat() if entry.used_at else None,
                "revokedAt": entry.revoked_at.isoformat() if entry.revoked_at else None,
                "holderSha256": entry.holder or None,
            }
            for token_id, entry in sorted(self._entries.items())
        }
        return {"version": _VERSION, "tokens": tokens}

    @classmethod
    def from_dict(cls, state: object) -> "JoinTokens":
        """The ledger that `to_dict` gave.

        Raises:
            InvalidInput: it is not one.
        """
        match state:
            case {"version": 1, "tokens": dict() as tokens}:
                return cls({str(token_id): _entry(token_id, entry) for token_id, entry in tokens.items()})
            case _:
                raise InvalidInput("this is no ledger of join tokens (version 1)")


def _identity(token_id: str, *, namespace: str, sandbox: str) -> SandboxIdentity:
    return SandboxIdentity(namespace=namespace, sandbox=sandbox, pod_uid=f"{JOINED_PREFIX}{token_id}")


def _token_id(token: str) -> str:
    match token.split(".") if len(token) <= _MAX_TOKEN and token.isascii() else ():
        case [prefix, token_id, _] if prefix == PREFIX:
            return token_id
        case _:
            raise JoinTokenRefused(Refusal.MALFORMED)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _entry(token_id: str, state: object) -> _Entry:
    match state:
        case {
            "sha256": str() as sha256,
            "namespace": str() as namespace,
            "sandbox": str() as sandbox,
            "expiresAt": str() as expires_at,
            "usedAt": str() | None as used_at,
            **rest,
        }:
            revoked_at = rest.get("revokedAt")  # earlier releases knew no revocation, and no holder
            _identity(token_id, namespace=namespace, sandbox=sandbox)
            return _Entry(
                sha256=sha256,
                namespace=namespace,
                sandbox=sandbox,
                expires_at=_time(expires_at),
                used_at=None if used_at is None else _time(used_at),
                revoked_at=None if revoked_at is None else _time(str(revoked_at)),
                holder=str(rest.get("holderSha256") or ""),
            )
        case _:
            raise InvalidInput("a join token's entry lacks a field")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput("a join token's entry holds no time where one is needed") from error
    if time.tzinfo is None:
        raise InvalidInput("a join token's entry holds a time without a zone")
    return time
