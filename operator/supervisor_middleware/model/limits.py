"""Every number of the contract, once. PURE.

Owns the public limits of RFC 0009 ("The middleware contract", "Registration and delivery") and of this product.
The CRD schemas, the webhook, the supervisor and the SDK all read them here, so they cannot differ.
Sizes are bytes unless the name says otherwise.
"""

from datetime import timedelta
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# RFC 0009 "The middleware contract": envelope limits.
MAX_BODY_BYTES: Final = 4 * MIB
MAX_CONFIG_BYTES: Final = 64 * KIB
MAX_CONTEXT_BYTES: Final = 4 * KIB
MAX_TARGET_BYTES: Final = 32 * KIB
MAX_HEADER_LINES: Final = 128
MAX_HEADERS_BYTES: Final = 64 * KIB
MAX_REASON_BYTES: Final = 4 * KIB
MAX_REASON_CODE_BYTES: Final = 64
MAX_MUTATIONS: Final = 64
MAX_MUTATION_DATA_BYTES: Final = 32 * KIB
MAX_MUTATIONS_BYTES: Final = 64 * KIB
MAX_FINDINGS: Final = 32
MAX_FINDING_BYTES: Final = 4 * KIB
MAX_METADATA_ENTRIES: Final = 64
MAX_METADATA_BYTES: Final = 32 * KIB
MAX_STAGES: Final = 10
# 4 MiB of body and 293 KiB for the rest: what every gRPC peer of ours sends and receives.
MAX_GRPC_MESSAGE_BYTES: Final = 4_494_336

# RFC 0009 "Policy integration".
MAX_CONFIGS: Final = 10
# The baseline's share of a chain: tenants have the rest.
MAX_BASELINE_CONFIGS: Final = 5
MAX_PATTERNS: Final = 32
ORDER_MIN: Final = -(2**31)
ORDER_MAX: Final = 2**31 - 1

# RFC 0009 "Registration and delivery".
TIMEOUT_DEFAULT: Final = timedelta(milliseconds=500)
TIMEOUT_MIN: Final = timedelta(milliseconds=10)
TIMEOUT_MAX: Final = timedelta(seconds=30)
CHAIN_TIMEOUT: Final = timedelta(seconds=30)
ACTIVATION_DEADLINE_MAX: Final = timedelta(hours=24)
PLATFORM_PATIENCE: Final = timedelta(minutes=1)

MAX_ID_LENGTH: Final = 128
# A Struct level costs three messages, and protobuf parsers stop at 100 deep.
MAX_CONFIG_DEPTH: Final = 30
RESERVED_NAMESPACE: Final = "openshell/"
# DNS: RFC 1035 section 2.3.4.
MAX_HOST_LENGTH: Final = 253
MAX_LABEL_LENGTH: Final = 63

# Ours. A manifest is a description, not a payload: one that needs more is broken or hostile.
MAX_MANIFEST_BYTES: Final = 64 * KIB
MAX_BINDINGS: Final = 64
MAX_REVISION_BYTES: Final = 900 * KIB
MAX_OBJECT_BYTES: Final = 1536 * KIB
MAX_NETWORK_POLICIES: Final = 256
MAX_ENDPOINTS: Final = 256
MAX_SKIPS: Final = 256
MAX_CA_BUNDLE_BYTES: Final = 64 * KIB
MAX_SERVICE_REASON_CHARS: Final = 160
MAX_STATUS_VIOLATIONS: Final = 16
MAX_STREAM_MESSAGE_BYTES: Final = 8 * MIB
