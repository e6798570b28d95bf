"""The public limits of what a stage is asked, measured. PURE.

RFC 0009 "The middleware contract": "V1 applies explicit public envelope limits before invoking a service or
accepting its result." Owns the order in which limits are looked at, hence which code an author sees; those of results
are in `wire.result_limits`. Never decides what a breach means: the chain follows the stage's `on_error`.
"""

from collections.abc import Callable
from typing import Final

from supervisor_middleware.model.evaluation import Evaluation, FailureCode
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.limits import (
    MAX_BODY_BYTES,
    MAX_CONFIG_BYTES,
    MAX_CONTEXT_BYTES,
    MAX_HEADER_LINES,
    MAX_HEADERS_BYTES,
    MAX_TARGET_BYTES,
)
from supervisor_middleware.model.struct_size import struct_size
from supervisor_middleware.wire.sizes import (
    encoded_context_size,
    encoded_headers_size,
    encoded_target_size,
)

_LIMITS: Final[tuple[tuple[Callable[[Evaluation], int], int, FailureCode], ...]] = (
    (lambda e: struct_size(e.config), MAX_CONFIG_BYTES, FailureCode.REQUEST_CONFIG_OVER_CAPACITY),
    (lambda e: encoded_context_size(e.context), MAX_CONTEXT_BYTES, FailureCode.REQUEST_CONTEXT_OVER_CAPACITY),
    (lambda e: encoded_target_size(e.target), MAX_TARGET_BYTES, FailureCode.REQUEST_TARGET_OVER_CAPACITY),
    (lambda e: len(e.headers), MAX_HEADER_LINES, FailureCode.REQUEST_HEADER_COUNT_OVER_CAPACITY),
    (lambda e: encoded_headers_size(e.headers), MAX_HEADERS_BYTES, FailureCode.REQUEST_HEADER_BYTES_OVER_CAPACITY),
)


def body_limit(stage: Stage) -> int:
    """The bytes a stage may be sent, and may send back."""
    return min(stage.max_body_bytes, MAX_BODY_BYTES)


def request_breach(stage: Stage, evaluation: Evaluation) -> FailureCode | None:
    """The first limit that keeps `evaluation` from being sent to `stage`."""
    if len(evaluation.body) > body_limit(stage):
        return FailureCode.REQUEST_BODY_OVER_CAPACITY
    return next((code for measure, limit, code in _LIMITS if measure(evaluation) > limit), None)
