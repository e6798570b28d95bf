"""Registrations and policies as their statuses tell them: from a standalone control plane's files, or a cluster."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.snapshot import POLICY_KINDS, Kind

if TYPE_CHECKING:
    from supervisor_middleware.sources.cluster_api import ClusterApi

REGISTRATION: Final = Kind.SUPERVISOR_MIDDLEWARE.value
POLICIES: Final = frozenset(kind.value for kind in POLICY_KINDS)
_KINDS: Final = (Kind.SUPERVISOR_MIDDLEWARE, *POLICY_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """An object and its status."""

    kind: str
    namespace: str
    name: str
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def is_good(self) -> bool:
        """Whether it is Ready, and a policy Programmed as well."""
        wanted = "Programmed" if self.kind in POLICIES else "Ready"
        return all(self.condition(kind).get("status") == "True" for kind in (wanted, "Ready"))

    def condition(self, kind: str) -> Mapping[str, Any]:
        """A condition, or an empty mapping."""
        conditions: Iterable[Mapping[str, Any]] = self.status.get("conditions", ())
        return next((c for c in conditions if c.get("type") == kind), {})

    def plain(self) -> dict[str, Any]:
        """For machines. What is accepted of a registration is the machine's memory: people ask how it fares."""
        status = {k: v for k, v in self.status.items() if k != "accepted" or self.kind in POLICIES}
        return {"kind": self.kind, "namespace": self.namespace or None, "name": self.name, "status": status}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What could be read, and the kinds that we may not."""

    observed: tuple[Observed, ...]
    hidden: tuple[str, ...] = ()

    @property
    def is_all_hidden(self) -> bool:
        """Whether we may not list anything at all."""
        return len(self.hidden) == len(_KINDS)


def read_state(directory: Path) -> tuple[Observed, ...]:
    """What a standalone control plane last wrote.

    Raises:
        InvalidInput: there is no readable status file.
    """
    from supervisor_middleware.sources.state import STATUS_FILE

    path = directory / STATUS_FILE
    try:
        return tuple(_of_summary(json.loads(path.read_text())))
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}: no standalone control plane keeps its state here") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path}: is not a status file of smw standalone") from error


async def read_cluster(api: "ClusterApi", *, namespace: str) -> Objects:
    """All that we may list; policies of `namespace` only, if it is not empty.

    Raises:
        Unavailable: the API server is.
    """
    from supervisor_middleware.sources.cluster_api import Forbidden

    found: list[Observed] = []
    hidden: list[str] = []
    for kind in _KINDS:
        try:
            found.extend([o async for o in _listed(api, kind, namespace=namespace)])
        except Forbidden:
            hidden.append(kind.value)
    return Objects(observed=tuple(found), hidden=tuple(hidden))


async def _listed(api: "ClusterApi", kind: Kind, *, namespace: str) -> AsyncIterator[Observed]:
    from supervisor_middleware.sources.cluster_kinds import WATCHED

    watched = WATCHED[kind]
    within = namespace if kind is Kind.SANDBOX_POLICY else ""
    async for page in api.pages(watched.within(within) if within else watched.collection):
        for body in page.get("items") or ():
            yield _of_body(kind.value, body)


def only(observed: Iterable[Observed], *, namespace: str) -> tuple[Observed, ...]:
    """Those of `namespace`, and those of none; all if it is empty."""
    return tuple(o for o in observed if not namespace or o.namespace in {"", namespace})


def _of_summary(value: Mapping[str, Any]) -> Iterator[Observed]:
    for o in value["objects"]:
        yield Observed(kind=o["kind"], namespace=o["namespace"] or "", name=o["name"], status=o["status"])
    for problem in value["problems"]:
        name = problem["subject"].removeprefix("File ")
        yield Observed(kind="File", namespace="", name=name, status={"violations": [problem]})


def _of_body(kind: str, body: Mapping[str, Any]) -> Observed:
    metadata = body["metadata"]
    return Observed(
        kind=kind, namespace=metadata.get("namespace", ""), name=metadata["name"], status=body.get("status") or {}
    )
