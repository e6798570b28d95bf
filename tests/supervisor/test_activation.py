import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.canonical import canonical, digest
from supervisor_middleware.model.generation import Generation, Rank, Service, Stage, seal
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.supervisor.activation import (
    MAX_REJECTIONS,
    NOTHING_HELD,
    Candidate,
    Held,
    OfferedGeneration,
    Refusal,
    RejectionReason,
    examine,
)
from supervisor_middleware.supervisor.capability import ServiceState, missing_bindings, state_of
from tests.supervisor.builders import stage

READY, DOWN, INCAPABLE = ServiceState.READY, ServiceState.UNREACHABLE, ServiceState.INCAPABLE
RANKS = st.builds(
    lambda epoch, sequence: Rank(epoch=epoch, sequence=sequence),
    st.integers(min_value=0, max_value=2**64 - 1),
    st.integers(min_value=0, max_value=2**64 - 1),
)


def a_binding(identifier: str = "acme/redact", *, limit: int = 100) -> Binding:
    return Binding(id=identifier, operation=Operation.HTTP_REQUEST, phase=Phase.PRE_CREDENTIALS, max_body_bytes=limit)


def a_service(name: str = "acme", *, port: int = 443, needs: tuple[Binding, ...] = (a_binding(),)) -> Service:
    connection = Connection(endpoint=f"https://{name}.test:{port}", timeout=timedelta(seconds=1))
    return Service(name=name, connection=connection, dialect=Dialect.RFC0009, needs=needs)


def a_generation(*services: Service) -> Generation:
    return Generation(stages=tuple(stage(s.name, service=s.name) for s in services), services=services)


def an_offer(generation: Generation, *, epoch: int = 1, sequence: int = 1) -> OfferedGeneration:
    sealed = seal(generation)
    rank = Rank(epoch=epoch, sequence=sequence)
    return OfferedGeneration(rank=rank, digest=sealed.digest, payload=sealed.payload)


OLD = a_service("old")


def test_a_whole_generation_becomes_a_candidate() -> None:
    offer = an_offer(a_generation(OLD), epoch=3, sequence=4)
    found = examine(offer, held=NOTHING_HELD)
    assert isinstance(found, Candidate)
    assert (found.sealed.payload, found.rank) == (offer.payload, offer.rank)


@given(held=RANKS, offered=RANKS)
def test_a_pair_is_refused_exactly_when_it_is_lower(held: Rank, offered: Rank) -> None:
    offer = replace(an_offer(Generation()), rank=offered)
    found = examine(offer, held=Held(rank=held))
    is_lower = (offered.epoch, offered.sequence) < (held.epoch, held.sequence)
    assert isinstance(found, Refusal) is is_lower
    if isinstance(found, Refusal):
        assert found.reason is RejectionReason.STALE
        assert not found.is_about_content


def payload_of(**changes: object) -> bytes:
    return canonical({**json.loads(a_generation(OLD).payload()), **changes})  # type: ignore[dict-item]


def twice(key: str) -> bytes:
    value = json.loads(a_generation(OLD).payload())
    return payload_of(**{key: value[key] * 2})


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", RejectionReason.MALFORMED),
        (b"\xff\xfe", RejectionReason.MALFORMED),
        (b"[" * 100_000, RejectionReason.MALFORMED),
        (b"[]", RejectionReason.MALFORMED),
        (b"null", RejectionReason.MALFORMED),
        (b"{}", RejectionReason.MALFORMED),
        (payload_of(stages=7), RejectionReason.MALFORMED),
        (payload_of(schemaVersion=0), RejectionReason.MALFORMED),
        (payload_of(schemaVersion="2"), RejectionReason.MALFORMED),
        (payload_of(schemaVersion=3), RejectionReason.UNSUPPORTED),
        (
            payload_of().replace(b'"activationDeadline":null', b'"activationDeadline":"99h"'),
            RejectionReason.MALFORMED,
        ),
        (payload_of().replace(b'"maxBodyBytes":100', b'"maxBodyBytes":1e999'), RejectionReason.MALFORMED),
        (twice("stages"), RejectionReason.MALFORMED),
        (b" " * MAX_STREAM_MESSAGE_BYTES + payload_of(), RejectionReason.MALFORMED),
        (twice("services"), RejectionReason.MALFORMED),
    ],
)
def test_what_is_no_generation_of_ours_is_refused_for_good(payload: bytes, reason: RejectionReason) -> None:
    offer = OfferedGeneration(rank=Rank(epoch=1), digest=digest(payload), payload=payload)
    assert examine(offer, held=NOTHING_HELD) == Refusal(digest=offer.digest, reason=reason)


def test_a_payload_with_another_digest_is_refused_and_the_digest_never_tried_again() -> None:
    good = an_offer(Generation())
    refusal = examine(replace(good, payload=b"{}"), held=NOTHING_HELD)
    assert refusal == Refusal(digest=good.digest, reason=RejectionReason.DIGEST_MISMATCH)
    assert isinstance(refusal, Refusal)
    assert examine(good, held=NOTHING_HELD.refused(refusal)) == refusal


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:" + "0" * 63, "md5:" + "0" * 64, "x" * 10_000])
def test_a_digest_that_is_none_is_neither_repeated_nor_remembered(text: str) -> None:
    refusal = examine(replace(an_offer(Generation()), digest=text), held=NOTHING_HELD)
    assert refusal == Refusal(digest="", reason=RejectionReason.MALFORMED)
    assert isinstance(refusal, Refusal)
    assert NOTHING_HELD.refused(refusal) == NOTHING_HELD


def test_remembered_refusals_are_bounded_and_the_oldest_goes_first() -> None:
    held = NOTHING_HELD
    refusals = [
        Refusal(digest=f"sha256:{n:064x}", reason=RejectionReason.MALFORMED) for n in range(MAX_REJECTIONS + 2)
    ]
    for refusal in refusals:
        held = held.refused(refusal)
    assert held.refusals == tuple(refusals[2:])
    assert held.refused(refusals[-1]) is held


def a_manifest(*bindings: Binding, dialect: Dialect = Dialect.RFC0009) -> Manifest:
    return Manifest(name="any", service_version="2", dialect=dialect, bindings=bindings)


@pytest.mark.parametrize(
    ("manifest", "state"),
    [
        (None, DOWN),
        (a_manifest(a_binding()), READY),
        (a_manifest(a_binding(limit=101), a_binding("acme/other")), READY),
        (a_manifest(a_binding(limit=99)), INCAPABLE),
        (a_manifest(a_binding("acme/other")), INCAPABLE),
        (a_manifest(replace(a_binding(), phase=Phase.PRE_RETURN)), INCAPABLE),
        (a_manifest(replace(a_binding(), operation=Operation.WEBSOCKET_MESSAGE)), INCAPABLE),
        (a_manifest(a_binding(), dialect=Dialect.RELEASED), INCAPABLE),
        (a_manifest(), INCAPABLE),
    ],
)
def test_a_service_is_judged_by_what_is_needed_of_it(manifest: Manifest | None, state: ServiceState) -> None:
    assert state_of(manifest, service=a_service()) is state


def test_missing_bindings_are_named() -> None:
    service = a_service(needs=(a_binding("a"), a_binding("b"), a_binding("c", limit=5)))
    assert missing_bindings(a_manifest(a_binding("a"), a_binding("c", limit=4)), service=service) == ("b", "c")


def test_stages_keep_their_type() -> None:
    assert all(isinstance(s, Stage) for s in a_generation(OLD).stages)
