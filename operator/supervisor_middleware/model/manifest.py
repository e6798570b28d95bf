"""What a middleware service says of itself, whichever dialect it speaks. PURE.

RFC 0009 "The middleware contract": `Describe` reports a diagnostic name, an implementation version and
service-owned bindings. A service of the released dialect has no binding IDs; it gets one binding whose ID is its
registration's name, so that nothing past `wire/codec.py` knows the difference.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Self

from supervisor_middleware.model.canonical import MAX_EXACT_INTEGER, JsonObject, ParsedJson, canonical, digest
from supervisor_middleware.model.durations import parse_timeout
from supervisor_middleware.model.identifiers import status_text


class Dialect(StrEnum):
    """Which text of the contract a service speaks (contract: two dialects, one package)."""

    RFC0009 = "rfc0009"
    RELEASED = "released"


class Operation(StrEnum):
    """Typed method of a hook. Anything else in a manifest is reported as unsupported."""

    HTTP_REQUEST = "HTTP_REQUEST"
    WEBSOCKET_MESSAGE = "WEBSOCKET_MESSAGE"
    UNSUPPORTED = "UNSUPPORTED"


class Phase(StrEnum):
    """Typed phase of a hook."""

    PRE_CREDENTIALS = "PRE_CREDENTIALS"
    PRE_RETURN = "PRE_RETURN"
    UNSUPPORTED = "UNSUPPORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One hook a service offers.

    `timeout` is as advertised, unparsed: a manifest is untrusted and judged by the compiler; empty means none.
    """

    id: str
    operation: Operation
    phase: Phase
    max_body_bytes: int
    timeout: str = ""

    def to_json(self) -> JsonObject:
        """The form kept in status and in generations."""
        return {
            "id": self.id,
            "operation": self.operation.value,
            "phase": self.phase.value,
            "maxBodyBytes": self.max_body_bytes,
            "timeout": self.timeout,
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            id=str(value["id"]),
            operation=Operation(str(value["operation"])),
            phase=Phase(str(value["phase"])),
            max_body_bytes=int(value["maxBodyBytes"]),
            timeout=str(value.get("timeout", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A service's self-description. `name` and `service_version` are informational, untrusted text."""

    name: str
    service_version: str
    dialect: Dialect
    bindings: tuple[Binding, ...]

    @property
    def digest(self) -> str:
        """Of what policies can depend on: the dialect and the bindings, never name or version."""
        ordered = sorted(self.bindings, key=lambda b: (b.id, b.operation, b.phase, b.max_body_bytes, b.timeout))
        # A manifest that is not accepted has a digest too, and its limit is any 64-bit number.
        capped = (replace(b, max_body_bytes=min(b.max_body_bytes, MAX_EXACT_INTEGER)) for b in ordered)
        return digest(canonical({"dialect": self.dialect.value, "bindings": [b.to_json() for b in capped]}))

    def to_json(self) -> JsonObject:
        """The form kept in status, in recorded manifest files and on the CLI: texts are plain there, or `invalid`."""
        return {
            "name": _plain(self.name),
            "serviceVersion": _plain(self.service_version),
            "dialect": self.dialect.value,
            "bindings": [b.to_json() for b in self.bindings],
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        dialect = Dialect(str(value["dialect"]))  # first: of anything but an object this raises TypeError
        return cls(
            name=str(value.get("name", "")),
            service_version=str(value.get("serviceVersion", "")),
            dialect=dialect,
            bindings=tuple(Binding.from_json(b) for b in value["bindings"]),
        )


def effective_timeout(*, registration: timedelta, binding: Binding, dialect: Dialect) -> timedelta:
    """The deadline of one call: RFC 0009 lets a binding override, the released dialect only shorten."""
    if not binding.timeout:
        return registration
    advertised = parse_timeout(binding.timeout)
    return advertised if dialect is Dialect.RFC0009 else min(advertised, registration)


def _plain(text: str) -> str:
    return status_text(text) if text else ""
