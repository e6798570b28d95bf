"""The webhook's serving certificate: of roots of our own, or from files that somebody else (cert-manager) keeps.

Of our own: each replica has its own leaf; the root changes in stages (`pki.succession`) that any replica may take,
and a leaf of a new root is served only after the API server was known to trust it for the overlap. So no review is
refused over a change, whoever starts, lags or deletes the Secret.
"""

import asyncio
import os
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import structlog
from cryptography import x509

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.pki.authority import Authority, IpAddress
from supervisor_middleware.pki.credentials import Credentials, should_renew
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.succession import Succession
from supervisor_middleware.sources.cluster_serving import StoredSuccession

LOOK_INTERVAL: Final = timedelta(seconds=10)
_LOOKS_AN_OVERLAP: Final = 4
_RETRY: Final = 2.0
_SETTLING: Final = 1.0
"""How long a first caBundle may take to reach the API server's own cache (measured: 20 ms, 70 at most)."""
_HALF: Final = 0.5

_log = structlog.get_logger(__name__)

Load = Callable[[bytes, SecretBytes], None]
"""Puts a certificate chain and its key into the running server."""


class Certificate(Protocol):
    """What the webhook serves with."""

    async def start(self) -> None:
        """Return once there is something to serve with."""

    async def keep(self) -> None:
        """Keep it good, for ever."""


class Roots(Protocol):
    """Where the roots are kept; `sources.cluster_serving.ServingSecret`."""

    async def read(self, *, now: datetime) -> StoredSuccession | None:
        """What is there."""

    def first(self, *, trusted: tuple[bytes, ...], now: datetime) -> Succession:
        """What to begin with."""

    async def write(self, succession: Succession, *, over: str | None) -> bool:
        """Whether we were first."""


class Trust(Protocol):
    """Who must trust them; `sources.cluster_serving.WebhookTrust`."""

    async def roots(self) -> tuple[bytes, ...]:
        """What is trusted now."""

    async def ensure(self, pem: bytes) -> bool:
        """Have it trusted; whether it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What to issue."""

    dns_names: tuple[str, ...]
    ip_addresses: tuple[IpAddress, ...] = ()
    lifetime: timedelta


@dataclass(slots=True, kw_only=True)
class OwnCertificate:
    """Of our own roots. Clocks are arguments; `monotonic` measures how long something is trusted."""

    roots: Roots
    trust: Trust
    load: Load
    leaf: Leaf
    tell: Callable[[Authority], None] = lambda _: None
    overlap: timedelta
    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _known: Succession | None = None
    _served: Credentials | None = None
    _stage: tuple[tuple[bytes, ...], bytes] | None = None
    _stage_since: float = 0.0
    _trusted: dict[bytes, float] = field(default_factory=dict)

    async def start(self) -> None:
        """Look until there is a certificate that the API server should trust.

        Raises:
            InvalidInput: the Secret cannot serve; says what to do.
        """
        while True:
            try:
                await self.look()
                if not self._trusted:
                    await self.sleep(_SETTLING)
                    await self.look()
            except Unavailable as error:
                _log.warning("the webhook has no trusted certificate yet", reason=str(error))
                await self.sleep(_RETRY)
            else:
                return

    async def keep(self) -> None:
        """Look again and again; what cannot be read or written now is tried again."""
        pause = min(LOOK_INTERVAL, self.overlap / _LOOKS_AN_OVERLAP).total_seconds()
        while True:
            await self.sleep(pause)
            try:
                await self.look()
            except (Unavailable, InvalidInput) as error:
                _log.warning("the webhook's certificate cannot be looked after now", reason=str(error))

    async def look(self) -> None:
        """One look: at the Secret, at caBundle, at the clock."""
        now = self.now()
        stored = await self._stored(now)
        succession = self._known = stored.succession
        is_trusted = await self.trust.ensure(succession.bundle)
        self._observe(succession, is_trusted=is_trusted)
        self._serve(succession, now=now)
        self.tell(succession.current)
        following = succession.next(now=now, settled=self._settled(succession), overlap=self.overlap)
        if following is not None and await self.roots.write(following, over=stored.version):
            _log.info("the webhook's root", **_stage_words(following))

    async def _stored(self, now: datetime) -> StoredSuccession:
        """What everybody goes by; made if there is none. Whoever comes second takes what the first wrote."""
        stored = await self.roots.read(now=now)
        if stored is not None and stored.is_stored:
            return stored
        if stored is not None:
            beginning = stored.succession
        elif self._known is not None:
            # Somebody deleted it, to have a new root: there will be one, in stages.
            beginning = self._known.with_successor(now=now)
        else:
            beginning = self.roots.first(trusted=await self.trust.roots(), now=now)
        if await self.roots.write(beginning, over=None if stored is None else stored.version):
            _log.info("the webhook's root", **_stage_words(beginning))
        found = await self.roots.read(now=now)
        if found is None or not found.is_stored:
            raise Unavailable("the Secret of the webhook's root does not stay")
        return found

    def _observe(self, succession: Succession, *, is_trusted: bool) -> None:
        at = self.monotonic()
        stage = (succession.roots, succession.current.certificate_pem)
        if stage != self._stage:
            self._stage, self._stage_since = stage, at
        self._trusted = {r: self._trusted.get(r, at) for r in succession.roots} if is_trusted else {}

    def _settled(self, succession: Succession) -> timedelta:
        since = [self._trusted.get(root, self.monotonic()) for root in succession.roots]
        return timedelta(seconds=self.monotonic() - max(self._stage_since, *since))

    def _serve(self, succession: Succession, *, now: datetime) -> None:
        """A leaf of the current root, as soon as it is safe; the served one meanwhile."""
        served, issuer = self._served, succession.current
        if served is not None:
            is_current = served.trust_bundle_pem == issuer.certificate_pem
            if is_current and not _is_due(served, now=now):
                return
            if not is_current and self._is_young(issuer) and _is_good(served, succession, now=now):
                return
        self._issue(issuer, now=now)

    def _is_young(self, issuer: Authority) -> bool:
        """Whether the API server may not know it yet."""
        now = self.monotonic()
        return now - self._trusted.get(issuer.certificate_pem, now) < self.overlap.total_seconds()

    def _issue(self, issuer: Authority, *, now: datetime) -> None:
        leaf = self.leaf
        credentials = issuer.issue_server(
            dns_names=leaf.dns_names, ip_addresses=leaf.ip_addresses, now=now, lifetime=leaf.lifetime
        )
        self.load(credentials.certificate_chain_pem, credentials.private_key_pem)
        self._served = credentials


