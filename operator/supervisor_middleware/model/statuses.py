"""Statuses as we write them. PURE: what the CRDs' status schemas are made of, and nothing a service wrote.

Scalars where a printer column needs one: columns show only an array's first element.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from supervisor_middleware.model import limits

NOT_OBSERVED: Final = -1
"""`observedGeneration` of an object that no operator has looked at, by the CRD's default."""


class Status(BaseModel):
    """Base of everything in a status."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Condition(Status):
    """`metav1.Condition`."""

    type: str = Field(max_length=316)
    status: Literal["True", "False", "Unknown"]
    reason: str = Field(min_length=1, max_length=1024)
    message: str = Field(default="", max_length=32768)
    observed_generation: int = Field(default=0, ge=0)
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})


Conditions = Annotated[
    list[Condition],
    Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class StatusViolation(Status):
    """A violation without any value or service-written text."""

    path: str = Field(max_length=1024)
    reason: str = Field(max_length=64)
    message: str = Field(max_length=2048)


class BindingStatus(Status):
    """One binding of the accepted manifest, with what is in force."""

    id: str = Field(max_length=limits.MAX_ID_LENGTH)
    operation: str = Field(max_length=64)
    phase: str = Field(max_length=64)
    max_body_bytes: int = Field(ge=0, json_schema_extra={"format": "int64"})
    timeout: str = Field(default="", max_length=16)
    effective_max_body_bytes: int = Field(ge=0, json_schema_extra={"format": "int64"})
    effective_timeout: str = Field(max_length=16)


class ManifestStatus(Status):
    """The accepted manifest. Name and version are the service's words: `invalid` if they are not plain."""

    name: str = Field(max_length=128)
    service_version: str = Field(max_length=128)
    dialect: str = Field(max_length=16)
    digest: str = Field(max_length=71)
    bindings: list[BindingStatus] = Field(default_factory=list, max_length=limits.MAX_BINDINGS)


class SupervisorMiddlewareStatus(Status):
    """What the operator knows of a registration."""

    observed_generation: int = Field(default=0, ge=NOT_OBSERVED, json_schema_extra={"format": "int64"})
    manifest: ManifestStatus | None = None
    accepted: dict[str, object] | None = Field(
        default=None,
        description="The registration generations are composed from: last-known-good.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    binding_count: int = Field(default=0, ge=0)
    policies: int = Field(default=0, ge=0, description="How many policies select a binding of it.")
    last_described: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    violations: list[StatusViolation] = Field(default_factory=list, max_length=limits.MAX_STATUS_VIOLATIONS)
    conditions: Conditions = Field(default_factory=list)


class AcceptedRevision(Status):
    """What sandboxes run: the commit point of last-known-good."""

    revision: int = Field(ge=1)
    epoch: int = Field(ge=0, json_schema_extra={"format": "int64"})
    generation: int = Field(ge=0, json_schema_extra={"format": "int64"})
    digest: str = Field(max_length=71)


class SupervisorCounts(Status):
    """How far the policy has got, as counts: there may be thousands of supervisors."""

    matched: int = Field(default=0, ge=0)
    connected: int = Field(default=0, ge=0)
    prepared: int = Field(default=0, ge=0)
    active: int = Field(default=0, ge=0)
    waiting: int = Field(default=0, ge=0)
    rejected: int = Field(default=0, ge=0)
    summary: str = Field(default="0/0", max_length=32)


class SandboxPolicyStatus(Status):
    """What the operator knows of a policy."""

    observed_generation: int = Field(default=0, ge=NOT_OBSERVED, json_schema_extra={"format": "int64"})
    accepted: AcceptedRevision | None = Field(
        default=None,
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.epoch >= oldSelf.epoch",
                    "message": "an operator of an older epoch may not replace what a newer one accepted",
                }
            ]
        },
    )
    stages: int = Field(default=0, ge=0)
    supervisors: SupervisorCounts = Field(default_factory=SupervisorCounts)
    violations: list[StatusViolation] = Field(default_factory=list, max_length=limits.MAX_STATUS_VIOLATIONS)
    conditions: Conditions = Field(default_factory=list)


STATUSES: Final[Mapping[str, type[Status]]] = {
    "SupervisorMiddleware": SupervisorMiddlewareStatus,
    "SandboxPolicy": SandboxPolicyStatus,
    "ClusterSandboxPolicy": SandboxPolicyStatus,
}
