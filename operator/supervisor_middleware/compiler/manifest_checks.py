"""The rulebook for manifests. PURE: what a service may say of itself, and what a registration may make of it.

RFC 0009 "Registration and delivery" and "Contract versioning". A manifest is untrusted: IDs that are no IDs are
named by their place, never repeated.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from supervisor_middleware.compiler.binding import is_usable
from supervisor_middleware.compiler.claims import Exposure, Neighbours
from supervisor_middleware.model.durations import parse_timeout
from supervisor_middleware.model.identifiers import BINDING_ID_RULE, is_binding_id, is_reserved
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.model.violation import Reason, Violation

if TYPE_CHECKING:
    from supervisor_middleware.compiler.registration import RegistrationDraft

Problem: TypeAlias = tuple[str, Reason, str, str]
"""Path, reason, message, hint."""


_MANIFEST: Final = "status.manifest"
FIX_SERVICE: Final = "the service must be mended; see smw describe ENDPOINT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """What a registration takes of a manifest, and what it is judged against."""

    manifest: Manifest
    exposure: Exposure
    max_body_bytes: int
    declared: tuple[str, ...]
    owners: Mapping[str, str]

    def usable(self) -> tuple[Binding, ...]:
        """What is taken, as far as v1 can run it."""
        return tuple(b for b in self.exposure.manifest.bindings if is_usable(b))


def named(manifest: Manifest) -> Iterator[tuple[str, Binding]]:
    """Each binding with a name that is safe to show."""
    for index, binding in enumerate(manifest.bindings):
        yield (binding.id if is_binding_id(binding.id) else f"binding {index}"), binding


# ------------------------------------------------------------------------------------------- of the whole manifest


def ids_are_valid(manifest: Manifest) -> Iterator[Problem]:
    """Bare or namespaced, no empty segment, not in the namespace of built-ins."""
    for name, binding in named(manifest):
        if not is_binding_id(binding.id):
            yield _MANIFEST, Reason.INVALID_MANIFEST, f"the ID of {name} must be {BINDING_ID_RULE}", FIX_SERVICE
        elif is_reserved(binding.id):
            message = f"binding {name} claims the openshell/ namespace, which is reserved for built-ins"
            yield _MANIFEST, Reason.RESERVED_NAMESPACE, message, FIX_SERVICE


def hooks_are_unique(manifest: Manifest) -> Iterator[Problem]:
    """One binding an ID (a released service: one a hook)."""
    keys = Counter((name, b.operation, b.phase) for name, b in named(manifest))
    ids = Counter(name for name, _ in named(manifest))
    counts = ids if manifest.dialect is Dialect.RFC0009 else Counter({k[0]: n for k, n in keys.items() if n > 1})
    for name, count in counts.items():
        if count > 1:
            yield _MANIFEST, Reason.INVALID_MANIFEST, f"binding {name} is listed {count} times", FIX_SERVICE


def hooks_are_supported(manifest: Manifest) -> Iterator[Problem]:
    """v1 knows HTTP_REQUEST/PRE_CREDENTIALS; a released service may offer WebSocket messages besides."""
    supported = [b for b in manifest.bindings if _is_supported(b)]
    extra = {Operation.WEBSOCKET_MESSAGE} if manifest.dialect is Dialect.RELEASED else set()
    for name, binding in named(manifest):
        is_extra = binding.operation in extra and binding.phase is Phase.PRE_CREDENTIALS
        if not _is_supported(binding) and not is_extra:
            message = f"binding {name} is for another hook than HTTP_REQUEST/PRE_CREDENTIALS, the only one of v1"
            yield _MANIFEST, Reason.INVALID_MANIFEST, message, FIX_SERVICE
    if not supported:
        message = "the service offers no HTTP_REQUEST/PRE_CREDENTIALS binding"
        yield _MANIFEST, Reason.INVALID_MANIFEST, message, FIX_SERVICE


def capabilities_are_in_range(manifest: Manifest) -> Iterator[Problem]:
    """Body limits from 1 byte to the platform's maximum; timeouts in the RFC's grammar."""
    for name, binding in named(manifest):
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


# ------------------------------------------------------------------------------------------ of what is taken of it


def limit_is_within_every_binding(given: Taking) -> Iterator[Problem]:
    """RFC 0009 "Registration and delivery": refused, never clamped. Of the bindings that are taken."""
    taken = frozenset(given.usable())
    is_mixed = any(b.max_body_bytes >= given.max_body_bytes for b in taken)
    for name, binding in named(given.manifest):
        if binding in taken and given.max_body_bytes > binding.max_body_bytes:
            message = f"is {given.max_body_bytes}, but binding {name} takes at most {binding.max_body_bytes} bytes"
            hint = f"set {binding.max_body_bytes} or less"
            if is_mixed and given.manifest.dialect is Dialect.RFC0009:
                hint += (
                    f", or split: the other bindings in spec.bindings here, {name} in those of a second registration"
                )
            yield "spec.maxBodyBytes", Reason.LIMIT_EXCEEDS_MANIFEST, message, hint


def something_is_taken(given: Taking) -> Iterator[Problem]:
    """A registration that exposes nothing is a mistake, or its service is another one now."""
    if given.usable() or not any(is_usable(b) for b in given.manifest.bindings):
        return  # what is wrong then is said of the manifest
    if given.declared:
        message = "lists no HTTP_REQUEST/PRE_CREDENTIALS binding that the service offers"
        yield "spec.bindings", Reason.INVALID_MANIFEST, message, "compare it with smw describe ENDPOINT"
    else:
        message = "the service offers none of the bindings that this registration was accepted with"
        hint = "restore the service, or list in spec.bindings what it is to expose now"
        yield _MANIFEST, Reason.INVALID_MANIFEST, message, hint


def ids_are_free(given: Taking) -> Iterator[Problem]:
    """RFC 0009 "Registration and delivery": duplicate binding IDs across services are rejected; the older stands."""
    for identifier in dict.fromkeys((*given.declared, *(b.id for b in given.exposure.manifest.bindings))):
        if (owner := given.owners.get(identifier)) is not None:
            path = "spec.bindings" if identifier in given.declared else _MANIFEST
            message = f"binding {identifier} already belongs to registration {owner}"
            hint = f"list in spec.bindings only what it does not have, or remove registration {owner}"
            yield path, Reason.DUPLICATE_BINDING, message, hint


FORM: Final[tuple[Callable[[Manifest], Iterator[Problem]], ...]] = (
    ids_are_valid,
    hooks_are_unique,
    hooks_are_supported,
    capabilities_are_in_range,
)
"""A service that breaks one of these (claims a built-in's ID, say) is not trusted with its other bindings either."""

CHECKS: Final[tuple[Callable[[Taking], Iterator[Problem]], ...]] = (
    limit_is_within_every_binding,
    something_is_taken,
    ids_are_free,
)


def form_problems(manifest: Manifest) -> Iterator[Problem]:
    """What no registration would accept."""
    for check in FORM:
        yield from check(manifest)


def manifest_violations(
    draft: "RegistrationDraft", manifest: Manifest, *, exposure: Exposure, neighbours: Neighbours
) -> Iterator[Violation]:
    """Every rule a manifest breaks under this registration."""
    taking = Taking(
        manifest=manifest,
        exposure=exposure,
        max_body_bytes=draft.max_body_bytes,
        declared=draft.declared_bindings,
        owners=neighbours.owners(draft),
    )
    for path, reason, message, hint in (*form_problems(manifest), *(p for check in CHECKS for p in check(taking))):
        yield Violation(subject=draft.subject, path=path, reason=reason, message=message, hint=hint)


def _is_supported(binding: Binding) -> bool:
    return binding.operation is Operation.HTTP_REQUEST and binding.phase is Phase.PRE_CREDENTIALS
