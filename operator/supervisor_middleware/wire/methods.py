"""The calls of the contract by explicit path: one set for both dialects, as messages travel without their names."""

from dataclasses import dataclass
from typing import Final

SERVICE: Final = "openshell.middleware.v1.SupervisorMiddleware"
"""The full name of the gRPC service, for a server's generic handler and for health checks."""

DESCRIBE_REQUEST: Final = b""
"""`google.protobuf.Empty`, encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """Method paths, as `channel.unary_unary(path)` takes them."""

    describe: str
    validate_config: str
    evaluate_http_request: str


METHODS: Final = Methods(
    describe=f"/{SERVICE}/Describe",
    validate_config=f"/{SERVICE}/ValidateConfig",
    evaluate_http_request=f"/{SERVICE}/EvaluateHttpRequest",
)
"""The unary calls both dialects have."""
