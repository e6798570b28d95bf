"""The head of one HTTP request, out of what Envoy hands over. PURE; knows no protobuf.

Owns three readings that security rests on: which host the request is for, which bytes its headers are, and how its
body is framed. A reading that is in doubt is never resolved in the request's favour.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.evaluation import Header, Target
from supervisor_middleware.model.hosts import DEFAULT_PORTS, normalize_host
from supervisor_middleware.supervisor.exchange import Body, Unread, Whole
from supervisor_middleware.supervisor.headers import nominated_by

_MAX_PORT: Final = 65535
# IPv4 in IPv6's clothes: compatible, mapped, translated (RFC 2765), NAT64 (RFC 6052). `::1` is itself.
_IPV4_IN_IPV6: Final = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
_IPV6_LOOPBACK: Final = IPv6Address("::1")


class UnmatchableHost(InvalidInput):
    """The authority names no host that a selector could match, so no chain can be shown not to apply."""


class Framing(Enum):
    """How the body comes, which decides whether and how it can be inspected."""

    NONE = auto()
    """There is none."""
    DECLARED = auto()
    """A Content-Length is given, and the HTTP codec holds the sender to it."""
    UNDECLARED = auto()
    """Chunked: the length is known at the end only."""
    HANDSHAKE = auto()
    """An upgrade request without a body; what follows are frames, out of scope (RFC 0009 "Scope")."""
    OPAQUE = auto()
    """CONNECT, or an upgrade that carries a body: bytes that are no HTTP message to inspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A request before its body. `headers` has all lines but the pseudo ones, in order, duplicates kept."""

    target: Target
    headers: tuple[Header, ...] = field(repr=False)
    framing: Framing
    content_length: int = 0


def parse_head(lines: Iterable[tuple[str, bytes]], *, end_of_stream: bool) -> RequestHead:
    """Read the header lines of one request.

    Raises:
        UnmatchableHost: the authority is missing, doubled, no valid host, or an address that stands for another one,
            which a selector knows by its own name; the caller refuses the request.
    """
    pseudo: dict[str, str] = {}
    headers: list[Header] = []
    for name, raw in lines:
        # Latin-1 maps each byte to one character and back, so what is not touched stays as it was, byte for byte.
        value = raw.decode("latin-1")
        if not name.startswith(":"):
            headers.append(Header(name.lower(), value.strip(" \t")))
        elif pseudo.setdefault(name, value) != value:
            raise UnmatchableHost(f"the request has two values of {name}")
    framing, length = _framing(pseudo.get(":method", ""), headers, end_of_stream=end_of_stream)
    return RequestHead(target=_target(pseudo), headers=tuple(headers), framing=framing, content_length=length)


def known_body(head: RequestHead, *, cap: int) -> Body | None:
    """The body as far as the head tells, for a chain that takes at most `cap`; None where it must be read."""
    if head.framing in {Framing.NONE, Framing.HANDSHAKE}:
        return Whole(b"")
    if cap == 0 or head.content_length > cap:
        return Unread(head.content_length)
    return None


def encode_value(value: str) -> bytes:
    """A header value as bytes: the reverse of `parse_head`, and UTF-8 for text no request can have brought."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()


def _target(pseudo: dict[str, str]) -> Target:
    authority = pseudo.get(":authority", "")
    scheme = pseudo.get(":scheme", "").lower() or "http"
    try:
        host = normalize_host(authority)
    except ValueError as error:
        raise UnmatchableHost("the request's authority is not a valid host") from error
    if _stands_for_another(host):
        raise UnmatchableHost("the request's authority is an address that stands for another")
    given = _port(authority)
    port = DEFAULT_PORTS.get(scheme, 80) if given is None else given
    if not 0 < port <= _MAX_PORT:
        raise UnmatchableHost("the request's authority has no valid port")
    path, _, query = pseudo.get(":path", "").partition("?")
    return Target(
        scheme=scheme,
        host=host,
        port=port,
        method=pseudo.get(":method", ""),
        path=path,
        query=query,
    )


def _stands_for_another(host: str) -> bool:
    """Whether connecting there reaches what another literal names: an IPv4 address, or this machine (0.0.0.0)."""
    if host.startswith("["):
        address = IPv6Address(host[1:-1])
        return address != _IPV6_LOOPBACK and any(address in network for network in _IPV4_IN_IPV6)
    return host == str(IPv4Address(0))


def _port(authority: str) -> int | None:
    # The authority is valid: what follows the host (or the bracket of an IPv6 literal) is nothing or a port.
    _, colon, port = authority.strip().rpartition("]")[2].partition(":")
    return int(port) if colon and port else None


def _framing(method: str, headers: list[Header], *, end_of_stream: bool) -> tuple[Framing, int]:
    if method == "CONNECT":
        return Framing.OPAQUE, 0
    if end_of_stream:
        return Framing.NONE, 0
    is_chunked = any(h.name == "transfer-encoding" for h in headers)
    lengths = {h.value for h in headers if h.name == "content-length"}
    if _is_upgrade(headers):
        # A body beside an upgrade would pass unseen: the upstream may ignore the upgrade and read the body.
        has_body = is_chunked or bool(lengths - {"0"})
        return Framing.OPAQUE if has_body or method != "GET" else Framing.HANDSHAKE, 0
    if is_chunked or len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,18}", length := lengths.pop()):
        return Framing.UNDECLARED, 0
    return Framing.DECLARED, int(length)


def _is_upgrade(headers: list[Header]) -> bool:
    return "upgrade" in nominated_by(headers) and any(h.name == "upgrade" and h.value for h in headers)
