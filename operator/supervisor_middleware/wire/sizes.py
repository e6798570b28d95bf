"""Encoded sizes, for the limits of the contract. PURE arithmetic: no message is built.

RFC 0009 "The middleware contract" limits *encoded* bytes. Each function gives the size of the named message, of
its own, without the tag and length it gets inside an envelope; both dialects encode these messages alike. A config's
size is `model.struct_size`. Called by whoever judges a question before it is asked, or an answer.

Text that UTF-8 cannot hold (a lone surrogate) counts 3 bytes here and is refused by the codec.
"""

from typing import Final, assert_never

from supervisor_middleware.model.evaluation import (
    Finding,
    Header,
    HeaderMutation,
    Process,
    RemoveHeader,
    RequestContext,
    Target,
    WriteHeader,
)

# Every field number here is below 16, so every tag is one byte.
_TAG: Final = 1
_ENUM_FIELD: Final = 2


def utf8_size(text: str) -> int:
    """Bytes of `text` itself."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def encoded_context_size(context: RequestContext) -> int:
    """Bytes of a `RequestContext`."""
    process = 0 if context.process is None else _framed(_process_size(context.process))
    return _text(context.request_id) + _text(context.sandbox_id) + process


def encoded_target_size(target: Target) -> int:
    """Bytes of an `HttpRequestTarget`."""
    texts = (target.scheme, target.host, target.method, target.path, target.query)
    return sum(_text(text) for text in texts) + _number(target.port)


def encoded_headers_size(headers: tuple[Header, ...]) -> int:
    """The sum of the `HttpHeader` messages' bytes."""
    return sum(_text(header.name) + _text(header.value) for header in headers)


def encoded_finding_size(finding: Finding) -> int:
    """Bytes of one `Finding`."""
    texts = (finding.type, finding.label, finding.confidence, finding.severity)
    return sum(_text(text) for text in texts) + _number(finding.count)


def encoded_mutations_size(mutations: tuple[HeaderMutation, ...]) -> int:
    """The sum of the `HeaderMutation` messages' bytes."""
    return sum(_framed(_mutation_size(mutation)) for mutation in mutations)


def _process_size(process: Process) -> int:
    ancestors = sum(_framed(utf8_size(ancestor)) for ancestor in process.ancestors)
    return _text(process.binary) + _number(process.pid) + ancestors


def _mutation_size(mutation: HeaderMutation) -> int:
    match mutation:
        case WriteHeader():
            return _text(mutation.name) + _text(mutation.value) + _ENUM_FIELD
        case RemoveHeader():
            return _text(mutation.name)
        case _:
            assert_never(mutation)


def _text(text: str) -> int:
    """A plain string field: proto3 leaves an empty one out."""
    return _framed(utf8_size(text)) if text else 0


def _number(value: int) -> int:
    """A plain unsigned field: proto3 leaves zero out."""
    return _TAG + _varint(value) if value else 0


def _framed(length: int) -> int:
    return _TAG + _varint(length) + length


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
