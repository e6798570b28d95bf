"""What is offered, and the bytes of it. PURE but for what it remembers: ranks, and each offer serialized once.

Supervisors that should run the same generation share one rank and one encoding, however many they are. A digest
that somebody newly gets moves to a fresh rank for everybody: nothing is sent for that alone, and no supervisor
ever sees its own rank go back.
"""

from collections.abc import Callable, Mapping

from supervisor_middleware.distribution.ledger import Wish
from supervisor_middleware.model.generation import Rank, Sealed
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.wire.gen import distribution_pb2 as pb


class Offers:
    """The newest generations by digest."""

    def __init__(self, *, epoch: int, trust_bundle: Callable[[], bytes]) -> None:
        """`trust_bundle` travels with every offer and is asked each time."""
        self._epoch, self._trust_bundle = epoch, trust_bundle
        self._sequence = 0
        self._wishes: dict[str, Wish] = {}
        self._sealed: dict[str, Sealed] = {}
        self._encoded: dict[str, tuple[Wish, bytes, bytes]] = {}
        self.encodings = 0

    def replace(self, generations: Mapping[str, Sealed]) -> Mapping[str, Wish]:
        """Take in what every supervisor (by key) should run; their wishes, with ranks."""
        fresh = {s.digest for key, s in generations.items() if self._digest_of(key) != s.digest}
        self._sequence += bool(fresh)
        rank = Rank(epoch=self._epoch, sequence=self._sequence)
        known = {wish.digest: wish for wish in self._wishes.values()}
        self._sealed = {s.digest: s for s in generations.values()}
        by_digest = {d: Wish(digest=d, rank=rank) if d in fresh else known[d] for d in self._sealed}
        self._wishes = {key: by_digest[s.digest] for key, s in generations.items()}
        self._encoded = {digest: e for digest, e in self._encoded.items() if digest in self._sealed}
        return self._wishes

    def encode(self, wish: Wish) -> bytes:
        """The offer of a current wish."""
        bundle = self._trust_bundle()
        known = self._encoded.get(wish.digest)
        if known is not None and known[:2] == (wish, bundle):
            return known[2]
        offer = _offer(bundle)
        offer.epoch, offer.sequence = wish.rank.epoch, wish.rank.sequence
        offer.digest, offer.payload = wish.digest, self._sealed[wish.digest].payload
        encoded = offer.SerializeToString()
        self._encoded[wish.digest] = (wish, bundle, encoded)
        self.encodings += 1
        return encoded

    def greeting(self, known_bundle: str) -> bytes:
        """What a stream begins with if there is no generation to offer: the epoch, and a trust bundle that is news.

        By the epoch a supervisor knows from then on what an operator that lost its lease says. It has no place in the
        sequence.
        """
        bundle = self._trust_bundle()
        offer = pb.GenerationOffer() if bundle_digest(bundle) == known_bundle else _offer(bundle)
        offer.epoch = self._epoch
        return offer.SerializeToString()

    def _digest_of(self, key: str) -> str | None:
        wish = self._wishes.get(key)
        return None if wish is None else wish.digest


def _offer(bundle: bytes) -> pb.GenerationOffer:
    return pb.GenerationOffer(trust_bundle_pem=bundle, trust_bundle_digest=bundle_digest(bundle))
