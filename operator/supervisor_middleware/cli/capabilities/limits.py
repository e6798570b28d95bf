"""What each number of `model/limits.py` bounds, in words: `smw capabilities` and the reference page show these."""

from collections.abc import Mapping
from typing import Final

LIMITS: Final[Mapping[str, str]] = {
    "MAX_BODY_BYTES": "Request body a stage is sent or returns; no binding and no registration may say more.",
    "MAX_CONFIG_BYTES": "Config of one entry, as encoded on the wire.",
    "MAX_CONTEXT_BYTES": "Request context: IDs and process.",
    "MAX_TARGET_BYTES": "Target: scheme, host, method, path, query.",
    "MAX_HEADER_LINES": "Header lines a stage is shown.",
    "MAX_HEADERS_BYTES": "Header lines a stage is shown, together.",
    "MAX_REASON_BYTES": "A service's reason in a result.",
    "MAX_REASON_CODE_BYTES": "A service's reason code.",
    "MAX_MUTATIONS": "Header mutations of one result.",
    "MAX_MUTATION_DATA_BYTES": "Names and values of all header mutations of one result.",
    "MAX_MUTATIONS_BYTES": "All header mutations of one result.",
    "MAX_FINDINGS": "Findings of one result.",
    "MAX_FINDING_BYTES": "One finding.",
    "MAX_METADATA_ENTRIES": "Metadata entries of one result.",
    "MAX_METADATA_BYTES": "All metadata of one result.",
    "MAX_STAGES": "Stages of one sandbox, over all policies that select it.",
    "MAX_GRPC_MESSAGE_BYTES": "One gRPC message to or from a middleware service: a body of 4 MiB and the rest.",
    "MAX_CONFIGS": "Configs (`networkMiddlewares`) of one policy.",
    "MAX_BASELINE_CONFIGS": "Configs of all baselines that select a sandbox; tenants have what is left of ten.",
    "MAX_PATTERNS": "Include and exclude patterns of one config, together.",
    "ORDER_MIN": "Smallest `order`.",
    "ORDER_MAX": "Largest `order`.",
    "TIMEOUT_DEFAULT": "A registration's `timeout` if it says none; a built-in's.",
    "TIMEOUT_MIN": "Shortest `timeout`.",
    "TIMEOUT_MAX": "Longest `timeout`.",
    "CHAIN_TIMEOUT": "All stages of one request together.",
    "ACTIVATION_DEADLINE_MAX": "Longest `activationDeadline`.",
    "PLATFORM_PATIENCE": "How long a tenant's missing service may hold back a changed baseline in a sandbox.",
    "MAX_ID_LENGTH": "Characters of a binding ID or registration name.",
    "MAX_CONFIG_DEPTH": "Levels a config may nest: a level costs three protobuf messages, and parsers stop at 100.",
    "RESERVED_NAMESPACE": "Prefix of binding IDs that only built-ins may have.",
    "MAX_HOST_LENGTH": "Characters of a host or host pattern (RFC 1035).",
    "MAX_LABEL_LENGTH": "Characters of one DNS label (RFC 1035).",
    "MAX_MANIFEST_BYTES": "A service's answer to `Describe`.",
    "MAX_BINDINGS": "Bindings of one service.",
    "MAX_REVISION_BYTES": "One policy as compiled, canonical JSON.",
    "MAX_OBJECT_BYTES": "One stored object: etcd's own limit is 1.5 MiB.",
    "MAX_NETWORK_POLICIES": "Entries of `networkPolicies` in one policy.",
    "MAX_ENDPOINTS": "Endpoints of one entry of `networkPolicies`.",
    "MAX_SKIPS": "Endpoints with `tls: skip` of one policy.",
    "MAX_CA_BUNDLE_BYTES": "An inline `tls.caBundle`.",
    "MAX_SERVICE_REASON_CHARS": "Characters of a service's `ValidateConfig` reason shown to the author.",
    "MAX_STATUS_VIOLATIONS": "Violations kept in a status; the webhook and `smw validate` show all.",
    "MAX_STREAM_MESSAGE_BYTES": "One offer to a supervisor.",
}


def meaning_of(name: str) -> str:
    """The words for a limit; its name spelled out if it has none yet."""
    return LIMITS.get(name) or name.lower().replace("_", " ")
