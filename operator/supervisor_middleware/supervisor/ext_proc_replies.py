"""What the supervisor says to Envoy, as ext_proc messages. PURE: an outcome in, a protobuf message out.

Owns how an `Outcome` becomes bytes on the way out (headers, framing, the refusal's JSON). A refusal is the platform's
own: it names policy, map key and codes, and never holds a service's text, a path or a query (OS-ERR-06, OS-ERR-07).
Called by `ext_proc` only.
"""

import json
import re
from typing import Final, assert_never

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from supervisor_middleware.errors import Bug
from supervisor_middleware.model.evaluation import ExistingHeader, Header, RemoveHeader
from supervisor_middleware.supervisor.exchange import Allowed, Cause, Denied
from supervisor_middleware.supervisor.headers import apply, is_protected, nominated_by
from supervisor_middleware.supervisor.http_request import Framing, RequestHead, encode_value

_FORBIDDEN: Final = 403
_UNAVAILABLE: Final = 503
_MAX_DETAIL: Final = 128
_MODE: Final = processing_mode_pb2.ProcessingMode


def untouched() -> pb.ProcessingResponse:
    """On with the request as it is: nothing was asked, the body is neither buffered nor sent to us."""
    return _head(pb.CommonResponse(), body_mode=_MODE.NONE)


def ask_for_body(framing: Framing) -> pb.ProcessingResponse:
    """Hold the head and send the body.

    A declared length is known to fit, so `BUFFERED` serves, which alone lets a new Content-Length be set; of a
    chunked body `BUFFERED_PARTIAL` sends us what a full buffer holds, so that the refusal is ours to audit.
    """
    mode = _MODE.BUFFERED if framing is Framing.DECLARED else _MODE.BUFFERED_PARTIAL
    return _head(pb.CommonResponse(), body_mode=mode)


def forward_head(head: RequestHead, allowed: Allowed) -> pb.ProcessingResponse:
    """Forward a request whose body was not asked for, with what the chain changed."""
    common = pb.CommonResponse(header_mutation=_header_mutation(head, allowed))
    if allowed.body:
        if head.framing is not Framing.NONE:
            raise Bug("a body was returned for a request that cannot have one")
        common.status = pb.CommonResponse.CONTINUE_AND_REPLACE
        common.body_mutation.body = allowed.body
    return _head(common, body_mode=_MODE.NONE)


def forward_body(head: RequestHead, allowed: Allowed) -> pb.ProcessingResponse:
    """Forward a request whose body was read, with what the chain changed."""
    common = pb.CommonResponse(header_mutation=_header_mutation(head, allowed))
    if allowed.body is not None:
        common.body_mutation.body = allowed.body
        if head.framing is Framing.DECLARED:
            _set(common.header_mutation, Header("content-length", str(len(allowed.body))), on_existing=_OVERWRITE)
    return pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))


def refuse(denied: Denied) -> pb.ProcessingResponse:
    """The platform's answer instead of the upstream's: 403, or 503 before the first generation."""
    status = _UNAVAILABLE if denied.cause is Cause.UNCONFIGURED else _FORBIDDEN
    return _immediate(status, denied, detail=_detail(denied))


def refuse_busy() -> pb.ProcessingResponse:
    """503: no permit. The same request may pass later (contract 4.9, rule 2)."""
    return _immediate(_UNAVAILABLE, Denied(cause=Cause.FAILED), detail="too many requests wait for middleware")


def proceed(phase: str) -> pb.ProcessingResponse:
    """On with a phase that the contract has no stage for (an Envoy not ours may be told to send it)."""
    response = pb.ProcessingResponse()
    getattr(response, phase).SetInParent()
    return response


def _head(common: pb.CommonResponse, *, body_mode: int) -> pb.ProcessingResponse:
    return pb.ProcessingResponse(
        request_headers=pb.HeadersResponse(response=common),
        mode_override=_MODE(
            request_body_mode=body_mode,
            request_trailer_mode=_MODE.SKIP,
            response_header_mode=_MODE.SKIP,
            response_body_mode=_MODE.NONE,
            response_trailer_mode=_MODE.SKIP,
        ),
    )


_OVERWRITE: Final = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_APPEND: Final = base_pb2.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD


def _header_mutation(head: RequestHead, allowed: Allowed) -> pb.HeaderMutation:
    # Envoy removes first and sets then, each once; the chain's mutations come in any order. Writes go to the end, so
    # what remains of the original lines is a prefix of the result and the rest is to be added.
    lost = {
        m.name for m in allowed.mutations if isinstance(m, RemoveHeader) or m.on_existing is ExistingHeader.OVERWRITE
    }
    kept = sum(h.name not in lost for h in head.headers)
    # RFC 9110 section 7.6.1: an intermediary removes what Connection nominates. No stage was shown it either.
    lost |= {name for name in nominated_by(head.headers) if not is_protected(name)}
    mutation = pb.HeaderMutation(remove_headers=sorted(lost & {h.name for h in head.headers}))
    for added in apply(allowed.mutations, head.headers)[kept:]:
        _set(mutation, added, on_existing=_APPEND)
    return mutation


def _set(mutation: pb.HeaderMutation, header: Header, *, on_existing: int) -> None:
    option = mutation.set_headers.add(append_action=on_existing, keep_empty_value=True)
    option.header.key = header.name
    option.header.raw_value = encode_value(header.value)
    if on_existing == _APPEND:
        # Zero in the enumeration: an Envoy cannot tell it from unset, and falls back to this older field.
        option.append.value = True


def _immediate(status: int, denied: Denied, *, detail: str) -> pb.ProcessingResponse:
    body = {
        "error": denied.cause.value,
        "detail": detail,
        "policy": denied.policy,
        "middleware": denied.key,
        **({"reason_code": denied.reason_code} if denied.reason_code else {}),
    }
    answer = pb.ImmediateResponse(body=json.dumps(body).encode(), details=denied.cause.value)
    answer.status.code = status
    _set(answer.headers, Header("content-type", "application/json"), on_existing=_OVERWRITE)
    return pb.ProcessingResponse(immediate_response=answer)


def _detail(denied: Denied) -> str:
    match denied.cause:
        case Cause.UNCONFIGURED:
            return "the supervisor has no configuration yet"
        case Cause.DENIED:
            # Contract 4.9: middleware_denied:<key>[:<reason_code>].
            key = re.sub(r"[^A-Za-z0-9_-]", "_", denied.key)
            return ":".join(filter(None, (denied.cause.value, key, denied.reason_code)))[:_MAX_DETAIL]
        case Cause.FAILED:
            code = "" if denied.code is None else f": {denied.code.value}"
            return f"{denied.cause.value}{code}"
        case _:
            assert_never(denied.cause)
