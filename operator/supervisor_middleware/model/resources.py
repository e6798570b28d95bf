"""The resources as users write them. PURE: where untrusted text becomes typed values, and what the CRDs are made of.

Strict, closed, frozen; an error never repeats the input (a config may hold secrets). Descriptions here are what
`kubectl explain` shows.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from supervisor_middleware.model import identifiers, limits
from supervisor_middleware.model.canonical import DIGEST_PATTERN
from supervisor_middleware.model.fields import BindingId, Deadline, Endpoint, Pattern, Resource, Timeout, cel, refuse
from supervisor_middleware.model.violation import Reason

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
        description="Binding IDs the service may expose; those of its first accepted manifest if absent.",
    )
    allow_insecure: bool = Field(default=False, description="Permits an http:// endpoint. Research preview only.")


# --------------------------------------------------------------------------------------------------- SandboxPolicy


_VALUES_RULE: Final = "In and NotIn need values, Exists and DoesNotExist take none"


class LabelSelectorRequirement(Resource):
    """One condition on one label."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)", _VALUES_RULE)
            ]
        }
    )

    key: str = Field(min_length=1, max_length=317, description="Label key.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How the label is compared.")
    values: list[Annotated[str, Field(max_length=63)]] | None = Field(
        default=None, max_length=64, description="Values for In and NotIn."
    )

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> Self:
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise refuse(Reason.MALFORMED, _VALUES_RULE)
        return self


class LabelSelector(Resource):
    """Selects by labels; empty selects all."""

    match_labels: dict[str, Annotated[str, Field(max_length=63)]] | None = Field(
        default=None, max_length=64, description="Labels that must be equal."
    )
    match_expressions: list[LabelSelectorRequirement] | None = Field(
        default=None, max_length=64, description="Conditions that must all hold."
    )


class Endpoints(Resource):
    """Which destination hosts a config covers."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    f"size(self.include) + (has(self.exclude) ? size(self.exclude) : 0) <= {limits.MAX_PATTERNS}",
                    f"include and exclude hold at most {limits.MAX_PATTERNS} patterns together",
                )
            ]
        }
    )

    include: list[Pattern] = Field(
        min_length=1,
        max_length=limits.MAX_PATTERNS,
        description="Host patterns of which any must match: * is one label, ** one or more.",
    )
    exclude: list[Pattern] | None = Field(
        default=None, max_length=limits.MAX_PATTERNS, description="Host patterns that win over include."
    )


class NetworkMiddleware(Resource):
    """One middleware config: which binding runs for which hosts, with what settings."""

    name: str | None = Field(default=None, max_length=253, description="Label for people; the key if absent.")
    middleware: BindingId = Field(description="Binding ID of a service or built-in (openshell/regex).")
    order: int = Field(
        default=0,
        ge=limits.ORDER_MIN,
        le=limits.ORDER_MAX,
        description="Place in the chain, ascending; unique in the policy and among all that select a sandbox.",
        json_schema_extra={"format": "int32"},
    )
    config: dict[str, Any] | None = Field(
        default=None,
        description="The service's own settings, at most 64 KiB encoded; kept as written.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    on_error: Literal["FailClosed", "FailOpen"] = Field(
        default="FailClosed",
        description="When the middleware gives no valid result: FailClosed refuses the request, FailOpen skips it.",
    )
    endpoints: Endpoints = Field(description="Destination hosts the config applies to.")


_ORDERS_ARE_UNIQUE: Final = (
    "self.all(a, self.all(b, a == b || (has(self[a].order) ? self[a].order : 0) != "
    "(has(self[b].order) ? self[b].order : 0)))"
)


class SandboxPolicySpec(Resource):
    """Which middleware runs for the sandboxes of a namespace."""

    sandbox_selector: LabelSelector = Field(
        description="Pods of this namespace with the label middleware.openshell.io/sandbox; {} selects all of them."
    )
    activation_deadline: Deadline | None = Field(
        default=None,
        description="How long a supervisor may wait for an unreachable new service; it waits without end if absent.",
    )
    network_middlewares: dict[str, NetworkMiddleware] | None = Field(
        default=None,
        description="Middleware configs by their stable key.",
        json_schema_extra={
            # Not max_length: pydantic then says nothing of the number while an entry is wrong. The rulebook counts.
            "maxProperties": limits.MAX_CONFIGS,
            "x-kubernetes-validations": [
                cel(_ORDERS_ARE_UNIQUE, "two configs have the same order (0 if absent); order is unique in a policy"),
                cel(
                    f"self.all(k, k.matches('{identifiers.KEY_PATTERN}'))",
                    f"a key of networkMiddlewares must be {identifiers.KEY_RULE}",
                ),
            ],
        },
    )
    network_policies: dict[str, Any] | None = Field(
        default=None,
        max_length=256,
        description="What the sandbox may reach, for checks against tls: skip; kept as written.",
        json_schema_extra={
            "x-kubernetes-preserve-unknown-fields": True,
            "additionalProperties": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    )


# -------------------------------------------------------------------------------------------------- PolicyRevision


class PolicyReference(Resource):
    """The policy a revision is of."""

    kind: Literal["SandboxPolicy"] = Field(description="Kind of the policy.")
    namespace: str = Field(max_length=63, description="Namespace of the policy.")
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
    "PolicyRevision": PolicyRevisionSpec,
}
