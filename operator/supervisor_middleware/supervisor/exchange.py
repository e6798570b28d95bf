"""What goes into a chain and what comes out. PURE values shared by the fold and the proxy edge.

RFC 0009 "Operation phases and placement": the supervisor hands over one parsed, admitted request and forwards only
what the chain returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from supervisor_middleware.audit.events import Event
from supervisor_middleware.model.evaluation import (
    FailureCode,
    Header,
    HeaderMutation,
    RequestContext,
    Target,
)


@dataclass(frozen=True, slots=True)
class Whole:
    """The complete body; empty for a request without one."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unread:
    """A declared Content-Length over the chain's cap; nothing was consumed, so it can still stream past."""

    declared: int


@dataclass(frozen=True, slots=True)
class Overflowed:
    """A body that crossed the chain's cap after bytes were consumed: it cannot be resumed safely."""


Body: TypeAlias = Whole | Unread | Overflowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One admitted request. `headers` are all of them; the fold shows a stage the safe subset only."""

    context: RequestContext
    target: Target
    headers: tuple[Header, ...] = field(repr=False)
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Forward: apply `mutations` in order; `body` None means the original bytes.

    `metadata` is namespaced by the config's map key.
    """

    body: bytes | None = field(default=None, repr=False)
    mutations: tuple[HeaderMutation, ...] = ()
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    events: tuple[Event, ...] = ()


class Cause(StrEnum):
    """Why a request was refused; the `error` of the denied response."""

    DENIED = "middleware_denied"
    FAILED = "middleware_failed"
    UNCONFIGURED = "supervisor_not_configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """Refuse with a platform-owned answer. `key` is the config's map key, empty when no one stage is to blame.

    `metadata` is what the stages noted until then, as in `Allowed`: request-local, never part of an answer.
    """

    cause: Cause
    key: str = ""
    policy: str = ""
    code: FailureCode | None = None
    reason_code: str = ""
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    events: tuple[Event, ...] = ()


Outcome: TypeAlias = Allowed | Denied
