"""What the API server holds, as our values. PURE: bodies in, `Stored`, `StoredRevision`, `Sandbox` out.

A body is dropped once it is converted: of its metadata only what somebody reads is kept (`managedFields` and the
last-applied annotation are several times the size of the rest). There may be many thousands of policies, so what they
were written as is kept as text, and what they have in common is kept once.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, TypeAlias, assert_never

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import JsonObject, ParsedJson, parse
from supervisor_middleware.model.compact import compact
from supervisor_middleware.model.revision import Entry, revision_from_content, unpack
from supervisor_middleware.model.sandbox import GROUP, NAMESPACE_LABEL, SANDBOX_LABEL, Sandbox
from supervisor_middleware.model.snapshot import POLICY_KINDS, Kind, Stored, StoredRevision
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.pki.spiffe import is_subdomain

_SHARED_CHARS: Final = 256
_SHARED_ENTRY_CHARS: Final = 2048
_NONE: Final[Mapping[str, str]] = {}
_LIVE_PHASES: Final = frozenset({"Pending", "Running"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A namespace as baselines select it."""

    name: str
    labels: Mapping[str, str]


Value: TypeAlias = Stored | StoredRevision | Sandbox | Namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIdentity:
    """Which object, and which state of it: `version` only ever grows while the object lives."""

    namespace: str
    name: str
    uid: str
    version: int

    @property
    def key(self) -> tuple[str, str]:
        """Where it is: at most one object at a time."""
        return self.namespace, self.name


def identity_of(body: ParsedJson) -> ObjectIdentity:
    """The identity in a body's metadata.

    Raises:
        InvalidInput: the body has no name or UID.
    """
    metadata = body.get("metadata") or {}
    name, uid = metadata.get("name"), metadata.get("uid")
    if not name or not uid:
        raise InvalidInput("an object without name or UID")
    return ObjectIdentity(
        namespace=sys.intern(metadata.get("namespace") or ""),
        name=sys.intern(name),
        uid=sys.intern(uid),
        version=version_of(metadata),
    )


def version_of(metadata: ParsedJson) -> int:
    """A resourceVersion as a number: they are comparable since Kubernetes 1.35 says so, and always were in etcd."""
    text = str(metadata.get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0


def convert(kind: Kind, body: ParsedJson) -> Value | None:
    """`body` as a value; None if it counts for nothing (a Pod that ended, or one whose label is no valid name).

    Raises:
        InvalidInput: it cannot be what it should be; says why, without any content.
    """
    try:
        match kind:
            case Kind.SANDBOX:
                return sandbox_from(body)
            case Kind.POLICY_REVISION:
                return revision_from(body)
            case Kind.SUPERVISOR_MIDDLEWARE | Kind.SANDBOX_POLICY | Kind.CLUSTER_SANDBOX_POLICY:
                return stored_from(kind, body)
            case Kind.NAMESPACE:
                return namespace_from(body)
            case _:
                assert_never(kind)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # The error's own text may quote the content.
        raise InvalidInput(f"it is not what the API server should hold ({type(error).__name__})") from None


def stored_from(kind: Kind, body: ParsedJson) -> Stored:
    """An object that somebody wrote; its spec stays as it was typed."""
    metadata = body["metadata"]
    spec, status = body.get("spec"), body.get("status")
    kept = compact if kind in POLICY_KINDS else _as_it_is
    ours = {k: str(v) for k, v in (metadata.get("annotations") or {}).items() if k.startswith(f"{GROUP}/")}
    return Stored(
        subject=_subject(kind.value, metadata.get("namespace"), metadata["name"]),
        uid=sys.intern(metadata["uid"]),
        generation=int(metadata.get("generation") or 0),
        created_at=_time(metadata.get("creationTimestamp")),
        resource_version=str(metadata.get("resourceVersion") or ""),
        spec=kept(spec) if isinstance(spec, dict) else {},
        status=kept(status) if isinstance(status, dict) else {},
        annotations=ours or _NONE,
    )


def revision_from(body: ParsedJson) -> StoredRevision:
    """A persisted revision, its content checked against its digest and its name against its policy.

    Raises:
        InvalidInput: it belongs to another policy.
        KeyError, TypeError, ValueError, AttributeError: it is not what we write.
    """
    spec, name = body["spec"], body["metadata"]["name"]
    policy, number = spec["policy"], int(spec["revision"])
    revision = revision_from_content(
        _shared(parse(unpack(spec["content"], expected_digest=spec["digest"]))),
        policy=_subject(str(policy["kind"]), str(policy["namespace"]), str(policy["name"])),
        uid=sys.intern(str(policy["uid"])),
        generation=int(policy["generation"]),
        created_at=_time(policy["createdAt"]),
        entry=_entry,
    )
    stored = StoredRevision(number=number, epoch=int(spec["epoch"]), digest=str(spec["digest"]), revision=revision)
    if name != stored.name:
        raise InvalidInput("its name is not made of its policy's UID and its number")
    return stored


def namespace_from(body: ParsedJson) -> Namespace:
    """A namespace and its labels."""
    metadata = body["metadata"]
    return Namespace(
        name=metadata["name"], labels={**(metadata.get("labels") or {}), NAMESPACE_LABEL: metadata["name"]}
    )


def sandbox_from(body: ParsedJson) -> Sandbox | None:
    """The sandbox a Pod is; None unless it is Pending or Running, not being deleted, and validly labelled."""
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    name = labels.get(SANDBOX_LABEL) or ""
    phase = (body.get("status") or {}).get("phase") or "Pending"
    if metadata.get("deletionTimestamp") or phase not in _LIVE_PHASES or not is_subdomain(name):
        return None
    return Sandbox(
        namespace=metadata["namespace"], name=name, uid=metadata["uid"], pod=metadata["name"], labels=labels
    )


def _shared(value: ParsedJson) -> ParsedJson:
    """The same with every short string held once in the process: thousands of objects say much the same."""
    try:
        return _interned(value)
    except RecursionError:
        return value


def _interned(value: ParsedJson) -> ParsedJson:
    if isinstance(value, str):
        return sys.intern(value) if len(value) <= _SHARED_CHARS else value
    if isinstance(value, dict):
        return {sys.intern(k): _interned(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_interned(v) for v in value]
    return value


def _as_it_is(value: JsonObject) -> JsonObject:
    return value


def _subject(kind: str, namespace: str | None, name: str) -> Subject:
    return Subject(
        kind=sys.intern(kind), namespace=sys.intern(namespace) if namespace else None, name=sys.intern(name)
    )


def _entry(value: ParsedJson) -> Entry:
    """An entry; one that many revisions have is one object."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return Entry.from_json(value)
    return _known_entry(text) if len(text) <= _SHARED_ENTRY_CHARS else Entry.from_json(value)


@lru_cache(maxsize=1024)
def _known_entry(text: str) -> Entry:
    value = json.loads(text)
    # Configs are alike where hosts are not.
    config = _known_config(json.dumps(value.pop("config")))
    return Entry.from_json({**_shared(value), "config": config})


@lru_cache(maxsize=1024)
def _known_config(text: str) -> ParsedJson:
    config: ParsedJson = _shared(json.loads(text))
    return config


@lru_cache(maxsize=256)
def _time(text: object) -> datetime:
    """RFC 3339 as the API server writes it; objects of one second share it.

    Raises:
        ValueError: it is none, or has no zone.
    """
    time = datetime.fromisoformat(str(text))
    if time.tzinfo is None:
        raise ValueError("a time without a zone")
    return time
