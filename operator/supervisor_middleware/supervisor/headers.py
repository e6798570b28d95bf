"""Which request headers a stage may see, and which it may change. PURE.

Owns RFC 0009 "The middleware contract" on headers: credential-bearing, routing, framing, hop-by-hop and
Connection-nominated lines are neither shown nor changed; writes go to one namespace; a stage's mutations are valid
together or not at all. Order and duplicates of lines survive. Called by the chain, and by the proxy edge to apply
what the chain returns. Never decides what an invalid mutation means for the request.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final, assert_never

from supervisor_middleware.model.evaluation import (
    ExistingHeader,
    FailureCode,
    Header,
    HeaderMutation,
    RemoveHeader,
    WriteHeader,
)
from supervisor_middleware.wire.result_limits import mutation_breaches

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
    breach = next(mutation_breaches(mutations, untouchable=partial(_untouchable, nominated=nominated)), None)
    if breach is not None:
        return breach
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


def _untouchable(name: str, *, nominated: frozenset[str]) -> FailureCode | None:
    if is_protected(name):
        return FailureCode.MUTATION_PROTECTED_HEADER
    return FailureCode.MUTATION_HOP_BY_HOP if name in nominated else None


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
