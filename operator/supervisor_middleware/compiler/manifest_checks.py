"""The rulebook for manifests. PURE: what a service may say of itself, and what a registration may make of it.

RFC 0009 "Registration and delivery" and "Contract versioning". A manifest is untrusted: IDs that are no IDs are
named by their place, never repeated.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from supervisor_middleware.compiler.binding import is_usable
from supervisor_middleware.model.durations import parse_timeout
from supervisor_middleware.model.identifiers import BINDING_ID_RULE, is_binding_id, is_reserved
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.violation import Reason, Violation

if TYPE_CHECKING:
    from supervisor_middleware.compiler.registration import RegistrationDraft

Problem: TypeAlias = tuple[str, Reason, str, str]
"""Path, reason, message, hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestInput:
    """What a manifest is judged against."""

    manifest: Manifest
    max_body_bytes: int
    declared: tuple[str, ...]
    others: tuple[Registration, ...]

    def named(self) -> Iterator[tuple[str, Binding]]:
        """Each binding with a name that is safe to show."""
        for index, binding in enumerate(self.manifest.bindings):
            yield (binding.id if is_binding_id(binding.id) else f"binding {index}"), binding


Check: TypeAlias = Callable[[ManifestInput], Iterator[Problem]]
_MANIFEST: Final = "status.manifest"
FIX_SERVICE: Final = "the service must be mended; see smw describe ENDPOINT"


def ids_are_valid(given: ManifestInput) -> Iterator[Problem]:
    """Bare or namespaced, no empty segment, not in the namespace of built-ins."""
    for name, binding in given.named():
        if not is_binding_id(binding.id):
            yield _MANIFEST, Reason.INVALID_MANIFEST, f"the ID of {name} must be {BINDING_ID_RULE}", FIX_SERVICE
        elif is_reserved(binding.id):
            message = f"binding {name} claims the openshell/ namespace, which is reserved for built-ins"
            yield _MANIFEST, Reason.RESERVED_NAMESPACE, message, FIX_SERVICE


def hooks_are_unique(given: ManifestInput) -> Iterator[Problem]:
    """One binding an ID (a released service: one a hook)."""
    keys = Counter((name, b.operation, b.phase) for name, b in given.named())
    ids = Counter(name for name, _ in given.named())
    counts = (
        ids if given.manifest.dialect is Dialect.RFC0009 else Counter({k[0]: n for k, n in keys.items() if n > 1})
    )
    for name, count in counts.items():
        if count > 1:
            yield _MANIFEST, Reason.DUPLICATE_BINDING, f"binding {name} is listed {count} times", FIX_SERVICE


def hooks_are_supported(given: ManifestInput) -> Iterator[Problem]:
    """v1 knows HTTP_REQUEST/PRE_CREDENTIALS; a released service may offer WebSocket messages besides."""
    supported = [b for b in given.manifest.bindings if _is_supported(b)]
    extra = {Operation.WEBSOCKET_MESSAGE} if given.manifest.dialect is Dialect.RELEASED else set()
    for name, binding in given.named():
        is_extra = binding.operation in extra and binding.phase is Phase.PRE_CREDENTIALS
        if not _is_supported(binding) and not is_extra:
            message = f"binding {name} is for another hook than HTTP_REQUEST/PRE_CREDENTIALS, the only one of v1"
            yield _MANIFEST, Reason.INVALID_MANIFEST, message, FIX_SERVICE
    if not supported:
        message = "the service offers no HTTP_REQUEST/PRE_CREDENTIALS binding"
        yield _MANIFEST, Reason.INVALID_MANIFEST, message, FIX_SERVICE


def capabilities_are_in_range(given: ManifestInput) -> Iterator[Problem]:
    """Body limits from 1 byte to the platform's maximum; timeouts in the RFC's grammar."""
    for name, binding in given.named():
        if not 1 <= binding.max_body_bytes <= MAX_BODY_BYTES:
            message = (
                f"binding {name} advertises {binding.max_body_bytes} body bytes; 1 to {MAX_BODY_BYTES} is allowed"
            )
            yield _MANIFEST, Reason.INVALID_MANIFEST, message, FIX_SERVICE
        if binding.timeout:
            try:
                parse_timeout(binding.timeout)
            except ValueError as error:
                message = f"the timeout of binding {name} {error}"
                yield _MANIFEST, Reason.INVALID_TIMEOUT, message, FIX_SERVICE


def limit_is_within_every_binding(given: ManifestInput) -> Iterator[Problem]:
    """RFC 0009 "Registration and delivery": refused, never clamped."""
    for name, binding in given.named():
        if is_usable(binding) and given.max_body_bytes > binding.max_body_bytes:
            message = f"is {given.max_body_bytes}, but binding {name} takes at most {binding.max_body_bytes} bytes"
            hint = f"set {binding.max_body_bytes} or less, or register the binding apart"
            yield "spec.maxBodyBytes", Reason.LIMIT_EXCEEDS_MANIFEST, message, hint


def bindings_are_declared(given: ManifestInput) -> Iterator[Problem]:
    """A service exposes only what its registration says it may, where it says so."""
    for name, binding in given.named():
        if given.declared and binding.id not in given.declared:
            message = f"the service offers binding {name}, which spec.bindings does not list"
            yield "spec.bindings", Reason.INVALID_MANIFEST, message, "add it if it is meant, else mend the service"


def ids_are_free(given: ManifestInput) -> Iterator[Problem]:
    """RFC 0009 "Registration and delivery": duplicate binding IDs across services are rejected; the older stands."""
    owners = {i: r.name for r in given.others for i in _claims(r)}
    for name, binding in given.named():
        if binding.id in owners:
            message = f"binding {name} already belongs to registration {owners[binding.id]}"
            yield _MANIFEST, Reason.DUPLICATE_BINDING, message, "remove the other registration or change the service"


CHECKS: Final[tuple[Check, ...]] = (
    ids_are_valid,
    hooks_are_unique,
    hooks_are_supported,
    capabilities_are_in_range,
    limit_is_within_every_binding,
    bindings_are_declared,
    ids_are_free,
)


def manifest_violations(
    draft: "RegistrationDraft", manifest: Manifest, *, others: Iterable[Registration]
) -> Iterator[Violation]:
    """Every rule a manifest breaks under this registration."""
    given = ManifestInput(
        manifest=manifest,
        max_body_bytes=draft.max_body_bytes,
        declared=draft.declared_bindings,
        others=tuple(r for r in others if r.uid != draft.uid),
    )
    for check in CHECKS:
        for path, reason, message, hint in check(given):
            yield Violation(subject=draft.subject, path=path, reason=reason, message=message, hint=hint)


def _is_supported(binding: Binding) -> bool:
    return binding.operation is Operation.HTTP_REQUEST and binding.phase is Phase.PRE_CREDENTIALS


def _claims(registration: Registration) -> Iterator[str]:
    yield from (b.id for b in registration.manifest.bindings)
    yield from registration.declared_bindings
