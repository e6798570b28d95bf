import pytest
from hypothesis import given

from supervisor_middleware.errors import Untrusted
from supervisor_middleware.model.canonical import MAX_EXACT_INTEGER
from supervisor_middleware.model.limits import MAX_BINDINGS, MAX_MANIFEST_BYTES
from supervisor_middleware.model.manifest import Dialect, Manifest, Operation, Phase
from supervisor_middleware.wire.codec import ManifestUndecodable, decode_manifest, encode_manifest
from tests.wire.values import REGISTRATION, a_binding, released_manifests, rfc0009_manifests, unhurried

WITH_ID = b"\x0a\x01a"
WITH_OPERATION = b"\x08\x01"
WITH_NEITHER = b"\x18\x01"


def manifest_of(*bindings: bytes) -> bytes:
    return b"".join(b"\x1a" + bytes([len(binding)]) + binding for binding in bindings)


def decode(data: bytes) -> Manifest:
    return decode_manifest(data, registration_name=REGISTRATION)


@unhurried
@given(rfc0009_manifests)
def test_an_rfc0009_manifest_survives_the_wire(manifest: Manifest) -> None:
    assert decode(encode_manifest(manifest)) == manifest


@unhurried
@given(released_manifests)
def test_a_released_manifest_survives_the_wire(manifest: Manifest) -> None:
    assert decode(encode_manifest(manifest)) == manifest


def test_a_released_service_gets_one_binding_a_hook_under_its_registrations_name() -> None:
    manifest = decode(manifest_of(b"\x08\x02\x10\x01", b"\x08\x01\x10\x01"))
    assert manifest.dialect is Dialect.RELEASED
    assert [(b.id, b.operation) for b in manifest.bindings] == [
        (REGISTRATION, Operation.WEBSOCKET_MESSAGE),
        (REGISTRATION, Operation.HTTP_REQUEST),
    ]


@pytest.mark.parametrize(
    ("bindings", "dialect"),
    [
        ((WITH_ID,), Dialect.RFC0009),
        ((WITH_OPERATION,), Dialect.RELEASED),
        ((WITH_NEITHER, WITH_ID), Dialect.RFC0009),
        ((WITH_OPERATION, WITH_NEITHER), Dialect.RELEASED),
        ((b"", WITH_ID), Dialect.RFC0009),
        # An empty ID that is on the wire is still an ID.
        ((b"\x0a\x00",), Dialect.RFC0009),
        ((b"\x08\x00",), Dialect.RELEASED),
        # A dialect of the future may give number 1 another wire type: it tells nothing.
        ((b"\x0d\x00\x00\x00\x00", WITH_ID), Dialect.RFC0009),
    ],
)
def test_field_1_of_the_bindings_tells_the_dialect(bindings: tuple[bytes, ...], dialect: Dialect) -> None:
    manifest = decode(manifest_of(*bindings))
    assert manifest.dialect is dialect
    assert len(manifest.bindings) == len(bindings)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the manifest has no bindings"),
        (b"\x0a\x01m", "the manifest has no bindings"),
        (b"\x18\x01", "the manifest has no bindings"),
        (manifest_of(WITH_NEITHER, b""), "no binding of the manifest has an ID or an operation"),
        (manifest_of(WITH_ID, WITH_OPERATION), "the manifest mixes bindings with an ID and bindings without"),
        (manifest_of(WITH_ID + WITH_OPERATION), "the manifest mixes bindings with an ID and bindings without"),
        (manifest_of(*[WITH_ID] * (MAX_BINDINGS + 1)), "the manifest has over 64 bindings"),
        (b"\x0a" + b"\xff" * 12, "the manifest is not a protobuf message of the contract"),
        (b"<html>", "the manifest is not a protobuf message of the contract"),
        (manifest_of(b"\xff"), "the manifest is not a protobuf message of the contract"),
        (manifest_of(b"\x0a\x01\xff"), "the manifest is not a protobuf message of the contract"),
        (b"\x0a\x01\xff" + manifest_of(WITH_OPERATION), "the manifest is not a protobuf message of the contract"),
        (b"\x00" * (MAX_MANIFEST_BYTES + 1), "the manifest is over 65536 bytes"),
    ],
)
def test_what_is_no_manifest_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(ManifestUndecodable) as raised:
        decode(data)
    assert raised.value.problem == str(raised.value) == problem
    assert isinstance(raised.value, Untrusted)


def test_a_manifest_at_the_limits_is_read() -> None:
    bindings = tuple(a_binding(id=f"b{n}") for n in range(MAX_BINDINGS))
    manifest = Manifest(name="", service_version="", dialect=Dialect.RFC0009, bindings=bindings)
    room = MAX_MANIFEST_BYTES - len(encode_manifest(manifest)) - 4
    padded = Manifest(name="n" * room, service_version="", dialect=Dialect.RFC0009, bindings=bindings)
    assert len(encode_manifest(padded)) == MAX_MANIFEST_BYTES
    assert decode(encode_manifest(padded)) == padded


@pytest.mark.parametrize("number", [b"\x00", b"\x03", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_unknown_enum_values_are_unsupported_hooks(number: bytes) -> None:
    [binding] = decode(manifest_of(b"\x0a\x01a\x10" + number + b"\x18" + number)).bindings
    assert binding.operation is Operation.UNSUPPORTED
    assert binding.phase is Phase.UNSUPPORTED


def test_unknown_fields_are_tolerated() -> None:
    data = b"\x22\x03aud\xa8\x06\x01" + manifest_of(b"\x08\x01\x10\x01\x92\x03\x02hi")
    assert decode(data) == decode(manifest_of(b"\x08\x01\x10\x01"))


def test_an_absurd_limit_still_has_a_digest() -> None:
    manifest = decode(manifest_of(b"\x0a\x01a\x20" + b"\xff" * 9 + b"\x01"))
    assert manifest.bindings[0].max_body_bytes == MAX_EXACT_INTEGER
    assert manifest.digest.startswith("sha256:")
