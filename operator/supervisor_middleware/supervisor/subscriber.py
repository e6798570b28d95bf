"""The stream to the operator: dial, say hello, hand offers on, send reports, and begin again. A gRPC edge.

The supervisor initiates; nothing is ever pushed to it otherwise (OS-DST-03). Losing the operator changes nothing that
is served; one that is busy says for how long to stay away. The stream is ended and begun anew when the certificate is
renewed (Python gRPC cannot renew one in place) and when a trust bundle is installed: the next handshake proves the
operator against the new roots, and its hello acknowledges them.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from grpc import aio

from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable, Untrusted
from supervisor_middleware.model.generation import Rank
from supervisor_middleware.pki.credentials import Credentials
from supervisor_middleware.supervisor.activation import OfferedGeneration, RejectionReason
from supervisor_middleware.supervisor.messages import Offer, OfferedBundle, decode_offer, encode_report
from supervisor_middleware.supervisor.operator_channel import (
    OPTIONS,
    IdentityRefused,
    Options,
    asked_for,
    check_addresses,
    open_operator_channel,
    translated,
)
from supervisor_middleware.supervisor.pacing import (
    BACKOFF_MAX,
    BACKOFF_MIN,
    Backoff,
    Clock,
    Random,
    Watched,
    first_of,
    jittered,
)
from supervisor_middleware.supervisor.reports import Hello, Outbox, Rejected, StateReport
from supervisor_middleware.supervisor.trust import Installation, TrustBundle
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from supervisor_middleware.wire.gen.distribution_pb2_grpc import GenerationDiscoveryStub
from supervisor_middleware.wire.sockets import probe_whom_we_reached

STABLE_AFTER: Final = 10.0
"""A stream that lasted so many seconds was a good one: the next attempt does not pay for failures before it."""
TAKEOVER: Final = 30.0
"""Seconds, from the first failure on, in which another operator is likely to take over from one that died."""
TAKEOVER_PAUSE: Final = 1.0
"""No pause between two rounds is longer meanwhile: 12 s may pass until another leads, and 15 until all are served."""
RENEWED_PAUSE: Final = 2.0
"""Seconds, jittered, before a stream we ended ourselves is begun anew: a bundle reaches a whole fleet at once."""

_log = structlog.get_logger(__name__)


class Following(Protocol):
    """Who offers are for (`keeper.Keeper`)."""

    @property
    def rank(self) -> Rank:
        """The highest pair taken so far."""

    def hello(self) -> Hello:
        """How a stream begins."""

    def offer(self, offered: OfferedGeneration) -> None:
        """Take note of an offer; returns at once."""

    def follow(self, epoch: int) -> None:
        """Take note of an operator that offered a trust bundle alone."""


class Speaking(Protocol):
    """Who has something to report (`announcements.Announcer`)."""

    @property
    def outbox(self) -> Outbox:
        """Reports to be sent."""

    def state(self) -> tuple[StateReport, ...]:
        """What a stream says after its hello."""


class Proving(Protocol):
    """Who keeps our certificate (`identity.Identity`)."""

    @property
    def credentials(self) -> Watched[Credentials | None]:
        """What we prove ourselves with; None: not enrolled."""

    def refused(self) -> None:
        """The operator does not take it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Where the operator's discovery port is (host:port, several for its replicas) and whom we expect there.

    `options` are the channel's.

    Raises:
        InvalidInput: an address is none.
    """

    addresses: tuple[str, ...]
    trust_domain: str
    trust: TrustBundle
    options: Options = OPTIONS

    def __post_init__(self) -> None:
        check_addresses(self.addresses)


class Subscriber:
    """Keeps one stream to one of the operator's addresses; for ever."""

    def __init__(
        self,
        operator: Operator,
        *,
        following: Following,
        speaking: Speaking,
        identity: Proving,
        clock: Clock,
        random: Random,
    ) -> None:
        self._operator = operator
        self._following = following
        self._speaking = speaking
        self._identity = identity
        self._clock = clock
        self._random = random
        self._backoff = Backoff(random=random)
        self._turn = 0
        self._is_connected = False
        self._was_heard = False
        self._lost_at: float | None = None
        self._bundle_installed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether there is a stream now. Worth knowing; no reason to stop serving."""
        return self._is_connected

    async def run(self) -> None:
        """Connect, and connect again."""
        while True:
            credentials = await self._enrolled()
            started = self._clock.monotonic()
            try:
                await self._session(self._address(), credentials)
                pause = jittered(RENEWED_PAUSE, random=self._random)
            except SupervisorMiddlewareError as error:
                self._failed(error, lasted=self._clock.monotonic() - started)
                pause = max(self._pause(), asked_for(error, random=self._random))
            self._is_connected = False
            await self._clock.sleep(pause)

    def _address(self) -> str:
        return self._operator.addresses[self._turn % len(self._operator.addresses)]

    def _pause(self) -> float:
        """All addresses are one attempt: whoever leads is at one of them, and must not be tried last for long."""
        if self._was_heard:
            # Whoever ended this stream, or died, ended everybody's: they must not come to the next one together.
            self._was_heard = False
            return jittered(TAKEOVER_PAUSE, random=self._random)
        if self._turn % len(self._operator.addresses) != 0:
            return jittered(BACKOFF_MIN, random=self._random)
        lost_for = 0.0 if self._lost_at is None else self._clock.monotonic() - self._lost_at
        return self._backoff.next(at_most=TAKEOVER_PAUSE if lost_for < TAKEOVER else BACKOFF_MAX)

    async def _enrolled(self) -> Credentials:
        while True:
            change = self._identity.credentials.change
            if (credentials := self._identity.credentials.value) is not None:
                return credentials
            await change.wait()

    def _failed(self, error: SupervisorMiddlewareError, *, lasted: float) -> None:
        self._turn += 1
        if lasted >= STABLE_AFTER:
            self._backoff.reset()
        # Once an outage, not once an attempt.
        log = _log.debug if self._lost_at is not None and not self._is_connected else _log.warning
        log("no stream to the operator; what is served stays as it is", reason=str(error))
        if self._lost_at is None:
            self._lost_at = self._clock.monotonic()
        if isinstance(error, IdentityRefused):
            self._identity.refused()

    async def _session(self, address: str, credentials: Credentials) -> None:
        """One stream, until we have a reason of our own to begin anew.

        Raises:
            SupervisorMiddlewareError: the stream could not be had, or ended.
        """
        renewal = self._identity.credentials.change
        self._bundle_installed.clear()
        channel = open_operator_channel(
            address,
            trust_domain=self._operator.trust_domain,
            roots_pem=self._operator.trust.read(),
            credentials=credentials,
            options=self._operator.options,
        )
        began = self._clock.monotonic()
        try:
            stream = GenerationDiscoveryStub(channel).Watch(None)
            await stream.write(encode_report(self._following.hello()))
            self._is_connected = True
            probe_whom_we_reached(int(address.rpartition(":")[2]))
            self._speaking.outbox.restart(*self._speaking.state())
            await first_of(
                self._receive(stream, began=began), self._send(stream), renewal.wait(), self._bundle_installed.wait()
            )
        except aio.AioRpcError as error:
            raise translated(error, address=address) from error
        except asyncio.InvalidStateError as error:
            raise Unavailable(f"operator {address}: the stream ended") from error
        finally:
            await channel.close(None)

    async def _send(self, stream: "_Stream") -> None:
        while True:
            await stream.write(encode_report(await self._speaking.outbox.take()))

    async def _receive(self, stream: "_Stream", *, began: float) -> None:
        while isinstance(message := await stream.read(), pb.GenerationOffer):
            self._was_heard, self._lost_at = True, None
            self._backoff.reset()
            self._take(decode_offer(message))
        if self._clock.monotonic() - began < STABLE_AFTER:
            raise Unavailable("the operator ended the stream")
        # No stream lasts for ever: identity is proven at its beginning.

    def _take(self, offer: Offer) -> None:
        # An operator that lost its lease must not bring back a root. A bundle alone has an epoch and no sequence.
        known = self._following.rank
        is_stale = offer.rank < (known if offer.generation is not None else Rank(epoch=known.epoch))
        if offer.bundle is not None and not is_stale:
            self._take_bundle(offer.bundle)
        if offer.generation is not None:
            self._following.offer(offer.generation)
        elif not is_stale:
            self._following.follow(offer.rank.epoch)

    def _take_bundle(self, bundle: OfferedBundle) -> None:
        # Independent of the generation beside it: a bundle takes effect at once, however long that one waits.
        try:
            installation = self._operator.trust.install(bundle.pem, stated_digest=bundle.digest)
        except Untrusted as error:
            _log.error("a trust bundle was refused", reason=str(error))
            self._speaking.outbox.put(Rejected(digest=bundle.digest, reason=RejectionReason.TRUST_BUNDLE_INVALID))
            return
        if installation is Installation.INSTALLED:
            self._bundle_installed.set()


class _Stream(Protocol):
    async def read(self) -> object: ...

    async def write(self, request: pb.SupervisorReport, /) -> None: ...
