"""Bytes that are made once, whatever rank they travel with."""

from supervisor_middleware.distribution.ledger import Wish
from supervisor_middleware.distribution.offers import Offers
from supervisor_middleware.model.generation import Rank, seal
from supervisor_middleware.pki.bundles import bundle_digest
from supervisor_middleware.wire.gen import distribution_pb2 as pb
from tests.builders import a_generation, a_service, a_stage
from tests.pki.builders import an_authority

ONE = seal(a_generation(a_stage("one"), services=[a_service("acme")]))
OLD, NEW = an_authority().certificate_pem, an_authority().certificate_pem


def a_wish(sequence: int = 1) -> Wish:
    return Wish(digest=ONE.digest, rank=Rank(epoch=7, sequence=sequence))


def an_offer(sequence: int, bundle: bytes) -> pb.GenerationOffer:
    return pb.GenerationOffer(
        epoch=7,
        sequence=sequence,
        digest=ONE.digest,
        payload=ONE.payload,
        trust_bundle_pem=bundle,
        trust_bundle_digest=bundle_digest(bundle),
    )


class Bundle:
    pem = OLD

    def __call__(self) -> bytes:
        return self.pem


def some_offers(bundle: Bundle) -> Offers:
    offers = Offers(epoch=7, trust_bundle=bundle)
    offers.learn(ONE)
    return offers


def test_a_rank_that_moves_serializes_nothing_again() -> None:
    offers = some_offers(Bundle())
    assert pb.GenerationOffer.FromString(offers.encode(a_wish(1))) == an_offer(1, OLD)
    assert offers.encode(a_wish(1)) is offers.encode(a_wish(1))
    assert pb.GenerationOffer.FromString(offers.encode(a_wish(300))) == an_offer(300, OLD)
    assert offers.encodings == 1


def test_a_new_bundle_travels_with_the_next_offer() -> None:
    offers = some_offers(bundle := Bundle())
    offers.encode(a_wish())
    bundle.pem = NEW
    assert pb.GenerationOffer.FromString(offers.encode(a_wish())) == an_offer(1, NEW)
    assert offers.encodings == 2


def test_a_greeting_has_the_bundle_only_where_it_is_news() -> None:
    offers = some_offers(Bundle())
    assert pb.GenerationOffer.FromString(offers.greeting(bundle_digest(OLD))) == pb.GenerationOffer(epoch=7)
    greeting = pb.GenerationOffer.FromString(offers.greeting(""))
    assert (greeting.epoch, greeting.trust_bundle_pem, greeting.digest) == (7, OLD, "")


def test_of_what_nobody_should_run_nothing_is_kept() -> None:
    offers = some_offers(Bundle())
    offers.encode(a_wish())
    assert offers.services(ONE.digest) == {"acme"}
    offers.forget(ONE.digest)
    assert offers.services(ONE.digest) == frozenset()
    assert (offers._sealed, offers._encoded, offers._services) == ({}, {}, {})
