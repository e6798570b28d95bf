"""A policy's revision: its last spec that compiled and validated. PURE.

What last-known-good means: persisted, immutable, content-addressed. A bad edit leaves a policy on its revision;
generations are composed from revisions only.
"""

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from supervisor_middleware.model.canonical import JsonObject, JsonValue, ParsedJson, canonical, digest
from supervisor_middleware.model.durations import format_duration, parse_deadline
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.limits import MAX_OBJECT_BYTES
from supervisor_middleware.model.selectors import Operator, Requirement, Selector
from supervisor_middleware.model.struct_size import stored_config
from supervisor_middleware.model.violation import Subject

SCHEMA_VERSION: Final = 1
BASELINE_KIND: Final = "ClusterSandboxPolicy"


class Position(StrEnum):
    """Where a baseline's stages stand: before those of tenants, or after."""

    FIRST = "First"
    LAST = "Last"


class Unresolved(StrEnum):
    """Why an entry cannot run. It stays as a stage all the same: nothing a user declared vanishes silently."""

    NEVER_ACCEPTED = "NeverAccepted"
    CONFLICTED = "Conflicted"
    REGISTRATION_MISSING = "RegistrationMissing"
    UNSELECTED = "Unselected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One middleware config: `include` and `exclude` are patterns as written, known to be valid."""

    key: str
    label: str = ""
    binding: str
    order: int = 0
    config: JsonObject = field(default_factory=dict, repr=False)
    on_error: OnError = OnError.FAIL_CLOSED
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    verdict: str = ""
    """Digest of the verdict key under which the service accepted `config`; empty for one never asked."""
    unresolved: Unresolved | None = None

    def to_json(self) -> JsonObject:
        """The canonical form."""
        return {
            "key": self.key,
            "label": self.label,
            "binding": self.binding,
            "order": self.order,
            "config": self.config,
            "onError": self.on_error.value,
            "include": list(self.include),
            "exclude": list(self.exclude),
            "verdict": self.verdict,
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            key=str(value["key"]),
            label=str(value["label"]),
            binding=str(value["binding"]),
            order=int(value["order"]),
            config=stored_config(value["config"]),
            on_error=OnError(str(value["onError"])),
            include=tuple(map(str, value["include"])),
            exclude=tuple(map(str, value["exclude"])),
            verdict=str(value["verdict"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A `tls: skip` endpoint: `host` is a pattern nobody can look into, `path` is where it stands."""

    path: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A policy as accepted. `generation` is the object's `metadata.generation` it was compiled from.

    `selector` is of sandboxes by their labels, a baseline's of namespaces by theirs; `position` is a baseline's.
    """

    policy: Subject
    uid: str
    generation: int
    created_at: datetime
    selector: Selector
    entries: tuple[Entry, ...]
    activation_deadline: timedelta | None = None
    position: Position = Position.FIRST
    skips: tuple[Skip, ...] = ()
    _measured: tuple[str, int] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_baseline(self) -> bool:
        """Whether it is the platform's, which no tenant can block or weaken."""
        return self.policy.kind == BASELINE_KIND

    def content(self) -> bytes:
        """Canonical JSON of what the policy says: equal specs give equal bytes, whatever their generation."""
        deadline = self.activation_deadline
        content: dict[str, JsonValue] = {
            "schemaVersion": SCHEMA_VERSION,
            "selector": [
                {"key": r.key, "operator": r.operator.value, "values": list(r.values)}
                for r in self.selector.requirements
            ],
            "entries": [e.to_json() for e in self.entries],
            "activationDeadline": None if deadline is None else format_duration(deadline),
        }
        # Only where they say something: a policy without them keeps the digest it always had.
        if self.is_baseline:
            content["position"] = self.position.value
        if self.skips:
            content["skips"] = [{"path": s.path, "host": s.host} for s in self.skips]
        return canonical(content)

    @property
    def digest(self) -> str:
        """SHA-256 of `content`."""
        return self._measure()[0]

    @property
    def size(self) -> int:
        """Bytes of `content`."""
        return self._measure()[1]

    @property
    def verdicts(self) -> frozenset[str]:
        """Digests of the verdicts it stands on: what it holds already is not asked again, whatever a service does."""
        return frozenset(e.verdict for e in self.entries)

    def as_unresolved(self, why: Unresolved) -> Self:
        """The same policy with no entry that can run."""
        return replace(self, entries=tuple(replace(e, unresolved=why) for e in self.entries))

    def _measure(self) -> tuple[str, int]:
        # Encoding is dear and everybody asks: once a value. `replace` makes another one, which is measured anew.
        if self._measured is None:
            content = self.content()
            object.__setattr__(self, "_measured", (digest(content), len(content)))
        return self._measured or ("", 0)


def pack(content: bytes) -> str:
    """`content` as `PolicyRevision.spec.content`: zlib, then base64."""
    return base64.b64encode(zlib.compress(content, level=9)).decode("ascii")


def unpack(text: str, *, expected_digest: str) -> bytes:
    """Undo `pack`.

    Raises:
        ValueError: it is not what `pack` makes, is larger than any revision, or has another digest.
    """
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(base64.b64decode(text, validate=True), MAX_OBJECT_BYTES)
    except zlib.error:
        raise ValueError("the content is not zlib data") from None
    if decompressor.unconsumed_tail or digest(content) != expected_digest:
        raise ValueError("the content does not have the digest beside it")
    return content


def revision_from_content(
    content: ParsedJson,
    *,
    policy: Subject,
    uid: str,
    generation: int,
    created_at: datetime,
    entry: Callable[[ParsedJson], Entry] = Entry.from_json,
) -> Revision:
    """A revision out of its parsed content and the identity kept beside it; `entry` may know entries already.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: it is something else, or of an unknown schema.
    """
    if content["schemaVersion"] != SCHEMA_VERSION:
        raise ValueError("the content has an unknown schemaVersion")
    deadline = content["activationDeadline"]
    return Revision(
        policy=policy,
        uid=uid,
        generation=generation,
        created_at=created_at,
        selector=Selector(
            requirements=tuple(
                Requirement(key=r["key"], operator=Operator(r["operator"]), values=tuple(r["values"]))
                for r in content["selector"]
            )
        ),
        entries=tuple(map(entry, content["entries"])),
        activation_deadline=None if deadline is None else parse_deadline(str(deadline)),
        position=Position(content.get("position", Position.FIRST)),
        skips=tuple(Skip(path=str(s["path"]), host=str(s["host"])) for s in content.get("skips", ())),
    )
