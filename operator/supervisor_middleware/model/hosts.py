"""Host patterns: the small exact language of `endpoints.include` and `endpoints.exclude`. PURE.

RFC 0009 "Policy integration": case-insensitive; `*` matches exactly one DNS label, `**` one or more labels, and a
`*` inside a label any run of its characters (also none). Brace alternates are rejected; so are `?` and `[...]`,
ports, spaces and a trailing dot. IPv4 addresses are four labels; an IPv6 literal matches `*` and `**` only.

One host has one spelling here. Resolvers read `127.1`, `0x7f.1`, `2130706433` or `127.000.000.001` as an address that
a selector names in another way, so an authority that spells an address unlike everybody is none.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from supervisor_middleware.model.limits import MAX_HOST_LENGTH, MAX_LABEL_LENGTH

# For the CRD: coarse on purpose, since CEL and the webhook give the exact answer.
PATTERN_SCHEMA: Final = r"^[A-Za-z0-9*_-]+(\.[A-Za-z0-9*_-]+)*$"
PATTERN_RULE: Final = (
    "a host of DNS labels in which * stands for one label, ** for one or more, and a * inside a label for any of "
    "its characters; no braces, ? or [ ], ports, spaces or trailing dot (for example *.example.com)"
)
DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
"""By scheme, where an authority or an endpoint names none."""

_LABEL: Final = re.compile(r"[a-z0-9_*-]+", re.ASCII)
_ANY_DEPTH: Final = "**"
# The URL standard's "ends in a number": what is read as an IPv4 address by whoever looks for one.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A parsed pattern; `labels` are lower-case, left to right as written."""

    labels: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.labels)

    def matches(self, host: str) -> bool:
        """Whether `host` (as returned by `normalize_host`) is one of the pattern's hosts."""
        return _labels_match(self.labels, _host_labels(host))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSelector:
    """Any include matches and no exclude does: exclusion wins."""

    include: tuple[HostPattern, ...]
    exclude: tuple[HostPattern, ...] = ()

    def selects(self, host: str) -> bool:
        """Whether the selector covers `host` (as returned by `normalize_host`)."""
        return any(p.matches(host) for p in self.include) and not any(p.matches(host) for p in self.exclude)


def parse_pattern(text: str) -> HostPattern:
    """Parse one pattern.

    Raises:
        ValueError: it is not in the language; the message says which rule it breaks.
    """
    if len(text) > MAX_HOST_LENGTH:
        raise ValueError(f"is longer than {MAX_HOST_LENGTH} characters; must be {PATTERN_RULE}")
    if not text.isascii():
        raise ValueError("is not ASCII; write an internationalized name in its A-label form (xn--...)")
    if ":" in text or "/" in text:
        raise ValueError("is more than a host: write it without scheme, port or path (for example *.example.com)")
    labels = tuple(text.lower().split("."))
    for label in labels:
        _check_label(label)
    return HostPattern(labels)


def parse_patterns(texts: Iterable[str]) -> tuple[HostPattern, ...]:
    """Parse several patterns that are known to be valid (those of an accepted revision)."""
    return tuple(parse_pattern(text) for text in texts)


def normalize_host(authority: str) -> str:
    """The host of an HTTP authority, as patterns match it: no port, no trailing dot, lower-case.

    Raises:
        ValueError: the authority names no host that could be matched, so a caller must fail closed.
    """
    if not authority.isascii():  # before lower(), which turns a Kelvin sign into a plain k
        raise ValueError("not a valid host name")
    text = authority.strip().lower()
    if text.startswith("["):
        literal, bracket, rest = text.partition("]")
        if not bracket or not re.fullmatch(r"(:[0-9]{1,5})?", rest) or not re.fullmatch(r"\[[0-9a-f:.]+", literal):
            raise ValueError("not a valid IPv6 authority")
        _check_address(literal[1:], IPv6Address)
        return literal + bracket
    host, _, port = text.partition(":")
    host = host.removesuffix(".")
    if port and not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError("not a valid port")
    if len(host) > MAX_HOST_LENGTH or not all(re.fullmatch(r"[a-z0-9_-]{1,63}", label) for label in host.split(".")):
        raise ValueError("not a valid host name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        _check_address(host, IPv4Address)  # four decimal numbers, no leading zeros
    return host


def _check_address(text: str, kind: type[IPv4Address | IPv6Address]) -> None:
    try:
        kind(text)
    except ValueError as error:
        raise ValueError("not a valid IP address") from error


def _check_label(label: str) -> None:
    if not label:
        raise ValueError(f"has an empty label; must be {PATTERN_RULE}")
    if len(label) > MAX_LABEL_LENGTH:
        raise ValueError(f"has a label longer than {MAX_LABEL_LENGTH} characters; must be {PATTERN_RULE}")
    if not _LABEL.fullmatch(label):
        raise ValueError(f"has a character that no host name has; must be {PATTERN_RULE}")
    if _ANY_DEPTH in label and label != _ANY_DEPTH:
        raise ValueError("has ** beside other text; ** stands alone between dots")


def _host_labels(host: str) -> tuple[str, ...]:
    return (host,) if host.startswith("[") else tuple(host.split("."))


def _labels_match(pattern: tuple[str, ...], host: tuple[str, ...]) -> bool:
    # reachable[j]: the pattern so far matches the first j labels. Linear in both, so no pattern can be made slow.
    reachable = [True] + [False] * len(host)
    for label in pattern:
        if label == _ANY_DEPTH:
            following = [False] * (len(host) + 1)
            for j in range(1, len(host) + 1):
                following[j] = reachable[j - 1] or following[j - 1]
        else:
            following = [False] + [reachable[j] and _label_matches(label, host[j]) for j in range(len(host))]
        reachable = following
    return reachable[-1]


def _label_matches(pattern: str, label: str) -> bool:
    if pattern == "*":
        return True
    if "*" not in pattern or label.startswith("["):  # an IPv6 literal is no run of a label's characters
        return pattern == label
    head, *middle, tail = pattern.split("*")
    if len(label) < len(head) + len(tail) or not label.startswith(head) or not label.endswith(tail):
        return False
    position, end = len(head), len(label) - len(tail)
    for part in middle:
        found = label.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True
