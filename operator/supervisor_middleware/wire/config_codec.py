"""`ValidateConfig`: the question about a config, and the verdict. Use it through `codec`."""

from typing import assert_never

from google.protobuf.message import DecodeError

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.identifiers import service_reason
from supervisor_middleware.model.limits import MAX_SERVICE_REASON_CHARS
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.wire.dialects import MESSAGES
from supervisor_middleware.wire.framing import length_delimited
from supervisor_middleware.wire.gen import openshell_middleware_v1_pb2 as rfc0009
from supervisor_middleware.wire.gen import released_pb2 as released
from supervisor_middleware.wire.structs import config_struct, json_object
from supervisor_middleware.wire.undecodable import RequestUndecodable, VerdictUndecodable


def encode_validate_config(dialect: Dialect, *, binding: str, config: JsonObject) -> bytes:
    """Ask whether `config` suits `binding` (in the released dialect: the registration's name).

    Raises:
        ConfigUnencodable: no Struct holds the config.
    """
    struct = config_struct(config).encoded
    match dialect:
        case Dialect.RFC0009:
            head = rfc0009.ValidateConfigRequest(binding_id=binding).SerializeToString()
            return b"".join((head, *length_delimited(rfc0009.ValidateConfigRequest.CONFIG_FIELD_NUMBER, struct)))
        case Dialect.RELEASED:
            head = released.ValidateConfigRequest(middleware_name=binding).SerializeToString()
            return b"".join((head, *length_delimited(released.ValidateConfigRequest.CONFIG_FIELD_NUMBER, struct)))
        case _:
            assert_never(dialect)


def decode_validate_config(dialect: Dialect, data: bytes) -> tuple[str, JsonObject]:
    """The binding (or registration name) and the config asked about; an absent config is empty.

    Raises:
        RequestUndecodable: no such request of this dialect, or one that names no binding.
    """
    try:
        message = MESSAGES[dialect].ValidateConfigRequest.FromString(data)
        config = json_object(message.config)
    except (DecodeError, ValueError) as error:
        raise RequestUndecodable("the request is not a ValidateConfigRequest of this dialect") from error
    binding = message.binding_id if dialect is Dialect.RFC0009 else message.middleware_name
    if not binding:
        raise RequestUndecodable("the request names no binding")
    return binding, config


def encode_verdict(dialect: Dialect, verdict: Accepted | Rejected) -> bytes:
    """A server's answer."""
    response = MESSAGES[dialect].ValidateConfigResponse
    match verdict:
        case Accepted():
            return bytes(response(valid=True).SerializeToString())
        case Rejected(reason=reason):
            return bytes(response(valid=False, reason=reason).SerializeToString())
        case _:
            assert_never(verdict)


def decode_verdict(dialect: Dialect, data: bytes) -> Accepted | Rejected:
    """A service's answer, its reason cleaned and cut for the person who submitted the policy.

    No bytes at all are a valid message that says "not valid", and are read as that: the answer that denies.

    Raises:
        VerdictUndecodable: it is no answer.
    """
    try:
        message = MESSAGES[dialect].ValidateConfigResponse.FromString(data)
    except DecodeError as error:
        raise VerdictUndecodable("the answer is not a ValidateConfigResponse") from error
    if message.valid:
        return Accepted()
    return Rejected(service_reason(message.reason, limit=MAX_SERVICE_REASON_CHARS))
