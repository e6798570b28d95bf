"""The whole gathered world as one value. PURE: what sources yield and every decision is a function of."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.violation import Report, Subject


class Kind(StrEnum):
    """The kinds we read."""

    SUPERVISOR_MIDDLEWARE = "SupervisorMiddleware"
    SANDBOX_POLICY = "SandboxPolicy"
    CLUSTER_SANDBOX_POLICY = "ClusterSandboxPolicy"
    POLICY_REVISION = "PolicyRevision"
    SANDBOX = "Sandbox"
    NAMESPACE = "Namespace"


POLICY_KINDS: Final = (Kind.SANDBOX_POLICY, Kind.CLUSTER_SANDBOX_POLICY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object as it is stored; `spec` is still what somebody typed."""

    subject: Subject
    uid: str
    generation: int
    created_at: datetime
    resource_version: str = ""
    spec: JsonObject = field(repr=False)
    status: JsonObject = field(default_factory=dict, repr=False)
    annotations: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRevision:
    """A persisted revision: immutable, found by the policy's UID and its number."""

    number: int
    epoch: int
    digest: str
    revision: Revision

    @property
    def name(self) -> str:
        """Of the object or file that holds it: a revision that is there already is met, not written twice."""
        return f"{self.revision.uid}-{self.number}"


@dataclass(frozen=True, slots=True)
class BundleKey:
    """Where a referenced CA bundle is kept."""

    kind: str
    namespace: str
    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name} key {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything at one moment. `policies` are of both kinds; `namespaces` are labels by name.

    A namespace that is not among them is not known yet: a baseline may select it, so its sandboxes get nothing.
    `described` are those whose own object was read, offline; of others there only the name is known.
    `unknown` are kinds that could not be read: absence of data is not absence of policy, so while it is not empty
    everything stays as it is. `problems` are about input that is no object at all (unparsable YAML).
    """

    registrations: tuple[Stored, ...] = ()
    policies: tuple[Stored, ...] = ()
    revisions: tuple[StoredRevision, ...] = ()
    sandboxes: tuple[Sandbox, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    described: frozenset[str] = frozenset()
    bundles: Mapping[BundleKey, str] = field(default_factory=dict, repr=False)
    ready_endpoints: Mapping[str, int] = field(default_factory=dict)
    """How many endpoints are ready behind a `grpcEndpoint`, where that is known."""
    unknown: frozenset[str] = frozenset()
    problems: Report = Report()  # noqa: RUF009 - a frozen value
    skipped: int = 0

    @property
    def highest_epoch(self) -> int:
        """The highest epoch anything persisted was written under: whoever leads now takes a higher one."""
        return max((*_accepted_epochs(self.policies), *(r.epoch for r in self.revisions)), default=0)


def _accepted_epochs(policies: Iterable[Stored]) -> Iterator[int]:
    for policy in policies:
        match policy.status.get("accepted"):
            case {"epoch": int() as epoch}:
                yield epoch
