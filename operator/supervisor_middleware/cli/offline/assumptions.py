"""What is taken for granted offline: a binding whose manifest is not at hand is served all the same. PURE.

Without it a policy could not be tried before its service is recorded: its stages could not run, which is what a
cluster would make of a service that is gone, not what the author asks about. Every command that assumes shows it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.compiler.registration import RegistrationDraft
from supervisor_middleware.model.identifiers import is_reserved
from supervisor_middleware.model.limits import MAX_BODY_BYTES, TIMEOUT_DEFAULT
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.model.registration import Connection, Registration
from supervisor_middleware.sources.folder import UNDATED

UNKNOWN_SERVICE: Final = "?"
"""The service of an assumed binding where several could be meant, or none."""


def with_assumed(bindings: Bindings, wanted: Iterable[str], *, pending: Sequence[RegistrationDraft]) -> Bindings:
    """`bindings`, and those of `wanted` that nobody could look up: of `pending` registrations, or of one unknown."""
    missing = [i for i in sorted(set(wanted)) if bindings.find(i) is None and not is_reserved(i)]
    return Bindings({**bindings.by_id, **{i: _assumed(i, _serving(i, pending)) for i in missing}})


def elsewhere(
    name: str, manifest: Manifest, *, max_body_bytes: int, connection: Connection | None = None
) -> Registration:
    """A registration that is kept in another place, as far as is known of it."""
    return Registration(
        name=name,
        uid=f"elsewhere-{name}",
        created_at=UNDATED,
        connection=connection or _NOWHERE,
        max_body_bytes=max_body_bytes,
        manifest=manifest,
    )


def note(bindings: Iterable[str]) -> str:
    """What people are told of bindings that are assumed."""
    return f"no manifest is known of {', '.join(bindings)}: limits are assumed (use --manifests or --live)"


_NOWHERE: Final = Connection(endpoint="https://recorded.invalid:443", timeout=TIMEOUT_DEFAULT)


def _assumed(identifier: str, draft: RegistrationDraft | None) -> Bound:
    limit = MAX_BODY_BYTES if draft is None else draft.max_body_bytes
    binding = Binding(
        id=identifier, operation=Operation.HTTP_REQUEST, phase=Phase.PRE_CREDENTIALS, max_body_bytes=limit
    )
    manifest = Manifest(name="", service_version="", dialect=Dialect.RFC0009, bindings=(binding,))
    registration = elsewhere(
        UNKNOWN_SERVICE if draft is None else draft.name,
        manifest,
        max_body_bytes=limit,
        connection=None if draft is None else draft.connection,
    )
    return Bound(binding=binding, registration=registration, manifest_digest="")


def _serving(binding: str, pending: Iterable[RegistrationDraft]) -> RegistrationDraft | None:
    """The one registration that can be meant."""
    dialled = [d for d in pending if d.connection is not None]
    found = [d for d in dialled if binding in d.declared_bindings] or [d for d in dialled if not d.declared_bindings]
    return found[0] if len(found) == 1 else None
