"""A registration in, an accepted registration or a report out. PURE.

Two steps, with `Describe` between them: `draft_registration` reads the spec, `accept_registration` judges what the
service said. RFC 0009 "Contract versioning": manifest validation is mandatory, before traffic can depend on it.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never
from urllib.parse import urlsplit

from cryptography import x509

from supervisor_middleware.compiler.manifest_checks import FIX_SERVICE, manifest_violations
from supervisor_middleware.compiler.structure import parse
from supervisor_middleware.model.durations import parse_timeout
from supervisor_middleware.model.fields import ENDPOINT_RULE
from supervisor_middleware.model.hosts import DEFAULT_PORTS, normalize_host
from supervisor_middleware.model.identifiers import BINDING_ID_RULE, is_binding_id, is_reserved
from supervisor_middleware.model.registration import ClientAuthentication, Connection, Registration
from supervisor_middleware.model.resources import SupervisorMiddlewareSpec
from supervisor_middleware.model.settings import CompilerSettings, Loopback
from supervisor_middleware.model.snapshot import BundleKey, Stored
from supervisor_middleware.model.verdict import Described, Description, Outage, Undescribable, Unreachable
from supervisor_middleware.model.violation import Advice, Reason, Report, Subject, Violation, report


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
        connection=None if violations else _connection(spec, bundles),
        max_body_bytes=0 if violations else spec["maxBodyBytes"],
        declared_bindings=() if violations else tuple(spec.get("bindings") or ()),
    )
    return draft, report(violations, _advice(draft))


def accept_registration(
    draft: RegistrationDraft, description: Description, *, others: Iterable[Registration]
) -> tuple[Registration | None, Report]:
    """Judge what the service said of itself; `others` are the registrations already accepted.

    A draft without a connection is never accepted: its own report says why.
    """
    if draft.connection is None:
        return None, report(())
    match description:
        case Described(manifest):
            accepted = tuple(r for r in others if r.uid != draft.uid)
            violations = [*_name_conflicts(draft, accepted), *manifest_violations(draft, manifest, others=accepted)]
            if violations:
                return None, report(violations)
            return Registration(
                name=draft.name,
                uid=draft.uid,
                created_at=draft.created_at,
                connection=draft.connection,
                max_body_bytes=draft.max_body_bytes,
                manifest=manifest,
                declared_bindings=draft.declared_bindings,
            ), report(())
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
    return _bundle_key(reference) if isinstance(reference, Mapping) else None


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
    for reason, message, hint in _endpoint_problems(spec, settings):
        yield violation("grpcEndpoint", reason, message, hint)
    tls = spec.get("tls") or {}
    if tls.get("caBundle") is not None and tls.get("caBundleRef") is not None:
        yield violation("tls", Reason.MALFORMED, "set caBundle or caBundleRef, not both", "remove one of them")
    if tls and spec.get("grpcEndpoint", "").startswith("http://"):
        yield violation("tls", Reason.MALFORMED, "has no meaning for an http:// endpoint", "use https://")
    for path, reason, message, hint in _bundle_problems(tls, bundles):
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


def _endpoint_problems(spec: Mapping[str, Any], settings: CompilerSettings) -> Iterator[tuple[Reason, str, str]]:
    if "grpcEndpoint" not in spec:
        return
    try:
        url = urlsplit(spec["grpcEndpoint"])
        host, port = normalize_host(url.netloc), url.port
    except ValueError:
        yield Reason.INVALID_ENDPOINT, f"must be {ENDPOINT_RULE}", "check host and port"
        return
    if port == 0:
        yield Reason.INVALID_ENDPOINT, "port 0 is nobody's", "check the port"
    if url.scheme == "http" and not spec.get("allowInsecure"):
        yield (
            Reason.INSECURE_TRANSPORT,
            "http:// sends request content in the clear and needs allowInsecure: true",
            "use https://",
        )
    if url.scheme == "https" and spec.get("allowInsecure"):
        yield (
            Reason.INSECURE_TRANSPORT,
            "allowInsecure is for http:// endpoints only; it never means that verification is skipped",
            "remove allowInsecure; use tls.caBundle for a private authority",
        )
    if settings.loopback is Loopback.REFUSED and _is_loopback(host):
        yield (
            Reason.INVALID_ENDPOINT,
            "a loopback address is another machine for every supervisor",
            "use a name all supervisors can reach, or run the operator with --allow-loopback",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return plain.is_loopback or plain.is_unspecified  # connecting to 0.0.0.0 reaches this machine too


def _bundle_problems(
    tls: Mapping[str, Any], bundles: Mapping[BundleKey, str]
) -> Iterator[tuple[str, Reason, str, str]]:
    if (pem := tls.get("caBundle")) is not None and not _is_bundle(pem):
        yield (
            "tls.caBundle",
            Reason.INVALID_CA_BUNDLE,
            "must hold PEM certificates and nothing else",
            "paste the certificates of the authority, never a key",
        )
    if (reference := tls.get("caBundleRef")) is not None:
        key = _bundle_key(reference)
        if key not in bundles:
            yield (
                "tls.caBundleRef",
                Reason.REFERENCE_NOT_FOUND,
                f"{key} does not exist",
                "create it, fix the reference, or grant the operator `get` on it",
            )
        elif not _is_bundle(bundles[key]):
            yield (
                "tls.caBundleRef",
                Reason.INVALID_CA_BUNDLE,
                f"{key} must hold PEM certificates and nothing else",
                "put the certificates of the authority there, never a key",
            )


def _is_bundle(pem: str) -> bool:
    if "PRIVATE KEY" in pem:
        return False
    try:
        return bool(x509.load_pem_x509_certificates(pem.encode()))
    except ValueError:
        return False


def _connection(spec: Mapping[str, Any], bundles: Mapping[BundleKey, str]) -> Connection:
    tls = spec.get("tls") or {}
    reference = tls.get("caBundleRef")
    url = urlsplit(spec["grpcEndpoint"])
    return Connection(
        endpoint=f"{url.scheme}://{normalize_host(url.netloc)}:{url.port or DEFAULT_PORTS[url.scheme]}",
        timeout=parse_timeout(spec.get("timeout", "500ms")),
        ca_bundle_pem=bundles[_bundle_key(reference)] if reference else tls.get("caBundle") or "",
        server_name=tls.get("serverName") or "",
        client_authentication=ClientAuthentication(spec.get("clientAuthentication", "MutualTLS")),
    )


def _bundle_key(reference: Mapping[str, Any]) -> BundleKey:
    return BundleKey(
        str(reference.get("kind")),
        str(reference.get("namespace")),
        str(reference.get("name")),
        str(reference.get("key", "ca.crt")),
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
    return _of_service(draft, Reason.SERVICE_UNREACHABLE, f"Describe failed: {outage}", hint)


def _of_service(draft: RegistrationDraft, reason: Reason, message: str, hint: str) -> Violation:
    return Violation(subject=draft.subject, path="spec.grpcEndpoint", reason=reason, message=message, hint=hint)
