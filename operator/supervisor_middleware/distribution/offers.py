"""The bytes of what is offered. PURE but for what it remembers: each generation serialized once.

Supervisors that should run the same generation share one encoding, however many they are. A rank that moves changes a
few bytes in front, and nothing is serialized again for that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.distribution.ledger import Wish
from supervisor_middleware.model.generation import Sealed
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.wire.gen import distribution_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one sandbox should run."""

    sandbox: Sandbox
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class _Bundle:
    pem: bytes
    digest: str


_NO_BUNDLE: Final = _Bundle(b"", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoded:
    """`data` begins with the rank, `head` bytes of it."""

    wish: Wish
    bundle: _Bundle
    head: int
    data: bytes


class Offers:
    """The generations that somebody should run, by digest."""

    def __init__(self, *, epoch: int, trust_bundle: Callable[[], bytes]) -> None:
        """`trust_bundle` travels with every offer and is asked each time."""
        self._epoch, self._trust_bundle = epoch, trust_bundle
        self._current = _NO_BUNDLE
        self._sealed: dict[str, Sealed] = {}
        self._services: dict[str, frozenset[str]] = {}
        self._encoded: dict[str, _Encoded] = {}
        self.encodings = 0

    def learn(self, sealed: Sealed) -> None:
        """Somebody should run this."""
        self._sealed.setdefault(sealed.digest, sealed)

    def forget(self, digest: str) -> None:
        """Nobody should run this any more."""
        self._sealed.pop(digest, None)
        self._services.pop(digest, None)
        self._encoded.pop(digest, None)

    def services(self, digest: str) -> frozenset[str]:
        """The names of the services that a generation needs; none of one that nobody should run."""
        known = self._services.get(digest)
        if known is None and digest in self._sealed:
            known = self._services[digest] = frozenset(s.name for s in self._sealed[digest].generation.services)
        return known or frozenset()

    def encode(self, wish: Wish) -> bytes:
        """The offer of a current wish."""
        bundle, known = self._bundle(), self._encoded.get(wish.digest)
        if known is not None and known.wish == wish and known.bundle is bundle:
            return known.data
        head = pb.GenerationOffer(epoch=wish.rank.epoch, sequence=wish.rank.sequence).SerializeToString()
        if known is not None and known.bundle is bundle:
            body = known.data[known.head :]
        else:
            sealed = self._sealed[wish.digest]
            body = _offer(bundle, digest=sealed.digest, payload=sealed.payload)
            self.encodings += 1
        # Serialized messages that follow one another are one message.
        self._encoded[wish.digest] = _Encoded(wish=wish, bundle=bundle, head=len(head), data=head + body)
        return self._encoded[wish.digest].data

    @property
    def bundle_digest(self) -> str:
        """Of the trust bundle as it is now."""
        return self._bundle().digest

    def greeting(self, known_bundle: str) -> bytes:
        """What a stream begins with if there is no generation to offer: the epoch, and a trust bundle that is news.

        By the epoch a supervisor knows from then on what an operator that lost its lease says. It has no place in the
        sequence.
        """
        bundle = self._bundle()
        epoch = pb.GenerationOffer(epoch=self._epoch).SerializeToString()
        return epoch if bundle.digest == known_bundle else epoch + _offer(bundle)

    def _bundle(self) -> _Bundle:
        pem = self._trust_bundle()
        if pem != self._current.pem:
            self._current = _Bundle(pem, bundle_digest(pem))
        return self._current


def _offer(bundle: _Bundle, *, digest: str = "", payload: bytes = b"") -> bytes:
    return pb.GenerationOffer(
        digest=digest, payload=payload, trust_bundle_pem=bundle.pem, trust_bundle_digest=bundle.digest
    ).SerializeToString()