@dataclass(slots=True, kw_only=True)
class MountedCertificate:
    """From `tls.crt` and `tls.key` of a folder; `caBundle` is then not ours. Read again when it changes."""

    folder: Path
    load: Load
    interval: timedelta = LOOK_INTERVAL
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _loaded: tuple[bytes, bytes] | None = None

    async def start(self) -> None:
        """Return once there is a usable pair."""
        while not self._look():
            await self.sleep(_RETRY)

    async def keep(self) -> None:
        """Look again and again."""
        while True:
            await self.sleep(self.interval.total_seconds())
            self._look()

    def _look(self) -> bool:
        try:
            pair = (self.folder / "tls.crt").read_bytes(), (self.folder / "tls.key").read_bytes()
            if pair != self._loaded:
                self.load(pair[0], SecretBytes(pair[1]))
                self._loaded = pair
        except (OSError, ValueError, InvalidInput) as error:
            # The two may be replaced one after the other; the text could quote neither.
            _log.warning(
                "the webhook's certificate cannot be loaded", folder=str(self.folder), error=type(error).__name__
            )
            return False
        return True


def load_into(tls: ssl.SSLContext, certificate_chain_pem: bytes, private_key_pem: SecretBytes) -> x509.Certificate:
    """Into a running server: connections made from now on see it. Returns the leaf. Python's ssl reads files only.

    Raises:
        OSError, ValueError: the two cannot be read or are no pair; what was served goes on.
    """
    leaf = x509.load_pem_x509_certificates(certificate_chain_pem)[0]
    descriptor, name = tempfile.mkstemp(prefix="smw-webhook-")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(private_key_pem.reveal() + b"\n" + certificate_chain_pem)
        # A trial first: half a change would leave a certificate without its key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
        tls.load_cert_chain(path)
    finally:
        path.unlink()
    return leaf


def _is_due(served: Credentials, *, now: datetime) -> bool:
    return should_renew(now, not_before=served.not_before, not_after=served.expires_at, jitter=_HALF)


def _is_good(served: Credentials, succession: Succession, *, now: datetime) -> bool:
    return served.trust_bundle_pem in succession.roots and now < served.expires_at


def _stage_words(succession: Succession) -> dict[str, str]:
    stage = "steady"
    if succession.successor is not None:
        stage = "prepared: the next one is trusted from now on"
    elif succession.retired:
        stage = "changed: the one before is trusted for a while"
    return {"stage": stage, "expires_at": succession.current.expires_at.isoformat()}
