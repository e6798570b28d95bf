"""`EvaluateHttpRequest`'s question: `Evaluation` ⇄ bytes, for every request. Use it through `codec`.

Config and body are framed by hand around the rest of the message: put into it, a 4 MiB body costs 10 ms of copying,
and a config would be encoded again for each request.
"""

from typing import Any, assert_never

from google.protobuf.message import DecodeError

from supervisor_middleware.model.evaluation import (
    Evaluation,
    FailureCode,
    Header,
    Process,
    RequestContext,
    StageFailed,
    Target,
)
from supervisor_middleware.model.limits import MAX_HEADER_LINES
from supervisor_middleware.model.manifest import Dialect, Phase
from supervisor_middleware.wire import structs
from supervisor_middleware.wire.dialects import MESSAGES, PHASE_NUMBERS, PHASES
from supervisor_middleware.wire.framing import length_delimited
from supervisor_middleware.wire.structs import ConfigStruct
from supervisor_middleware.wire.undecodable import RequestUndecodable


def encode_evaluation(
    dialect: Dialect, evaluation: Evaluation, *, config_struct: ConfigStruct | None = None
) -> bytes:
    """One stage's question. `config_struct`, when given, stands for `evaluation.config` and saves encoding it.

    Limits are the chain's to check first (`sizes`).

    Raises:
        StageFailed: text that UTF-8 or a number that the wire cannot carry: no service can be shown this request.
        ConfigUnencodable: no Struct holds the config (never with `config_struct`).
    """
    config = structs.config_struct(evaluation.config) if config_struct is None else config_struct
    try:
        head = _head(dialect, evaluation).SerializeToString()
    except ValueError:
        # The text may be the request's own, so it does not travel in the error's chain.
        raise StageFailed(FailureCode.UNINSPECTABLE) from None
    message = MESSAGES[dialect].HttpRequestEvaluation
    body = length_delimited(message.BODY_FIELD_NUMBER, evaluation.body) if evaluation.body else ()
    return b"".join((head, *length_delimited(message.CONFIG_FIELD_NUMBER, config.encoded), *body))


def decode_evaluation(dialect: Dialect, data: bytes) -> Evaluation:
    """What a server is asked.

    Raises:
        RequestUndecodable: no such request of this dialect, another phase, or more headers than the contract allows.
    """
    try:
        message = MESSAGES[dialect].HttpRequestEvaluation.FromString(data)
        config = structs.json_object(message.config)
    except (DecodeError, ValueError) as error:
        raise RequestUndecodable("the request is not an HttpRequestEvaluation of this dialect") from error
    # Read in the other dialect, a request has no phase: field 1 (and 2) carry another wire type there.
    if PHASES.get(message.phase) is not Phase.PRE_CREDENTIALS:
        raise RequestUndecodable("the request's phase is not PRE_CREDENTIALS, or it speaks the other dialect")
    binding = message.binding_id if dialect is Dialect.RFC0009 else message.middleware_name
    if not binding:
        raise RequestUndecodable("the request names no binding")
    if len(message.headers) > MAX_HEADER_LINES:
        raise RequestUndecodable(f"the request has over {MAX_HEADER_LINES} header lines")
    return Evaluation(
        binding=binding,
        context=_context(message.context),
        config=config,
        target=_target(message.target),
        headers=tuple(Header(h.name, h.value) for h in message.headers),
        body=message.body,
    )


def _head(dialect: Dialect, evaluation: Evaluation) -> Any:
    """The message without config and body."""
    messages = MESSAGES[dialect]
    message = messages.HttpRequestEvaluation(
        phase=PHASE_NUMBERS[Phase.PRE_CREDENTIALS],
        context=_context_message(messages, evaluation.context),
        target=_target_message(messages, evaluation.target),
        headers=[messages.HttpHeader(name=h.name, value=h.value) for h in evaluation.headers],
    )
    match dialect:
        case Dialect.RFC0009:
            message.binding_id = evaluation.binding
        case Dialect.RELEASED:
            message.middleware_name = evaluation.binding
        case _:
            assert_never(dialect)
    return message


def _context_message(messages: Any, context: RequestContext) -> Any:
    message = messages.RequestContext(request_id=context.request_id, sandbox_id=context.sandbox_id)
    if context.process is not None:
        process = context.process
        message.originating_process.CopyFrom(
            messages.Process(binary=process.binary, pid=process.pid, ancestors=process.ancestors)
        )
    return message


def _target_message(messages: Any, target: Target) -> Any:
    return messages.HttpRequestTarget(
        scheme=target.scheme,
        host=target.host,
        port=target.port,
        method=target.method,
        path=target.path,
        query=target.query,
    )


def _context(message: Any) -> RequestContext:
    process = None
    if message.HasField("originating_process"):
        origin = message.originating_process
        process = Process(binary=origin.binary, pid=origin.pid, ancestors=tuple(origin.ancestors))
    return RequestContext(request_id=message.request_id, sandbox_id=message.sandbox_id, process=process)


def _target(message: Any) -> Target:
    return Target(
        scheme=message.scheme,
        host=message.host,
        port=message.port,
        method=message.method,
        path=message.path,
        query=message.query,
    )
