"""`Describe`'s answer ⇄ `Manifest`, and which dialect it speaks. Use it through `codec`.

A manifest is untrusted: whatever arrives, the outcome is a `Manifest` or `ManifestUndecodable`. Whether its IDs,
limits and hooks make sense is the compiler's to judge.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from supervisor_middleware.model.canonical import MAX_EXACT_INTEGER
from supervisor_middleware.model.limits import MAX_BINDINGS, MAX_MANIFEST_BYTES
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.wire.dialects import MESSAGES, OPERATION_NUMBERS, OPERATIONS, PHASE_NUMBERS, PHASES
from supervisor_middleware.wire.gen import openshell_middleware_v1_pb2 as rfc0009
from supervisor_middleware.wire.gen import released_pb2 as released
from supervisor_middleware.wire.undecodable import ManifestUndecodable

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_BINDINGS: Final = rfc0009.MiddlewareManifest.BINDINGS_FIELD_NUMBER
_DIALECT_BY_WIRE_TYPE: Final = {_LENGTH_DELIMITED: Dialect.RFC0009, _VARINT: Dialect.RELEASED}


def decode_manifest(data: bytes, *, registration_name: str) -> Manifest:
    """What a service says of itself; a released service's bindings get the ID `registration_name`.

    Unknown fields are ignored, unknown operations and phases become `UNSUPPORTED`.

    Raises:
        ManifestUndecodable: too large, not protobuf, no or too many bindings, or not of one dialect.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestUndecodable(f"the manifest is over {MAX_MANIFEST_BYTES} bytes")
    try:
        if _dialect(_raw_bindings(data)) is Dialect.RFC0009:
            return _decode_rfc0009(rfc0009.MiddlewareManifest.FromString(data))
        return _decode_released(released.MiddlewareManifest.FromString(data), identifier=registration_name)
    except DecodeError as error:
        raise ManifestUndecodable("the manifest is not a protobuf message of the contract") from error


def encode_manifest(manifest: Manifest) -> bytes:
    """A server's answer to `Describe`, in the manifest's own dialect."""
    messages = MESSAGES[manifest.dialect]
    fields = _rfc0009_fields if manifest.dialect is Dialect.RFC0009 else _released_fields
    message = messages.MiddlewareManifest(
        name=manifest.name,
        service_version=manifest.service_version,
        bindings=[
            messages.MiddlewareBinding(
                # An unsupported hook has no number of its own; unspecified is as invalid.
                operation=OPERATION_NUMBERS.get(binding.operation, 0),
                phase=PHASE_NUMBERS.get(binding.phase, 0),
                timeout=binding.timeout,
                **fields(binding),
            )
            for binding in manifest.bindings
        ],
    )
    return bytes(message.SerializeToString())


def _raw_bindings(data: bytes) -> list[bytes]:
    bindings = [f.data for f in _fields(data) if f.field_number == _BINDINGS and f.wire_type == _LENGTH_DELIMITED]
    if not bindings:
        raise ManifestUndecodable("the manifest has no bindings")
    if len(bindings) > MAX_BINDINGS:
        raise ManifestUndecodable(f"the manifest has over {MAX_BINDINGS} bindings")
    return bindings


def _dialect(bindings: Iterable[bytes]) -> Dialect:
    """The one dialect that the bindings' first fields speak (contract section 2).

    A binding without field 1 (proto3 omits an empty ID and a zero operation) fits both dialects and is valid in
    neither, so the others decide and the compiler refuses that one by name. If no binding says, there is nothing
    to follow.
    """
    wire_types = {f.wire_type for binding in bindings for f in _fields(binding) if f.field_number == 1}
    match [dialect for wire_type, dialect in _DIALECT_BY_WIRE_TYPE.items() if wire_type in wire_types]:
        case [dialect]:
            return dialect
        case []:
            raise ManifestUndecodable("no binding of the manifest has an ID or an operation")
        case _:
            raise ManifestUndecodable("the manifest mixes bindings with an ID and bindings without")


def _fields(data: bytes) -> Iterator[Any]:
    # Read as a message without fields, every field is an unknown one: the raw wire view, by protobuf's own parser.
    found = UnknownFieldSet(empty_pb2.Empty.FromString(data))
    return (found[index] for index in range(len(found)))


def _decode_rfc0009(message: rfc0009.MiddlewareManifest) -> Manifest:
    bindings = (
        Binding(
            id=b.id,
            operation=OPERATIONS.get(b.operation, Operation.UNSUPPORTED),
            phase=PHASES.get(b.phase, Phase.UNSUPPORTED),
            max_body_bytes=_exact(b.max_body_bytes),
            timeout=b.timeout,
        )
        for b in message.bindings
    )
    return Manifest(
        name=message.name,
        service_version=message.service_version,
        dialect=Dialect.RFC0009,
        bindings=tuple(bindings),
    )


def _decode_released(message: released.MiddlewareManifest, *, identifier: str) -> Manifest:
    bindings = (
        Binding(
            id=identifier,
            operation=OPERATIONS.get(b.operation, Operation.UNSUPPORTED),
            phase=PHASES.get(b.phase, Phase.UNSUPPORTED),
            max_body_bytes=_exact(b.max_payload_bytes),
            timeout=b.timeout,
        )
        for b in message.bindings
    )
    return Manifest(
        name=message.name,
        service_version=message.service_version,
        dialect=Dialect.RELEASED,
        bindings=tuple(bindings),
    )


def _exact(limit: int) -> int:
    # A uint64 may exceed what canonical JSON, and so the manifest's digest, can hold; it is absurd either way.
    return min(limit, MAX_EXACT_INTEGER)


def _rfc0009_fields(binding: Binding) -> dict[str, Any]:
    return {"id": binding.id, "max_body_bytes": binding.max_body_bytes}


def _released_fields(binding: Binding) -> dict[str, Any]:
    return {"max_payload_bytes": binding.max_body_bytes}
