"""The resources as users write them. PURE: where untrusted text becomes typed values, and what the CRDs are made of.

Strict, closed, frozen; an error never repeats the input (a config may hold secrets). Descriptions here are what
`kubectl explain` shows.
"""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import ConfigDict, Field

from supervisor_middleware.model import limits
from supervisor_middleware.model.canonical import DIGEST_PATTERN
from supervisor_middleware.model.fields import BindingId, Endpoint, Resource, Timeout, cel
from supervisor_middleware.model.policy_resources import ClusterSandboxPolicySpec, SandboxPolicySpec

# ---------------------------------------------------------------------------------------------- SupervisorMiddleware


class BundleReference(Resource):
    """Where a PEM bundle is kept."""

    kind: Literal["ConfigMap", "Secret"] = Field(description="Kind of the object that holds the bundle.")
    namespace: str = Field(min_length=1, max_length=63, description="Namespace of that object.")
    name: str = Field(min_length=1, max_length=253, description="Name of that object.")
    key: str = Field(default="ca.crt", min_length=1, max_length=253, description="Key within its data.")


class ServiceTls(Resource):
    """How the service is verified."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("!(has(self.caBundle) && has(self.caBundleRef))", "set caBundle or caBundleRef, not both")
            ]
        }
    )

    ca_bundle: str | None = Field(
        default=None,
        min_length=1,
        max_length=limits.MAX_CA_BUNDLE_BYTES,
        description="PEM certificates that replace the platform's trust roots.",
    )
    ca_bundle_ref: BundleReference | None = Field(
        default=None,
        description="A ConfigMap or Secret with PEM certificates that replace the platform's trust roots.",
    )
    server_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=limits.MAX_HOST_LENGTH,
        description="Name to verify when it differs from the endpoint's host.",
    )


class SupervisorMiddlewareSpec(Resource):
    """A registration: which endpoint may receive raw request content. It routes no traffic by itself."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    "self.grpcEndpoint.startsWith('https://') || (has(self.allowInsecure) && self.allowInsecure)",
                    "http:// sends request content in the clear and needs allowInsecure: true; use https://",
                ),
                cel(
                    "self.grpcEndpoint.startsWith('http://') || !(has(self.allowInsecure) && self.allowInsecure)",
                    "allowInsecure is for http:// endpoints only; it never means that verification is skipped",
                ),
                cel(
                    "!has(self.tls) || self.grpcEndpoint.startsWith('https://')",
                    "tls has no meaning for an http:// endpoint",
                ),
            ]
        }
    )

    registration_name: BindingId | None = Field(
        default=None,
        description="Name of the registration; the object's name if absent. A released service is selected by it.",
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("!self.startsWith('openshell/')", "the openshell/ namespace is reserved for built-ins")
            ]
        },
    )
    grpc_endpoint: Endpoint = Field(
        description="https://host[:port] of the service, reachable from the operator and every supervisor."
    )
    max_body_bytes: int = Field(
        ge=1,
        le=limits.MAX_BODY_BYTES,
        description="Largest request body sent to any binding; at most what each binding advertises.",
        json_schema_extra={"format": "int64"},
    )
    timeout: Timeout = Field(default="500ms", description="Deadline of a call: an integer with ms or s, 10ms to 30s.")
    tls: ServiceTls | None = Field(default=None, description="How the service is verified; platform roots if absent.")
    client_authentication: Literal["MutualTLS", "None"] = Field(
        default="MutualTLS",
        description="How operator and supervisors prove themselves: MutualTLS with their certificates, or None.",
    )
    bindings: list[BindingId] | None = Field(
        default=None,
        min_length=1,
        max_length=limits.MAX_BINDINGS,
        description="Binding IDs taken of the service; if absent, those of its first accepted manifest, for good.",
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("self.all(b, !b.startsWith('openshell/'))", "the openshell/ namespace is reserved for built-ins")
            ]
        },
    )
    allow_insecure: bool = Field(default=False, description="Permits an http:// endpoint. Research preview only.")


# -------------------------------------------------------------------------------------------------- PolicyRevision


class PolicyReference(Resource):
    """The policy a revision is of."""

    kind: Literal["SandboxPolicy", "ClusterSandboxPolicy"] = Field(description="Kind of the policy.")
    namespace: str = Field(max_length=63, description="Namespace of the policy; empty for a ClusterSandboxPolicy.")
    name: str = Field(min_length=1, max_length=253, description="Name of the policy.")
    uid: str = Field(min_length=1, max_length=64, description="UID of the policy.")
    generation: int = Field(ge=0, description="metadata.generation it was accepted at.")
    created_at: str = Field(max_length=64, description="When the policy was created; the older of two stands.")


class PolicyRevisionSpec(Resource):
    """Last-known-good of one policy. Written by the operator only, never changed."""

    policy: PolicyReference = Field(description="The policy.")
    epoch: int = Field(ge=0, description="Epoch of the operator that wrote it.")
    revision: int = Field(ge=1, description="Counts the policy's accepted revisions.")
    digest: str = Field(pattern=DIGEST_PATTERN, description="SHA-256 of the content before packing.")
    stages: int = Field(ge=0, le=limits.MAX_CONFIGS, description="How many configs it holds.")
    content: str = Field(
        min_length=1, max_length=limits.MAX_OBJECT_BYTES, description="zlib and base64 of the compiled policy."
    )


# --------------------------------------------------------------------------------------------------- standalone


class SandboxSpec(Resource):
    """A sandbox, for running without a cluster and for offline checks."""

    name: str = Field(min_length=1, max_length=63)
    namespace: str = Field(default="default", min_length=1, max_length=63)
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)


SPECS: Final[Mapping[str, type[Resource]]] = {
    "SupervisorMiddleware": SupervisorMiddlewareSpec,
    "SandboxPolicy": SandboxPolicySpec,
    "ClusterSandboxPolicy": ClusterSandboxPolicySpec,
    "PolicyRevision": PolicyRevisionSpec,
}
