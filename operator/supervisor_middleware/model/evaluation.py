"""One invocation of middleware and what comes back, free of protobuf. PURE.

RFC 0009 "The middleware contract". `wire/codec.py` turns these into either dialect; the chain, the stages, the
SDK and the built-ins speak nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from supervisor_middleware.model.canonical import JsonObject


class Decision(StrEnum):
    """A middleware's answer. There is no other: an unspecified or unknown one is an invalid result."""

    ALLOW = "allow"
    DENY = "deny"


class OnError(StrEnum):
    """What happens when a middleware gives no valid result (Kubernetes spelling; the wire has its own)."""

    FAIL_CLOSED = "FailClosed"
    FAIL_OPEN = "FailOpen"


class ExistingHeader(StrEnum):
    """What a header write does where the name is already present."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Header:
    """One header line; `name` lower-case, `value` trimmed. Duplicates and order are kept."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that opened the connection, when known; context, never identity."""

    binary: str
    pid: int
    ancestors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Who is asking. `request_id` is fresh for each request."""

    request_id: str
    sandbox_id: str
    process: Process | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the admitted request goes. `query` is raw and never logged, hence not in the repr."""

    scheme: str
    host: str
    port: int
    method: str
    path: str = field(repr=False)
    query: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The input of one stage. `body` is at most the stage's limit."""

    binding: str
    context: RequestContext
    config: JsonObject = field(repr=False)
    target: Target
    headers: tuple[Header, ...] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An audit-safe observation. From an operator-run service every text in it is untrusted."""

    type: str
    label: str = ""
    count: int = 1
    confidence: str = ""
    severity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteHeader:
    """Set a header in the `x-openshell-middleware-` namespace."""

    name: str
    value: str
    on_existing: ExistingHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveHeader:
    """Remove every line of a visible, unprotected header."""

    name: str


HeaderMutation: TypeAlias = WriteHeader | RemoveHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The output of one stage. `body` None keeps the previous body; empty bytes replace it with nothing."""

    decision: Decision
    reason: str = field(default="", repr=False)
    reason_code: str = ""
    body: bytes | None = field(default=None, repr=False)
    mutations: tuple[HeaderMutation, ...] = ()
    findings: tuple[Finding, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)


class FailureCode(StrEnum):
    """Why a stage gave no valid result: the platform's own words, safe for audit and denied responses."""

    BINDING_NOT_DESCRIBED = "binding_not_described"
    REQUEST_BODY_OVER_CAPACITY = "request_body_over_capacity"
    REQUEST_CONFIG_OVER_CAPACITY = "request_config_over_capacity"
    REQUEST_CONTEXT_OVER_CAPACITY = "request_context_over_capacity"
    REQUEST_TARGET_OVER_CAPACITY = "request_target_over_capacity"
    REQUEST_HEADER_COUNT_OVER_CAPACITY = "request_header_count_over_capacity"
    REQUEST_HEADER_BYTES_OVER_CAPACITY = "request_header_bytes_over_capacity"
    CHAIN_TIMEOUT = "middleware_chain_timeout"
    TIMEOUT = "middleware_timeout"
    SERVICE_ERROR = "external_service_error"
    INVALID_DECISION = "invalid_response_decision"
    RESPONSE_BODY_OVER_CAPACITY = "response_body_over_capacity"
    RESPONSE_REASON_OVER_CAPACITY = "response_reason_over_capacity"
    REASON_CODE_INVALID = "response_reason_code_invalid"
    FINDINGS_OVER_CAPACITY = "response_findings_over_capacity"
    FINDING_OVER_CAPACITY = "response_finding_over_capacity"
    METADATA_COUNT_OVER_CAPACITY = "response_metadata_count_over_capacity"
    METADATA_BYTES_OVER_CAPACITY = "response_metadata_bytes_over_capacity"
    RESPONSE_OVER_CAPACITY = "response_envelope_over_capacity"
    MUTATION_COUNT_OVER_CAPACITY = "header_mutation_count_over_capacity"
    MUTATION_BYTES_OVER_CAPACITY = "header_mutation_bytes_over_capacity"
    MUTATION_INVALID_NAME = "header_mutation_invalid_name"
    MUTATION_PROTECTED_HEADER = "header_mutation_protected_header"
    MUTATION_HOP_BY_HOP = "header_mutation_hop_by_hop_header"
    MUTATION_NAMESPACE = "header_mutation_write_namespace"
    MUTATION_UNSAFE_VALUE = "header_mutation_unsafe_value"
    MUTATION_INVALID_ACTION = "header_mutation_invalid_existing_action"
    MUTATION_EMPTY = "header_mutation_empty"
    # Ours: a stage of the generation that cannot run at all, a chain that is too long, traffic no stage can be shown.
    UNRESOLVED_STAGE = "unresolved_stage"
    STAGES_OVER_CAPACITY = "chain_stages_over_capacity"
    UNINSPECTABLE = "traffic_uninspectable"


class StageFailed(Exception):  # noqa: N818 - the chain's word for it
    """A stage gave no valid result. Carries the code only: never a service's text."""

    def __init__(self, code: FailureCode) -> None:
        super().__init__(code.value)
        self.code = code
