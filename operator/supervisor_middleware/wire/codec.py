"""Model ⇄ bytes of the middleware contract: the only place that knows there are two dialects.

Owns every conversion and the method paths; makes no call. Clients follow the dialect of a service's manifest; a
server declares one and accepts only that. Called by the registry client, the supervisor's stages and the SDK.

Whatever bytes arrive, a decoder returns a model value or raises the one exception its docstring names, in the
platform's own words. Unknown fields are tolerated, unknown enum values never are. See the modules for the details:
`manifest_codec`, `config_codec`, `evaluation_codec`, `result_codec`, `structs`; sizes are in `sizes`.
"""

from supervisor_middleware.wire.config_codec import (
    decode_validate_config,
    decode_verdict,
    encode_validate_config,
    encode_verdict,
)
from supervisor_middleware.wire.evaluation_codec import decode_evaluation, encode_evaluation
from supervisor_middleware.wire.manifest_codec import decode_manifest, encode_manifest
from supervisor_middleware.wire.methods import DESCRIBE_REQUEST, METHODS, SERVICE, Methods
from supervisor_middleware.wire.result_codec import decode_result, encode_result
from supervisor_middleware.wire.structs import ConfigStruct, ConfigUnencodable, config_struct
from supervisor_middleware.wire.undecodable import (
    ManifestUndecodable,
    RequestUndecodable,
    Undecodable,
    VerdictUndecodable,
)

__all__ = [
    "DESCRIBE_REQUEST",
    "METHODS",
    "SERVICE",
    "ConfigStruct",
    "ConfigUnencodable",
    "ManifestUndecodable",
    "Methods",
    "RequestUndecodable",
    "Undecodable",
    "VerdictUndecodable",
    "config_struct",
    "decode_evaluation",
    "decode_manifest",
    "decode_result",
    "decode_validate_config",
    "decode_verdict",
    "encode_evaluation",
    "encode_manifest",
    "encode_result",
    "encode_validate_config",
    "encode_verdict",
]
