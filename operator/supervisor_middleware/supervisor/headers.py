"""Which request headers a stage may see, and which it may change. PURE.

Owns RFC 0009 "The middleware contract" on headers: credential-bearing, routing, framing, hop-by-hop and
Connection-nominated lines are neither shown nor changed; writes go to one namespace; a stage's mutations are valid
together or not at all. Order and duplicates of lines survive. Called by the chain, and by the proxy edge to apply
what the chain returns. Never decides what an invalid mutation means for the request.
"""

import re
from collections.abc import Iterable
from typing import Final, assert_never

from supervisor_middleware.model.evaluation import (
    ExistingHeader,
    FailureCode,
    Header,
    HeaderMutation,
    RemoveHeader,
    WriteHeader,
)
from supervisor_middleware.model.limits import MAX_MUTATION_DATA_BYTES, MAX_MUTATIONS, MAX_MUTATIONS_BYTES
from supervisor_middleware.wire.sizes import encoded_mutations_size

WRITE_NAMESPACE: Final = "x-openshell-middleware-"
PROTECTED_NAMES: Final = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# ":" begins HTTP/2's pseudo-headers: they route, and what they say is in the target.
PROTECTED_PREFIXES: Final = (":", "x-amz-", "x-openshell-credential")

# RFC 9110 section 5.6.2: a field name is a token.
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# TAB, 0x20 to 0x7E and everything from 0x80 on; a lone surrogate has no bytes at all.
_SAFE_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\ud7ff\ue000-\U0010ffff]*")


def nominated_by(headers: Iterable[Header]) -> frozenset[str]:
    """The names that the request's own `Connection` lines declare hop-by-hop, lower-case."""
    values = (h.value for h in headers if h.name.lower() == "connection")
    return frozenset(name.strip().lower() for value in values for name in value.split(",")) - {""}


def visible(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """The lines a stage may see, in the order they came."""
    hidden = nominated_by(headers)
    return tuple(h for h in headers if not is_protected(h.name) and h.name.lower() not in hidden)


def is_protected(name: str) -> bool:
    """Whether this header carries credentials, routes, frames or belongs to one hop."""
    name = name.lower()
    return name in PROTECTED_NAMES or name.startswith(PROTECTED_PREFIXES)


def validate(
    mutations: tuple[HeaderMutation, ...], *, nominated: frozenset[str]
) -> tuple[HeaderMutation, ...] | FailureCode:
    """All of a stage's mutations, names lower-cased and values trimmed; or why none of them applies.

    RFC 0009: "OpenShell validates and applies a stage's mutations atomically."
    """
    if len(mutations) > MAX_MUTATIONS:
        return FailureCode.MUTATION_COUNT_OVER_CAPACITY
    if encoded_mutations_size(mutations) > MAX_MUTATIONS_BYTES:
        return FailureCode.MUTATION_BYTES_OVER_CAPACITY
    data = 0
    for mutation in mutations:
        code = _invalid(mutation, nominated)
        if code is not None:
            return code
        data += _data_bytes(mutation)
        if data > MAX_MUTATION_DATA_BYTES:
            return FailureCode.MUTATION_BYTES_OVER_CAPACITY
    return tuple(_normalized(m) for m in mutations)


def apply(mutations: tuple[HeaderMutation, ...], headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """`headers` after these valid mutations, in the order given.

    RFC 0009: append, overwrite and skip all write when the name is absent. A removal takes every line of its name;
    removing an absent one changes nothing.
    """
    for mutation in mutations:
        headers = _apply_one(mutation, headers)
    return headers


def _apply_one(mutation: HeaderMutation, headers: tuple[Header, ...]) -> tuple[Header, ...]:
    match mutation:
        case RemoveHeader():
            return _without(mutation.name, headers)
        case WriteHeader():
            written = Header(mutation.name, mutation.value)
            return _write(written, headers, on_existing=mutation.on_existing)
        case _:
            assert_never(mutation)


def _write(written: Header, headers: tuple[Header, ...], *, on_existing: ExistingHeader) -> tuple[Header, ...]:
    match on_existing:
        case ExistingHeader.APPEND:
            return (*headers, written)
        case ExistingHeader.OVERWRITE:
            return (*_without(written.name, headers), written)
        case ExistingHeader.SKIP:
            return headers if any(h.name.lower() == written.name for h in headers) else (*headers, written)
        case _:
            assert_never(on_existing)


def _without(name: str, headers: tuple[Header, ...]) -> tuple[Header, ...]:
    return tuple(h for h in headers if h.name.lower() != name)


def _invalid(mutation: HeaderMutation, nominated: frozenset[str]) -> FailureCode | None:
    # The order of these checks decides which code an author sees, and is the contract's.
    name = mutation.name.lower()
    if not _TOKEN.fullmatch(name):
        return FailureCode.MUTATION_INVALID_NAME
    if is_protected(name):
        return FailureCode.MUTATION_PROTECTED_HEADER
    if name in nominated:
        return FailureCode.MUTATION_HOP_BY_HOP
    if isinstance(mutation, RemoveHeader):
        return None
    if not name.startswith(WRITE_NAMESPACE):
        return FailureCode.MUTATION_NAMESPACE
    return None if _SAFE_VALUE.fullmatch(mutation.value) else FailureCode.MUTATION_UNSAFE_VALUE


def _data_bytes(mutation: HeaderMutation) -> int:
    value = mutation.value if isinstance(mutation, WriteHeader) else ""
    return len(mutation.name) + len(value.encode())


def _normalized(mutation: HeaderMutation) -> HeaderMutation:
    match mutation:
        case RemoveHeader():
            return RemoveHeader(name=mutation.name.lower())
        case WriteHeader():
            # RFC 9110 section 5.5: white space around a value is not part of it.
            value = mutation.value.strip(" \t")
            return WriteHeader(name=mutation.name.lower(), value=value, on_existing=mutation.on_existing)
        case _:
            assert_never(mutation)
