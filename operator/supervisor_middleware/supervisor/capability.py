"""Whether a service can do what a generation needs of it. PURE.

What a generation needs is a capability (binding ID, operation, phase, limit at least the needed one), not an
identical manifest: service versions may roll behind one address (design, section 6 "Manifests").
"""

from enum import StrEnum

from supervisor_middleware.model.generation import Service
from supervisor_middleware.model.manifest import Binding, Manifest


class ServiceState(StrEnum):
    """What is known of a needed service."""

    READY = "ready"
    UNREACHABLE = "unreachable"
    INCAPABLE = "incapable"
    """It answers, and lacks a binding or a limit that the generation needs."""
    REFUSING = "refusing"
    """It answers, and does not let this supervisor call."""


def state_of(manifest: Manifest | None, *, service: Service) -> ServiceState:
    """The state of `service` when `manifest` is its last answer to `Describe` (None: it gave none)."""
    if manifest is None:
        return ServiceState.UNREACHABLE
    is_capable = manifest.dialect is service.dialect and not missing_bindings(manifest, service=service)
    return ServiceState.READY if is_capable else ServiceState.INCAPABLE


def missing_bindings(manifest: Manifest, *, service: Service) -> tuple[str, ...]:
    """The IDs of needed bindings that `manifest` lacks, or offers with another hook or a lower limit."""
    return tuple(need.id for need in service.needs if not any(covers(b, need) for b in manifest.bindings))


def covers(offered: Binding, need: Binding) -> bool:
    """Whether who offers one gives all that the other asks for."""
    return (
        offered.id == need.id
        and offered.operation is need.operation
        and offered.phase is need.phase
        and offered.max_body_bytes >= need.max_body_bytes
    )
