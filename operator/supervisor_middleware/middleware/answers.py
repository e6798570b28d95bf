"""The contract's limits on what a service says: its manifest and its results. PURE, reports everything.

RFC 0009 "The middleware contract": every limit is public and an answer over one is no answer. The SDK judges before
sending, so that an author reads which limit it was instead of a supervisor's failed stage.
"""

import re
from collections.abc import Iterator
from typing import Final

from supervisor_middleware.compiler.manifest_checks import CHECKS, ManifestInput
from supervisor_middleware.model.evaluation import (
    FailureCode,
    Finding,
    HeaderMutation,
    RemoveHeader,
    Result,
    WriteHeader,
)
from supervisor_middleware.model.identifiers import is_reason_code
from supervisor_middleware.model.limits import (
    MAX_BINDINGS,
    MAX_BODY_BYTES,
    MAX_FINDING_BYTES,
    MAX_FINDINGS,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_MUTATION_DATA_BYTES,
    MAX_MUTATIONS,
    MAX_MUTATIONS_BYTES,
    MAX_REASON_BYTES,
)
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.wire.sizes import encoded_finding_size, encoded_mutations_size

HEADER_NAMESPACE: Final = "x-openshell-middleware-"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)  # RFC 9110 section 5.6.2
_SAFE_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")  # contract 4.10


def manifest_problems(manifest: Manifest, *, tolerated: frozenset[Reason] = frozenset()) -> Iterator[str]:
    """What keeps a registration from being accepted with `manifest`, whatever the registration says.

    The compiler's rulebook decides, so that a service and the operator cannot differ. Built-ins, which nobody
    registers, are judged with `RESERVED_NAMESPACE` tolerated.
    """
    if not 1 <= len(manifest.bindings) <= MAX_BINDINGS:
        yield f"1 to {MAX_BINDINGS} bindings are needed, {len(manifest.bindings)} are there"
    given = ManifestInput(manifest=manifest, max_body_bytes=0, declared=(), others=())
    problems = (problem for check in CHECKS for problem in check(given))
    yield from (message for _, reason, message, _ in problems if reason not in tolerated)


def result_problems(result: Result, *, max_body_bytes: int) -> Iterator[FailureCode]:
    """Every limit that `result` breaks, in the platform's own words: nothing of the content."""
    if result.body is not None and len(result.body) > min(max_body_bytes, MAX_BODY_BYTES):
        yield FailureCode.RESPONSE_BODY_OVER_CAPACITY
    if _size(result.reason) > MAX_REASON_BYTES:
        yield FailureCode.RESPONSE_REASON_OVER_CAPACITY
    if result.reason_code and not is_reason_code(result.reason_code):
        yield FailureCode.REASON_CODE_INVALID
    yield from _finding_problems(result.findings)
    if len(result.metadata) > MAX_METADATA_ENTRIES:
        yield FailureCode.METADATA_COUNT_OVER_CAPACITY
    if sum(_size(k) + _size(v) for k, v in result.metadata.items()) > MAX_METADATA_BYTES:
        yield FailureCode.METADATA_BYTES_OVER_CAPACITY
    yield from _mutation_problems(result.mutations)


def _finding_problems(findings: tuple[Finding, ...]) -> Iterator[FailureCode]:
    if len(findings) > MAX_FINDINGS:
        yield FailureCode.FINDINGS_OVER_CAPACITY
    if any(encoded_finding_size(finding) > MAX_FINDING_BYTES for finding in findings):
        yield FailureCode.FINDING_OVER_CAPACITY


def _mutation_problems(mutations: tuple[HeaderMutation, ...]) -> Iterator[FailureCode]:
    if len(mutations) > MAX_MUTATIONS:
        yield FailureCode.MUTATION_COUNT_OVER_CAPACITY
    data = sum(_size(m.name) + (_size(m.value) if isinstance(m, WriteHeader) else 0) for m in mutations)
    if data > MAX_MUTATION_DATA_BYTES or encoded_mutations_size(mutations) > MAX_MUTATIONS_BYTES:
        yield FailureCode.MUTATION_BYTES_OVER_CAPACITY
    # Which removals are protected depends on the request's Connection header: the supervisor judges those.
    yield from dict.fromkeys(code for mutation in mutations if (code := _mutation_problem(mutation)))


def _mutation_problem(mutation: HeaderMutation) -> FailureCode | None:
    if not _TOKEN.fullmatch(mutation.name):
        return FailureCode.MUTATION_INVALID_NAME
    if isinstance(mutation, RemoveHeader):
        return None
    if not mutation.name.lower().startswith(HEADER_NAMESPACE):
        return FailureCode.MUTATION_NAMESPACE
    return None if _SAFE_VALUE.fullmatch(mutation.value) else FailureCode.MUTATION_UNSAFE_VALUE


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
