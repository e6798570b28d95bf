"""A registration in, an accepted registration or a report out. PURE.

Two steps, with `Describe` between them: `draft_registration` reads the spec, `accept_registration` judges what the
service said. RFC 0009 "Contract versioning": manifest validation is mandatory, before traffic can depend on it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, assert_never

from supervisor_middleware.compiler.claims import claims_advice, expose, neighbours_of
from supervisor_middleware.compiler.connections import bundle_key, connection_of, connection_problems
from supervisor_middleware.compiler.manifest_checks import FIX_SERVICE, form_problems, manifest_violations
from supervisor_middleware.compiler.structure import parse
from supervisor_middleware.model.identifiers import BINDING_ID_RULE, is_binding_id, is_reserved
from supervisor_middleware.model.registration import ClientAuthentication, Connection, Registration
from supervisor_middleware.model.resources import SupervisorMiddlewareSpec
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import BundleKey, Stored
from supervisor_middleware.model.verdict import Described, Description, Outage, Undescribable, Unreachable
from supervisor_middleware.model.violation import Advice, Reason, Report, Subject, Violation, report

_REFUSALS: Final = frozenset({Outage.CREDENTIALS_REFUSED, Outage.CLOSED_AFTER_HANDSHAKE})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationDraft:
    """A registration as far as it can be read; `connection` None if it must not be dialled."""

    subject: Subject
    uid: str
    generation: int
    created_at: datetime
    name: str
    connection: Connection | None
    max_body_bytes: int
    declared_bindings: tuple[str, ...] = ()

    def is_of(self, endpoint: str) -> bool:
        """Whether it would dial this endpoint."""
        return self.connection is not None and self.connection.endpoint == endpoint


def draft_registration(
    stored: Stored, *, bundles: Mapping[BundleKey, str], settings: CompilerSettings
) -> tuple[RegistrationDraft, Report]:
    """Read a registration, with everything that is wrong with it before anyone is dialled."""
    violations, wrong = parse(SupervisorMiddlewareSpec, stored.spec, subject=stored.subject)
    raw: Mapping[str, Any] = stored.spec if isinstance(stored.spec, Mapping) else {}
    spec = {} if () in wrong else {k: v for k, v in raw.items() if not any(w[0] == k for w in wrong)}
    violations.extend(_spec_violations(stored, spec, bundles=bundles, settings=settings))
    draft = RegistrationDraft(
        subject=stored.subject,
        uid=stored.uid,
        generation=stored.generation,
        created_at=stored.created_at,
        name=_name_of(stored, spec),
        connection=None if violations else connection_of(spec, bundles),
        max_body_bytes=0 if violations else spec["maxBodyBytes"],
        declared_bindings=() if violations else tuple(dict.fromkeys(spec.get("bindings") or ())),
    )
    return draft, report(violations, _advice(draft))


def accept_registration(
    draft: RegistrationDraft,
    description: Description,
    *,
    others: Iterable[Registration],
    drafts: Iterable[RegistrationDraft] = (),
) -> tuple[Registration | None, Report]:
    """Judge what the service said.

    `others` are the registrations already accepted; one with the draft's UID is what was accepted of it before, whose
    binding IDs it keeps. `drafts` are the registrations as they are written: an older one keeps what it declares.
    A draft without a connection is never accepted: its own report says why.
    """
    if draft.connection is None:
        return None, report(())
    match description:
        case Described(manifest):
            neighbours = neighbours_of(draft, others=others, drafts=drafts)
            exposure = expose(draft, manifest, neighbours=neighbours)
            broken = manifest_violations(draft, manifest, exposure=exposure, neighbours=neighbours)
            violations = [*_name_conflicts(draft, neighbours.accepted), *broken]
            is_sound = not any(form_problems(manifest))
            found = report(violations, claims_advice(draft, manifest, exposure) if is_sound else ())
            if violations:
                return None, found
            return Registration(
                name=draft.name,
                uid=draft.uid,
                created_at=draft.created_at,
                connection=draft.connection,
                max_body_bytes=draft.max_body_bytes,
                manifest=exposure.manifest,
                declared_bindings=draft.declared_bindings,
                claims=exposure.claims,
            ), found
        case Undescribable(problem):
            message = f"Describe answered, but {problem}"
            return None, report([_of_service(draft, Reason.INVALID_MANIFEST, message, FIX_SERVICE)])
        case Unreachable(outage):
            return None, report([_outage(draft, outage)])
        case _:
            assert_never(description)


def reference_of(stored: Stored) -> BundleKey | None:
    """The CA bundle a registration refers to, so that a source can gather it."""
    tls = stored.spec.get("tls") if isinstance(stored.spec, Mapping) else None
    reference = tls.get("caBundleRef") if isinstance(tls, Mapping) else None
    return bundle_key(reference) if isinstance(reference, Mapping) else None


def _spec_violations(
    stored: Stored, spec: Mapping[str, Any], *, bundles: Mapping[BundleKey, str], settings: CompilerSettings
) -> Iterator[Violation]:
    def violation(path: str, reason: Reason, message: str, hint: str) -> Violation:
        return Violation(subject=stored.subject, path=f"spec.{path}", reason=reason, message=message, hint=hint)

    name = _name_of(stored, spec)
    if is_reserved(name):
        message = "the openshell/ namespace is reserved for built-ins"
        yield violation("registrationName", Reason.RESERVED_NAMESPACE, message, "choose another name")
    elif not is_binding_id(name):
        message = f"is needed, because metadata.name is not {BINDING_ID_RULE}"
        yield violation("registrationName", Reason.MISSING_FIELD, message, "add the field")
    for index, identifier in enumerate(spec.get("bindings") or ()):
        if is_reserved(identifier):
            message = "the openshell/ namespace is reserved for built-ins"
            yield violation(
                f"bindings[{index}]", Reason.RESERVED_NAMESPACE, message, "remove it: built-ins are there"
            )
    for path, reason, message, hint in connection_problems(spec, bundles, settings):
        yield violation(path, reason, message, hint)


def _name_conflicts(draft: RegistrationDraft, accepted: Iterable[Registration]) -> Iterator[Violation]:
    """Generations know services by name: one name, one service."""
    if any(r.name == draft.name for r in accepted):
        yield Violation(
            subject=draft.subject,
            path="spec.registrationName",
            reason=Reason.DUPLICATE_NAME,
            message=f"the name {draft.name} already belongs to another registration",
            hint="choose another name",
        )


def _name_of(stored: Stored, spec: Mapping[str, Any]) -> str:
    name = spec.get("registrationName")
    return name if isinstance(name, str) and name else stored.subject.name


def _advice(draft: RegistrationDraft) -> Iterator[Advice]:
    if draft.connection is None:
        return
    if draft.connection.is_insecure:
        yield Advice(
            subject=draft.subject,
            path="spec.allowInsecure",
            message="request content and decisions travel in the clear; use this on an isolated machine only",
        )
    elif draft.connection.client_authentication is ClientAuthentication.NONE:
        yield Advice(
            subject=draft.subject,
            path="spec.clientAuthentication",
            message="the service cannot tell who calls it; use MutualTLS",
        )


def _outage(draft: RegistrationDraft, outage: Outage) -> Violation:
    if outage is Outage.TLS_VERIFICATION_FAILED:
        hint = "check tls.caBundle and tls.serverName against the certificate the service presents"
        return _of_service(draft, Reason.TLS_VERIFICATION_FAILED, f"Describe failed: {outage}", hint)
    hint = "check that the service runs and that the operator can reach it; this is retried"
    if outage in _REFUSALS:
        hint = "let it trust the published trust bundle and admit the operator's SPIFFE ID; this is retried"
    return _of_service(draft, Reason.SERVICE_UNREACHABLE, f"Describe failed: {outage}", hint)


def _of_service(draft: RegistrationDraft, reason: Reason, message: str, hint: str) -> Violation:
    return Violation(subject=draft.subject, path="spec.grpcEndpoint", reason=reason, message=message, hint=hint)
