"""SPIFFE identities and how they are read from certificates. PURE.

`spiffe://<trust domain>/ns/<namespace>/sandbox/<name>` is a supervisor, `.../ns/<namespace>/operator` the operator.
Identity comes from the certificate alone, never from a request's field. A value that exists is valid: whoever
writes a bad name gets `InvalidInput`, whoever presents a bad certificate is `Untrusted`.
"""

import re
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from supervisor_middleware.errors import InvalidInput, Untrusted

MAX_SUBDOMAIN: Final = 253  # RFC 1123
MAX_POD_UID: Final = 64  # X.520 ub-serial-number
OPERATOR_LABEL: Final = "operator"
MAX_TRUST_DOMAIN: Final = MAX_SUBDOMAIN - len(f"{OPERATOR_LABEL}.")

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SEGMENT: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")
_SPIFFE: Final = re.compile(r"spiffe://([^/]*)((?:/[^/]+)*)")
_POD_UID: Final = re.compile(rf"[A-Za-z0-9-]{{1,{MAX_POD_UID}}}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SpiffeId:
    """A SPIFFE ID; no path means the trust domain itself (what a root carries).

    The trust domain is a DNS subdomain (stricter than SPIFFE) because the operator's server name is made of it.
    """

    trust_domain: str
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_subdomain(operator_server_name(self.trust_domain)):
            raise InvalidInput(
                f"the trust domain must be a lower-case DNS name of at most {MAX_TRUST_DOMAIN} characters"
            )
        if not all(_SEGMENT.fullmatch(segment) for segment in self.path):
            raise InvalidInput("a SPIFFE ID's path segments are made of A-Z a-z 0-9 . _ and -")

    @classmethod
    def parse(cls, text: str) -> "SpiffeId":
        """The ID that `text` spells; `str()` gives the same text back.

        Raises:
            InvalidInput: it is none (no query, port, fragment, user, empty or relative segment is allowed).
        """
        if not (match := _SPIFFE.fullmatch(text)):
            raise InvalidInput("a SPIFFE ID has the form spiffe://<trust domain>/<path>")
        return cls(trust_domain=match[1], path=tuple(match[2].split("/")[1:]))

    def __str__(self) -> str:
        return "/".join((f"spiffe://{self.trust_domain}", *self.path))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SandboxIdentity:
    """Which supervisor this is: its sandbox, and the UID of its Pod (the key of the ledger)."""

    namespace: str
    sandbox: str
    pod_uid: str

    def __post_init__(self) -> None:
        _sandbox_path(self.namespace, self.sandbox)
        if not _POD_UID.fullmatch(self.pod_uid):
            raise InvalidInput(f"a Pod UID is 1 to {MAX_POD_UID} letters, digits and -")


def supervisor_id(trust_domain: str, *, namespace: str, sandbox: str) -> SpiffeId:
    """The ID of the supervisor of one sandbox.

    Raises:
        InvalidInput: a name is not a DNS name.
    """
    return SpiffeId(trust_domain=trust_domain, path=_sandbox_path(namespace, sandbox))


def operator_id(trust_domain: str, namespace: str) -> SpiffeId:
    """The ID of the operator that runs in `namespace`.

    Raises:
        InvalidInput: a name is not a DNS name.
    """
    return SpiffeId(trust_domain=trust_domain, path=("ns", _namespace(namespace), "operator"))


def operator_server_name(trust_domain: str) -> str:
    """The DNS name in the operator's certificate, for `ssl_target_name_override`.

    Python gRPC cannot verify a server's SPIFFE ID; this name, which only `Authority.issue_operator` puts into a
    certificate, stands for it.
    """
    return f"{OPERATOR_LABEL}.{trust_domain}"


def spiffe_id_of(certificate: x509.Certificate) -> SpiffeId:
    """The SPIFFE ID that `certificate` carries.

    Raises:
        Untrusted: not exactly one URI name, or it is no SPIFFE ID.
    """
    uris = _uri_names(certificate)
    if len(uris) != 1:
        raise Untrusted(f"the certificate carries {len(uris)} URI names, where exactly one SPIFFE ID is needed")
    try:
        return SpiffeId.parse(uris[0])
    except InvalidInput as error:
        raise Untrusted(f"the certificate's URI name is not a SPIFFE ID: {error}") from error


def sandbox_identity(certificate_pem: bytes, *, trust_domain: str) -> SandboxIdentity:
    """The supervisor that `certificate_pem` (gRPC's `x509_pem_cert`, already verified by TLS) names.

    Raises:
        Untrusted: it names another trust domain, no sandbox (the operator's, a server's), or no Pod UID.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise Untrusted("the peer's certificate cannot be read") from error
    spiffe_id = spiffe_id_of(certificate)
    if spiffe_id.trust_domain != trust_domain:
        raise Untrusted(f"the certificate is of trust domain {spiffe_id.trust_domain}, not {trust_domain}")
    match spiffe_id.path:
        case ("ns", namespace, "sandbox", sandbox):
            return _checked_identity(namespace, sandbox, pod_uid=_serial_number(certificate))
        case _:
            raise Untrusted(f"{spiffe_id} is not a sandbox")


def is_label(text: str) -> bool:
    """Whether `text` is an RFC 1123 label: a namespace's name."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether `text` is an RFC 1123 subdomain: most objects' names, host names."""
    return len(text) <= MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def _sandbox_path(namespace: str, sandbox: str) -> tuple[str, ...]:
    if not is_subdomain(sandbox):
        raise InvalidInput("a sandbox's name must be a lower-case DNS name")
    return ("ns", _namespace(namespace), "sandbox", sandbox)


def _namespace(namespace: str) -> str:
    if not is_label(namespace):
        raise InvalidInput("a namespace must be a lower-case DNS label of at most 63 characters")
    return namespace


def _checked_identity(namespace: str, sandbox: str, *, pod_uid: str) -> SandboxIdentity:
    try:
        return SandboxIdentity(namespace=namespace, sandbox=sandbox, pod_uid=pod_uid)
    except InvalidInput as error:
        raise Untrusted(f"the certificate names no sandbox: {error}") from error


def _uri_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise Untrusted("the certificate's extensions cannot be read") from error
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _serial_number(certificate: x509.Certificate) -> str:
    found = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)]
    if len(found) != 1:
        raise Untrusted("the certificate's subject holds no single serialNumber (the Pod's UID)")
    return found[0]
