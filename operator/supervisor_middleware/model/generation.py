"""What one supervisor runs: complete, immutable, content-addressed. PURE.

A generation is a pure function of the accepted revisions that select a sandbox, the accepted registrations and
the sandbox's labels. It carries *only* the registrations its chain needs, built-ins never (RFC 0009 "Registration
and delivery"). It names no sandbox, so sandboxes with equal generations share the bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Self

from supervisor_middleware.model.canonical import JsonObject, ParsedJson, canonical, digest, parse
from supervisor_middleware.model.durations import format_duration, parse_deadline, parse_timeout
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.hosts import HostSelector, parse_patterns
from supervisor_middleware.model.limits import MAX_STAGES
from supervisor_middleware.model.manifest import Binding, Dialect
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.model.struct_size import stored_config

SCHEMA_VERSION: Final = 2
"""Version 1 had one `activationDeadline` for all services. It is still read: it may be on a supervisor's disk."""
MAX_SHARED_STAGES: Final = 4
"""For what did not fit: in each tier one that closes and one whose bypass is audited. Nobody is asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the chain, in its final place.

    `policy` is `namespace/name` for audit. `service` names the registration that serves `binding`, and is None for a
    built-in. `unresolved` set: the stage cannot run and its hosts follow `on_error`.
    """

    key: str
    label: str
    policy: str
    binding: str
    service: str | None
    config: JsonObject = field(repr=False)
    on_error: OnError
    selector: HostSelector
    max_body_bytes: int
    timeout: timedelta
    unresolved: Unresolved | None = None

    @property
    def is_platforms(self) -> bool:
        """Whether the platform laid it, by a baseline or a setting: a tenant's policy has a namespace in its name."""
        return "/" not in self.policy

    def to_json(self) -> JsonObject:
        """The canonical form."""
        return {
            "key": self.key,
            "label": self.label,
            "policy": self.policy,
            "binding": self.binding,
            "service": self.service,
            "config": self.config,
            "onError": self.on_error.value,
            "include": [str(p) for p in self.selector.include],
            "exclude": [str(p) for p in self.selector.exclude],
            "maxBodyBytes": self.max_body_bytes,
            "timeout": format_duration(self.timeout),
            "unresolved": None if self.unresolved is None else self.unresolved.value,
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote."""
        service, unresolved = value["service"], value["unresolved"]
        return cls(
            key=str(value["key"]),
            label=str(value["label"]),
            policy=str(value["policy"]),
            binding=str(value["binding"]),
            service=None if service is None else str(service),
            config=stored_config(value["config"]),
            on_error=OnError(str(value["onError"])),
            selector=HostSelector(
                include=parse_patterns(value["include"]),
                exclude=parse_patterns(value["exclude"]),
            ),
            max_body_bytes=int(value["maxBodyBytes"]),
            timeout=parse_timeout(str(value["timeout"])),
            unresolved=None if unresolved is None else Unresolved(str(unresolved)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A registration as a supervisor needs it: where it is, and what the chain needs it to be capable of.

    `needs` are capabilities, not an identical manifest: service versions may roll behind one address. A binding's
    `max_body_bytes` here is the limit needed. `activation_deadline` is how long a supervisor may wait for it while it
    is new; None: without end.
    """

    name: str
    connection: Connection
    dialect: Dialect
    needs: tuple[Binding, ...]
    activation_deadline: timedelta | None = None

    def to_json(self) -> JsonObject:
        """The canonical form."""
        deadline = self.activation_deadline
        return {
            "name": self.name,
            "connection": self.connection.to_json(),
            "dialect": self.dialect.value,
            "needs": [b.to_json() for b in self.needs],
            "activationDeadline": None if deadline is None else format_duration(deadline),
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote."""
        deadline = value["activationDeadline"]
        return cls(
            name=str(value["name"]),
            connection=Connection.from_json(value["connection"]),
            dialect=Dialect(str(value["dialect"])),
            needs=tuple(Binding.from_json(b) for b in value["needs"]),
            activation_deadline=None if deadline is None else parse_deadline(deadline),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Stages in running order and the services they need, sorted by name."""

    stages: tuple[Stage, ...] = ()
    services: tuple[Service, ...] = ()

    def payload(self) -> bytes:
        """RFC 8785 canonical JSON: the bytes that are digested, sent and stored."""
        return canonical(
            {
                "schemaVersion": SCHEMA_VERSION,
                "stages": [s.to_json() for s in self.stages],
                "services": [s.to_json() for s in self.services],
            }
        )

    def chain_for(self, host: str) -> tuple[Stage, ...]:
        """The stages that apply to an admitted host (as returned by `normalize_host`), in running order."""
        return tuple(s for s in self.stages if s.selector.selects(host))

    def service(self, name: str) -> Service | None:
        """The service with this registration name."""
        return next((s for s in self.services if s.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rank:
    """Where an offer stands among all offers: epoch first, then sequence."""

    epoch: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A generation serialized once: `payload` is sent to every sandbox that runs it."""

    generation: Generation
    payload: bytes = field(repr=False)
    digest: str


def is_too_long(stages: tuple[Stage, ...]) -> bool:
    """Whether a chain has more stages that can run than RFC 0009 "Policy integration" allows."""
    return sum(s.unresolved is None for s in stages) > MAX_STAGES


def seal(generation: Generation) -> Sealed:
    """Serialize once and name by content."""
    payload = generation.payload()
    return Sealed(generation=generation, payload=payload, digest=digest(payload))


def unseal(payload: bytes, *, expected_digest: str) -> Sealed:
    """A generation out of bytes that came over a wire or from a disk.

    Raises:
        ValueError: the digest differs, or the bytes are no generation this version can run whole.
    """
    if digest(payload) != expected_digest:
        raise ValueError("the payload does not have the digest beside it")
    try:
        value = parse(payload)
        generation = Generation(
            stages=tuple(Stage.from_json(s) for s in value["stages"]),
            services=tuple(Service.from_json(s) for s in _services(value)),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("the payload is not a generation") from error
    if is_too_long(generation.stages) or len(generation.stages) > MAX_STAGES + MAX_SHARED_STAGES:
        raise ValueError(f"the generation has more than {MAX_STAGES} stages and those for what did not fit")
    if {s.service for s in generation.stages} - {None} - {s.name for s in generation.services}:
        raise ValueError("the generation has a stage whose service it does not say how to reach")
    return Sealed(generation=generation, payload=payload, digest=expected_digest)


def _services(value: ParsedJson) -> Iterator[ParsedJson]:
    match value["schemaVersion"]:
        case 1:
            yield from ({**s, "activationDeadline": value["activationDeadline"]} for s in value["services"])
        case 2:
            yield from value["services"]
        case _:
            raise ValueError("the generation has an unknown schemaVersion")
