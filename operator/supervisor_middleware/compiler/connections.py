"""How a service is to be reached, out of a registration's spec: endpoint, transport, trust. PURE.

RFC 0009 "Registration and delivery": an endpoint is a routable service, encrypted unless somebody says otherwise.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from cryptography import x509

from supervisor_middleware.model.durations import parse_timeout
from supervisor_middleware.model.fields import ENDPOINT_RULE
from supervisor_middleware.model.hosts import DEFAULT_PORTS, normalize_host
from supervisor_middleware.model.registration import ClientAuthentication, Connection
from supervisor_middleware.model.settings import CompilerSettings, Loopback, TransportPhase
from supervisor_middleware.model.snapshot import BundleKey
from supervisor_middleware.model.violation import Reason

Problem: TypeAlias = tuple[str, Reason, str, str]
"""Path below `spec`, reason, message, hint."""

_LOCAL_NAMES: Final = frozenset(
    {"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback", "host.openshell.internal"}
)
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")


def connection_problems(
    spec: Mapping[str, Any], bundles: Mapping[BundleKey, str], settings: CompilerSettings
) -> Iterator[Problem]:
    """Everything that is wrong with how a service would be reached."""
    for reason, message, hint in _endpoint_problems(spec, settings):
        yield "grpcEndpoint", reason, message, hint
    tls = spec.get("tls") or {}
    if tls.get("caBundle") is not None and tls.get("caBundleRef") is not None:
        yield "tls", Reason.MALFORMED, "set caBundle or caBundleRef, not both", "remove one of them"
    if tls and spec.get("grpcEndpoint", "").startswith("http://"):
        yield "tls", Reason.MALFORMED, "has no meaning for an http:// endpoint", "use https://"
    yield from _bundle_problems(tls, bundles)


def connection_of(spec: Mapping[str, Any], bundles: Mapping[BundleKey, str]) -> Connection:
    """The connection a spec without problems means."""
    tls = spec.get("tls") or {}
    reference = tls.get("caBundleRef")
    url = urlsplit(spec["grpcEndpoint"])
    return Connection(
        endpoint=f"{url.scheme}://{normalize_host(url.netloc)}:{url.port or DEFAULT_PORTS[url.scheme]}",
        timeout=parse_timeout(spec.get("timeout", "500ms")),
        ca_bundle_pem=bundles[bundle_key(reference)] if reference else tls.get("caBundle") or "",
        server_name=tls.get("serverName") or "",
        client_authentication=ClientAuthentication(spec.get("clientAuthentication", "MutualTLS")),
    )


def bundle_key(reference: Mapping[str, Any]) -> BundleKey:
    """The bundle a `caBundleRef` means."""
    return BundleKey(
        str(reference.get("kind")),
        str(reference.get("namespace")),
        str(reference.get("name")),
        str(reference.get("key", "ca.crt")),
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
    if url.scheme == "http" and settings.transport_phase is TransportPhase.STABLE:
        yield (
            Reason.INSECURE_TRANSPORT,
            "http:// sends request content in the clear, which this platform no longer permits (transport phase 2)",
            "use https:// and remove allowInsecure",
        )
    elif url.scheme == "http" and not spec.get("allowInsecure"):
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
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    plain = address if isinstance(address, ipaddress.IPv4Address) else _embedded(address) or address
    return plain.is_loopback or plain.is_unspecified  # connecting to 0.0.0.0 reaches this machine too


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: mapped, 6to4, compatible (RFC 4291), NAT64 (RFC 6052)."""
    if address in _TRANSLATED or (int(address) >> 32 == 0 and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _bundle_problems(tls: Mapping[str, Any], bundles: Mapping[BundleKey, str]) -> Iterator[Problem]:
    if (pem := tls.get("caBundle")) is not None and not _is_bundle(pem):
        yield (
            "tls.caBundle",
            Reason.INVALID_CA_BUNDLE,
            "must hold PEM certificates and nothing else",
            "paste the certificates of the authority, never a key",
        )
    if (reference := tls.get("caBundleRef")) is not None:
        key = bundle_key(reference)
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
