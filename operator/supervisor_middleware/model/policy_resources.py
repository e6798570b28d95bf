"""The policies as users write them. PURE: `SandboxPolicy` of a tenant, `ClusterSandboxPolicy` of the platform.

What both can say is in one base; they differ in what they select and in where their stages stand.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from supervisor_middleware.model import identifiers, limits
from supervisor_middleware.model.fields import BindingId, Deadline, Pattern, Resource, cel, refuse
from supervisor_middleware.model.violation import Reason

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


class _Passing(Resource):
    """Somebody else's resource within ours: a few fields are read, the rest is kept as written."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})


class NetworkEndpoint(_Passing):
    """A destination that a sandbox may reach."""

    host: str | None = Field(default=None, max_length=limits.MAX_HOST_LENGTH, description="Host or host pattern.")
    protocol: str | None = Field(
        default=None, max_length=64, description="How requests are parsed, for example rest."
    )
    tls: str | None = Field(
        default=None,
        max_length=64,
        description="skip: the proxy does not see inside, so no middleware may select it.",
    )
    enforcement: str | None = Field(
        default=None, max_length=64, description="audit: a request that breaks a rule is reported and goes on."
    )


class NetworkPolicy(_Passing):
    """One network policy of a sandbox."""

    endpoints: list[NetworkEndpoint] | None = Field(
        default=None, max_length=limits.MAX_ENDPOINTS, description="Destinations that the sandbox may reach."
    )


_ORDERS_ARE_UNIQUE: Final = (
    "self.all(a, self.all(b, a == b || (has(self[a].order) ? self[a].order : 0) != "
    "(has(self[b].order) ? self[b].order : 0)))"
)


class PolicySpec(Resource):
    """What both kinds of policy say."""

    activation_deadline: Deadline | None = Field(
        default=None,
        description="How long supervisors may wait for a new service of this policy; without end if absent.",
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
    network_policies: dict[str, NetworkPolicy] | None = Field(
        default=None,
        max_length=limits.MAX_NETWORK_POLICIES,
        description="What the sandbox may reach, for checks against tls: skip; other fields are kept as written.",
    )


class SandboxPolicySpec(PolicySpec):
    """Which middleware runs for the sandboxes of a namespace."""

    sandbox_selector: LabelSelector = Field(
        description="Pods of this namespace with the label middleware.openshell.io/sandbox; {} selects all of them."
    )


class ClusterSandboxPolicySpec(PolicySpec):
    """Which middleware runs for the sandboxes of many namespaces, whatever their tenants say."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    "!has(self.networkMiddlewares) || "
                    f"size(self.networkMiddlewares) <= {limits.MAX_BASELINE_CONFIGS}",
                    f"a baseline holds at most {limits.MAX_BASELINE_CONFIGS} configs; the rest is the tenants'",
                )
            ]
        }
    )

    namespace_selector: LabelSelector = Field(description="Namespaces by their labels; {} selects all of them.")
    position: Literal["First", "Last"] = Field(
        default="First", description="Whether its stages run before those of tenants, or after."
    )
