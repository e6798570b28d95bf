"""`EvaluateHttpRequest`'s answer: `Result` ⇄ bytes. Use it through `codec`.

A service's answer is untrusted: whatever arrives, the outcome is a `Result` or `StageFailed`. Only counts are
limited here, so that a hostile answer cannot make more values than the chain would accept; sizes are the chain's.
"""

from typing import Any, assert_never

from google.protobuf.message import DecodeError

from supervisor_middleware.model.evaluation import (
    Decision,
    FailureCode,
    Finding,
    HeaderMutation,
    RemoveHeader,
    Result,
    StageFailed,
    WriteHeader,
)
from supervisor_middleware.model.identifiers import is_reason_code
from supervisor_middleware.model.limits import MAX_FINDINGS, MAX_METADATA_ENTRIES, MAX_MUTATIONS
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.wire.dialects import (
    DECISION_NUMBERS,
    DECISIONS,
    EXISTING_HEADER_ACTION_NUMBERS,
    EXISTING_HEADER_ACTIONS,
    MESSAGES,
)
from supervisor_middleware.wire.framing import varints


def encode_result(dialect: Dialect, result: Result) -> bytes:
    """A server's answer. The rfc0009 dialect has no reason code: it is left out there.

    Raises:
        ValueError: text that is not Unicode, or a finding's count that no uint32 holds.
    """
    messages = MESSAGES[dialect]
    message = messages.HttpRequestResult(
        decision=DECISION_NUMBERS[result.decision],
        reason=result.reason,
        header_mutations=[_mutation_message(messages, mutation) for mutation in result.mutations],
        findings=[_finding_message(messages, finding) for finding in result.findings],
        metadata=dict(result.metadata),
    )
    if result.body is not None:
        message.has_body = True
        message.body = result.body
    if dialect is Dialect.RELEASED:
        message.reason_code = result.reason_code
    return bytes(message.SerializeToString(deterministic=True))


def decode_result(dialect: Dialect, data: bytes) -> Result:
    """A service's answer.

    A DENY stands whatever else is wrong with it, or a FailOpen stage could be bypassed by its own refusal: what
    cannot be taken from it is left out, up to everything, where the answer as a whole is no message.

    Raises:
        StageFailed: it breaks a rule of the contract; the code says which.
    """
    kind = MESSAGES[dialect].HttpRequestResult
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        if DECISION_NUMBERS[Decision.DENY] in varints(data, kind.DECISION_FIELD_NUMBER):
            return Result(decision=Decision.DENY)
        raise StageFailed(FailureCode.SERVICE_ERROR) from error
    reason_code = message.reason_code if dialect is Dialect.RELEASED else ""
    match DECISIONS.get(message.decision):
        case Decision.ALLOW:
            return _allowed(message, reason_code)
        case Decision.DENY:
            return _denied(message, reason_code)
        case None:
            raise StageFailed(FailureCode.INVALID_DECISION)
        case unknown:
            assert_never(unknown)


def _allowed(message: Any, reason_code: str) -> Result:
    if reason_code and not is_reason_code(reason_code):
        raise StageFailed(FailureCode.REASON_CODE_INVALID)
    for count, limit, code in (
        (len(message.header_mutations), MAX_MUTATIONS, FailureCode.MUTATION_COUNT_OVER_CAPACITY),
        (len(message.findings), MAX_FINDINGS, FailureCode.FINDINGS_OVER_CAPACITY),
        (len(message.metadata), MAX_METADATA_ENTRIES, FailureCode.METADATA_COUNT_OVER_CAPACITY),
    ):
        if count > limit:
            raise StageFailed(code)
    return Result(
        decision=Decision.ALLOW,
        reason=message.reason,
        reason_code=reason_code,
        body=message.body if message.has_body else None,
        mutations=tuple(_mutation(mutation) for mutation in message.header_mutations),
        findings=tuple(_finding(finding) for finding in message.findings),
        metadata=dict(message.metadata),
    )


def _denied(message: Any, reason_code: str) -> Result:
    """Of a refused request, body and mutations have no meaning."""
    findings, metadata = message.findings, message.metadata
    return Result(
        decision=Decision.DENY,
        reason=message.reason,
        reason_code=reason_code if is_reason_code(reason_code) else "",
        findings=tuple(_finding(finding) for finding in findings) if len(findings) <= MAX_FINDINGS else (),
        metadata=dict(metadata) if len(metadata) <= MAX_METADATA_ENTRIES else {},
    )


def _mutation(message: Any) -> HeaderMutation:
    match message.WhichOneof("operation"):
        case "write":
            action = EXISTING_HEADER_ACTIONS.get(message.write.on_existing)
            if action is None:
                raise StageFailed(FailureCode.MUTATION_INVALID_ACTION)
            return WriteHeader(name=message.write.name, value=message.write.value, on_existing=action)
        case "remove":
            return RemoveHeader(name=message.remove.name)
        case _:
            # Nothing set, or a kind of mutation that is newer than this code.
            raise StageFailed(FailureCode.MUTATION_EMPTY)


def _finding(message: Any) -> Finding:
    return Finding(
        type=message.type,
        label=message.label,
        count=message.count,
        confidence=message.confidence,
        severity=message.severity,
    )


def _mutation_message(messages: Any, mutation: HeaderMutation) -> Any:
    match mutation:
        case WriteHeader():
            action = EXISTING_HEADER_ACTION_NUMBERS[mutation.on_existing]
            write = messages.WriteHeader(name=mutation.name, value=mutation.value, on_existing=action)
            return messages.HeaderMutation(write=write)
        case RemoveHeader():
            return messages.HeaderMutation(remove=messages.RemoveHeader(name=mutation.name))
        case _:
            assert_never(mutation)


def _finding_message(messages: Any, finding: Finding) -> Any:
    return messages.Finding(
        type=finding.type,
        label=finding.label,
        count=finding.count,
        confidence=finding.confidence,
        severity=finding.severity,
    )
