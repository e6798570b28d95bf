"""Which service a policy means. PURE: the one place that looks up a binding ID.

RFC 0009 "Registration and delivery": policies select stable binding IDs; built-ins need no registration. A released
service is selected by its registration's name, which the codec already made its one binding's ID: one ID space.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from supervisor_middleware.model.limits import MAX_BODY_BYTES, TIMEOUT_DEFAULT
from supervisor_middleware.model.manifest import Binding, Dialect, Operation, Phase, effective_timeout
from supervisor_middleware.model.registration import Registration

BUILTIN_ENDPOINT: Final = "builtin:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A binding and who serves it; `registration` None for a built-in.

    `manifest_digest` is of the manifest that offers the binding, for the verdict's key: digested once, asked often.
    """

    binding: Binding
    registration: Registration | None
    manifest_digest: str

    @property
    def max_body_bytes(self) -> int:
        """The limit in force: the operator's for an external service, its own for a built-in."""
        return self.binding.max_body_bytes if self.registration is None else self.registration.max_body_bytes

    @property
    def timeout(self) -> timedelta:
        """The effective timeout of ValidateConfig and of evaluation."""
        if self.registration is not None:
            return self.registration.timeout_of(self.binding)
        return effective_timeout(registration=TIMEOUT_DEFAULT, binding=self.binding, dialect=Dialect.RFC0009)

    @property
    def endpoint(self) -> str:
        """Where verdicts come from, for their key."""
        return BUILTIN_ENDPOINT if self.registration is None else self.registration.connection.endpoint


@dataclass(frozen=True, slots=True)
class Bindings:
    """Every selectable binding by ID."""

    by_id: Mapping[str, Bound]

    def find(self, identifier: str) -> Bound | None:
        """The binding, if anyone serves it."""
        return self.by_id.get(identifier)

    def changed_since(self, before: "Bindings") -> frozenset[str]:
        """The IDs that somebody else serves, or serves otherwise, or nobody does any more."""
        every = self.by_id.keys() | before.by_id.keys()
        return frozenset(i for i in every if self.find(i) != before.find(i))

    def close_to(self, identifier: str) -> tuple[str, ...]:
        """Known IDs that look like it, best first."""
        return tuple(difflib.get_close_matches(identifier, self.by_id, n=3))


def bind(registrations: Iterable[Registration], builtins: Iterable[Binding]) -> Bindings:
    """Index accepted registrations; of two that claim an ID or a name the older stands (creation, then name)."""
    found = {b.id: Bound(binding=b, registration=None, manifest_digest=BUILTIN_ENDPOINT) for b in builtins}
    ordered = sorted(registrations, key=lambda r: (r.created_at, r.name, r.uid))
    # A generation knows services by name: two of one name must not be taken for each other.
    by_name = {r.name: r for r in reversed(ordered)}
    for registration in sorted(by_name.values(), key=lambda r: (r.created_at, r.name)):
        manifest = registration.manifest
        digest = manifest.digest
        for binding in filter(is_usable, manifest.bindings):
            found.setdefault(binding.id, Bound(binding=binding, registration=registration, manifest_digest=digest))
    return Bindings(found)


def is_usable(binding: Binding) -> bool:
    """Whether v1 can run it: HTTP_REQUEST/PRE_CREDENTIALS within the platform's body limit."""
    return (
        binding.operation is Operation.HTTP_REQUEST
        and binding.phase is Phase.PRE_CREDENTIALS
        and 1 <= binding.max_body_bytes <= MAX_BODY_BYTES
    )
