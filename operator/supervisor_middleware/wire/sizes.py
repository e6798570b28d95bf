"""Encoded sizes, for the limits of the contract. PURE arithmetic: nothing is built, nothing can fail halfway.

RFC 0009 "The middleware contract" limits *encoded* bytes. Each function gives the size of the named message, of
its own, without the tag and length it gets inside an envelope; both dialects encode these messages alike. Called by
the chain before a stage is asked and on what it answers, and by the compiler's callers for configs.

Text that UTF-8 cannot hold (a lone surrogate) counts 3 bytes here and is refused by the codec.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from supervisor_middleware.model.canonical import JsonObject, JsonValue
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
_DOUBLE_FIELD: Final = 9


def encoded_config_size(config: JsonObject) -> int:
    """Bytes of `config` as a `google.protobuf.Struct`."""
    return sum(_framed(_map_text(key) + _framed(_value_size(value))) for key, value in config.items())


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
    ancestors = sum(_framed(_utf8(ancestor)) for ancestor in process.ancestors)
    return _text(process.binary) + _number(process.pid) + ancestors


def _mutation_size(mutation: HeaderMutation) -> int:
    match mutation:
        case WriteHeader():
            return _text(mutation.name) + _text(mutation.value) + _ENUM_FIELD
        case RemoveHeader():
            return _text(mutation.name)


def _value_size(value: JsonValue) -> int:
    # A Value is a oneof: whatever is set is on the wire, zero and empty included.
    match value:
        case None | bool():
            return _ENUM_FIELD
        case int() | float():
            return _DOUBLE_FIELD
        case str():
            return _framed(_utf8(value))
        case Mapping():
            return _framed(encoded_config_size(value))
        case Sequence():
            return _framed(sum(_framed(_value_size(item)) for item in value))


def _text(text: str) -> int:
    """A plain string field: proto3 leaves an empty one out."""
    return _framed(_utf8(text)) if text else 0


def _map_text(text: str) -> int:
    """A map's key: on the wire even when empty."""
    return _framed(_utf8(text))


def _number(value: int) -> int:
    """A plain unsigned field: proto3 leaves zero out."""
    return _TAG + _varint(value) if value else 0


def _framed(length: int) -> int:
    return _TAG + _varint(length) + length


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
