"""Which limits of the contract a result breaks. PURE; one judgement for who sends a result and who receives it.

RFC 0009 "The middleware contract": every limit is public, and an answer over one is no answer. Each function yields
every breach in the contract's order, hence the first is the one a supervisor acts on. Called by the chain and by the
SDK. Never decides what a breach means, and repeats nothing of the content.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from supervisor_middleware.model.evaluation import FailureCode, HeaderMutation, RemoveHeader, Result, WriteHeader
from supervisor_middleware.model.identifiers import is_reason_code
from supervisor_middleware.model.limits import (
    MAX_FINDING_BYTES,
    MAX_FINDINGS,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_MUTATION_DATA_BYTES,
    MAX_MUTATIONS,
    MAX_MUTATIONS_BYTES,
    MAX_REASON_BYTES,
)
from supervisor_middleware.wire.sizes import encoded_finding_size, encoded_mutations_size, utf8_size

WRITE_NAMESPACE: Final = "x-openshell-middleware-"

# RFC 9110 section 5.6.2: a field name is a token.
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# TAB, 0x20 to 0x7E and everything from 0x80 on; a lone surrogate has no bytes at all.
_SAFE_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\ud7ff\ue000-\U0010ffff]*")


def answer_breaches(result: Result, *, max_body_bytes: int) -> Iterator[FailureCode]:
    """What is wrong with body, reason, reason code and observations; mutations are judged apart."""
    if result.body is not None and len(result.body) > max_body_bytes:
        yield FailureCode.RESPONSE_BODY_OVER_CAPACITY
    if utf8_size(result.reason) > MAX_REASON_BYTES:
        yield FailureCode.RESPONSE_REASON_OVER_CAPACITY
    if result.reason_code and not is_reason_code(result.reason_code):
        yield FailureCode.REASON_CODE_INVALID
    yield from observation_breaches(result)


def observation_breaches(result: Result) -> Iterator[FailureCode]:
    """What is wrong with findings and metadata: all of a DENY that can still be over a limit."""
    if len(result.findings) > MAX_FINDINGS:
        yield FailureCode.FINDINGS_OVER_CAPACITY
    if any(encoded_finding_size(finding) > MAX_FINDING_BYTES for finding in result.findings):
        yield FailureCode.FINDING_OVER_CAPACITY
    if len(result.metadata) > MAX_METADATA_ENTRIES:
        yield FailureCode.METADATA_COUNT_OVER_CAPACITY
    if sum(utf8_size(key) + utf8_size(value) for key, value in result.metadata.items()) > MAX_METADATA_BYTES:
        yield FailureCode.METADATA_BYTES_OVER_CAPACITY


def mutation_breaches(
    mutations: tuple[HeaderMutation, ...], *, untouchable: Callable[[str], FailureCode | None] = lambda _: None
) -> Iterator[FailureCode]:
    """What keeps `mutations` from being applied, together or not at all.

    `untouchable` says of a lower-case name why no stage may change it: the supervisor knows, from the request.
    """
    if len(mutations) > MAX_MUTATIONS:
        yield FailureCode.MUTATION_COUNT_OVER_CAPACITY
    if encoded_mutations_size(mutations) > MAX_MUTATIONS_BYTES:
        yield FailureCode.MUTATION_BYTES_OVER_CAPACITY
    data = 0
    for mutation in mutations:
        if (code := _mutation_breach(mutation, untouchable)) is not None:
            yield code
        data += utf8_size(mutation.name) + (utf8_size(mutation.value) if isinstance(mutation, WriteHeader) else 0)
        if data > MAX_MUTATION_DATA_BYTES:
            yield FailureCode.MUTATION_BYTES_OVER_CAPACITY


def _mutation_breach(
    mutation: HeaderMutation, untouchable: Callable[[str], FailureCode | None]
) -> FailureCode | None:
    # The order of these checks decides which code an author sees, and is the contract's.
    name = mutation.name.lower()
    if not _TOKEN.fullmatch(mutation.name):
        return FailureCode.MUTATION_INVALID_NAME
    if (code := untouchable(name)) is not None:
        return code
    if isinstance(mutation, RemoveHeader):
        return None
    if not name.startswith(WRITE_NAMESPACE):
        return FailureCode.MUTATION_NAMESPACE
    return None if _SAFE_VALUE.fullmatch(mutation.value) else FailureCode.MUTATION_UNSAFE_VALUE
