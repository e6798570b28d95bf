"""The public limits of one invocation, measured. PURE.

RFC 0009 "The middleware contract": "V1 applies explicit public envelope limits before invoking a service or
accepting its result." Owns the order in which limits are looked at, hence which code an author sees. Never decides
what a breach means: the chain follows the stage's `on_error`.
"""

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from supervisor_middleware.model.evaluation import Evaluation, FailureCode, Result
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.identifiers import is_reason_code
from supervisor_middleware.model.limits import (
    MAX_BODY_BYTES,
    MAX_CONFIG_BYTES,
    MAX_CONTEXT_BYTES,
    MAX_FINDING_BYTES,
    MAX_FINDINGS,
    MAX_HEADER_LINES,
    MAX_HEADERS_BYTES,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_REASON_BYTES,
    MAX_TARGET_BYTES,
)
from supervisor_middleware.model.struct_size import struct_size
from supervisor_middleware.wire.sizes import (
    encoded_context_size,
    encoded_finding_size,
    encoded_headers_size,
    encoded_target_size,
)

_T = TypeVar("_T")
_Limit: TypeAlias = tuple[Callable[[_T], int], int, FailureCode]


def _largest_finding(result: Result) -> int:
    return max(map(encoded_finding_size, result.findings), default=0)


def _metadata_bytes(result: Result) -> int:
    return sum(_utf8(key) + _utf8(value) for key, value in result.metadata.items())


def _utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


_REQUEST_LIMITS: Final[tuple[_Limit[Evaluation], ...]] = (
    (lambda e: struct_size(e.config), MAX_CONFIG_BYTES, FailureCode.REQUEST_CONFIG_OVER_CAPACITY),
    (lambda e: encoded_context_size(e.context), MAX_CONTEXT_BYTES, FailureCode.REQUEST_CONTEXT_OVER_CAPACITY),
    (lambda e: encoded_target_size(e.target), MAX_TARGET_BYTES, FailureCode.REQUEST_TARGET_OVER_CAPACITY),
    (lambda e: len(e.headers), MAX_HEADER_LINES, FailureCode.REQUEST_HEADER_COUNT_OVER_CAPACITY),
    (lambda e: encoded_headers_size(e.headers), MAX_HEADERS_BYTES, FailureCode.REQUEST_HEADER_BYTES_OVER_CAPACITY),
)
_OBSERVATION_LIMITS: Final[tuple[_Limit[Result], ...]] = (
    (lambda r: len(r.findings), MAX_FINDINGS, FailureCode.FINDINGS_OVER_CAPACITY),
    (_largest_finding, MAX_FINDING_BYTES, FailureCode.FINDING_OVER_CAPACITY),
    (lambda r: len(r.metadata), MAX_METADATA_ENTRIES, FailureCode.METADATA_COUNT_OVER_CAPACITY),
    (_metadata_bytes, MAX_METADATA_BYTES, FailureCode.METADATA_BYTES_OVER_CAPACITY),
)


def body_limit(stage: Stage) -> int:
    """The bytes a stage may be sent, and may send back."""
    return min(stage.max_body_bytes, MAX_BODY_BYTES)


def request_breach(stage: Stage, evaluation: Evaluation) -> FailureCode | None:
    """The first limit that keeps `evaluation` from being sent to `stage`."""
    if len(evaluation.body) > body_limit(stage):
        return FailureCode.REQUEST_BODY_OVER_CAPACITY
    return _first_breach(_REQUEST_LIMITS, evaluation)


def response_breach(stage: Stage, result: Result) -> FailureCode | None:
    """The first limit that makes an ALLOW of `stage` invalid; its mutations are judged by `headers.validate`."""
    if result.body is not None and len(result.body) > body_limit(stage):
        return FailureCode.RESPONSE_BODY_OVER_CAPACITY
    if _utf8(result.reason) > MAX_REASON_BYTES:
        return FailureCode.RESPONSE_REASON_OVER_CAPACITY
    if result.reason_code and not is_reason_code(result.reason_code):
        return FailureCode.REASON_CODE_INVALID
    return observation_breach(result)


def observation_breach(result: Result) -> FailureCode | None:
    """The first limit that findings and metadata break: all of a DENY that can still be over one."""
    return _first_breach(_OBSERVATION_LIMITS, result)


def _first_breach(limits: tuple[_Limit[_T], ...], value: _T) -> FailureCode | None:
    return next((code for measure, limit, code in limits if measure(value) > limit), None)
