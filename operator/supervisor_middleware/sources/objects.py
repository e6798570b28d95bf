"""What the documents of a file mean. PURE: our kinds become items, the rest is skipped and counted.

A registration or policy is taken apart only as far as its identity; its spec stays as somebody typed it and is judged
by the compiler. A sandbox is a document of its own here, since there are no Pods:

    apiVersion: middleware.openshell.io/v1alpha1
    kind: Sandbox
    metadata: {name: coder, namespace: team-a, labels: {app: coder}}

(`name`, `namespace` and `labels` may also stand in `spec`, or beside `kind`.) A `v1` Namespace gives its labels, by
which a baseline selects it.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from supervisor_middleware.compiler.structure import parse, path_of
from supervisor_middleware.model.canonical import JsonValue, canonical
from supervisor_middleware.model.limits import MAX_OBJECT_BYTES
from supervisor_middleware.model.resources import SPECS, SandboxSpec
from supervisor_middleware.model.sandbox import API_VERSION, GROUP, Sandbox
from supervisor_middleware.model.snapshot import BundleKey, Kind
from supervisor_middleware.model.violation import Reason, Subject, Violation
from supervisor_middleware.pki.spiffe import is_label
from supervisor_middleware.sources.data_objects import BUNDLE_KINDS, bundles_of
from supervisor_middleware.sources.documents import Parsed
from supervisor_middleware.sources.places import Place, flattened
from supervisor_middleware.sources.problems import Problem

DEFAULT_NAMESPACE: Final = "default"

_NAMESPACED: Final[Mapping[str, bool]] = {
    Kind.SUPERVISOR_MIDDLEWARE.value: False,
    Kind.SANDBOX_POLICY.value: True,
    Kind.CLUSTER_SANDBOX_POLICY.value: False,
    Kind.SANDBOX.value: True,
    Kind.POLICY_REVISION.value: False,
}
_WRITTEN: Final = tuple(k for k in _NAMESPACED if k != Kind.POLICY_REVISION.value)
_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_SANDBOX_FIELDS: Final = ("name", "namespace", "labels")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# A UID becomes part of file names.
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_LABEL_RULE: Final = "must be at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
_MAX_NAME: Final = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A registration or policy. `uid` and `created_at` are those that were written, if any."""

    subject: Subject
    place: Place
    uid: str = ""
    created_at: datetime | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: JsonValue = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxItem:
    """A sandbox, and where it stands."""

    place: Place
    sandbox: Sandbox

    @property
    def subject(self) -> Subject:
        """The sandbox as the subject of a violation."""
        return Subject(kind=Kind.SANDBOX.value, namespace=self.sandbox.namespace, name=self.sandbox.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file means. `data` are its ConfigMaps and Secrets, of which `bundles` keeps certificates only."""

    items: tuple[Item, ...] = ()
    sandboxes: tuple[SandboxItem, ...] = ()
    bundles: Mapping[BundleKey, str] = field(default_factory=dict, repr=False)
    data: frozenset[tuple[str, str, str]] = frozenset()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    skipped: int = 0
    problems: tuple[Problem, ...] = ()
    advice: tuple[Problem, ...] = ()


def read_contents(parsed: Parsed) -> Contents:
    """Everything in a file, and everything wrong with it; what has a problem is not among the items."""
    reader = _Reader()
    for document in parsed.documents:
        for place, value in flattened(document):
            reader.take(place, value, is_large=document.size > MAX_OBJECT_BYTES)
    return Contents(
        items=tuple(reader.items),
        sandboxes=tuple(reader.sandboxes),
        bundles=reader.bundles,
        data=frozenset(reader.data),
        namespaces=reader.namespaces,
        skipped=reader.skipped,
        problems=(*parsed.problems, *reader.problems),
        advice=tuple(reader.advice),
    )


class _Reader:
    """Takes objects one by one."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.sandboxes: list[SandboxItem] = []
        self.bundles: dict[BundleKey, str] = {}
        self.data: list[tuple[str, str, str]] = []
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.skipped = 0
        self.problems: list[Problem] = []
        self.advice: list[Problem] = []

    def take(self, place: Place, value: JsonValue, *, is_large: bool) -> None:
        body: Mapping[str, Any] = value if isinstance(value, dict) else {}
        version, kind = body.get("apiVersion"), body.get("kind")
        kind = kind if isinstance(kind, str) else ""
        if not isinstance(version, str) and kind in _NAMESPACED:
            self._problem(place, "apiVersion", "is required", hint=f"add apiVersion: {API_VERSION}")
        elif version == "v1" and kind in BUNDLE_KINDS:
            self._bundles(kind, body)
        elif version == "v1" and kind == Kind.NAMESPACE.value:
            self._namespace(place, body)
        elif not isinstance(version, str) or version.partition("/")[0] != GROUP:
            self._foreign(place, version, kind)
        elif version != API_VERSION:
            self._problem(place, "apiVersion", f"is not a version there is; it must be {API_VERSION}")
        elif kind not in _NAMESPACED:
            self._problem(place, "kind", f"must be one of {', '.join(_WRITTEN)}", hint=_like(kind))
        elif kind == Kind.POLICY_REVISION.value:
            self.skipped += 1
            self._advise(place, "a PolicyRevision is written by the operator only; it is ignored here")
        elif is_large and (size := _size(body)) > MAX_OBJECT_BYTES:
            message = f"the object is {size} bytes, the limit is {MAX_OBJECT_BYTES}"
            self._problem(place, "", message, hint="keep large data in the services", reason=Reason.TOO_LARGE)
        else:
            self._ours(place, kind, body)

    def _ours(self, place: Place, kind: str, body: Mapping[str, Any]) -> None:
        before = len(self.problems)
        metadata = body.get("metadata", {})
        if kind == Kind.SANDBOX.value:
            self._sandbox(place, body)
            return
        for name in sorted(body.keys() - _FIELDS):
            hint = f"allowed: {', '.join(sorted(_FIELDS))}"
            self._problem(place, path_of((name,)), "is not a field here", hint=hint, reason=Reason.UNKNOWN_FIELD)
        if not isinstance(metadata, dict):
            self._problem(place, "metadata", "must be an object")
            return
        subject = self._subject(place, kind, metadata)
        created_at, annotations = metadata.get("creationTimestamp"), metadata.get("annotations") or {}
        self._strings(place, "annotations", annotations)
        self._strings(place, "labels", metadata.get("labels") or {})
        if subject is None or len(self.problems) > before:
            # It is no object that the compiler could be shown, and its author wants all mistakes at once.
            self._violations(place, parse(SPECS[kind], body.get("spec", {}), subject=Subject(kind=kind, name=""))[0])
            return
        self.items.append(
            Item(
                subject=subject,
                place=place,
                uid=uid if isinstance(uid := metadata.get("uid"), str) and _UID.fullmatch(uid) else "",
                created_at=_time(created_at),
                annotations={k: v for k, v in annotations.items() if k.startswith(f"{GROUP}/")},
                spec=body.get("spec", {}),
            )
        )

    def _sandbox(self, place: Place, body: Mapping[str, Any]) -> None:
        at = next((k for k in ("metadata", "spec") if isinstance(body.get(k), dict)), "")
        given = body[at] if at else {k: v for k, v in body.items() if k not in {"apiVersion", "kind"}}
        if at:
            given = {k: v for k, v in given.items() if v is not None and (k in _SANDBOX_FIELDS or at == "spec")}
        subject = Subject(kind=Kind.SANDBOX.value, name="")
        violations, _ = parse(SandboxSpec, given, subject=subject, at=(at,) if at else ())
        self._violations(place, violations)
        if violations or self._subject(place, Kind.SANDBOX.value, given, at=at) is None:
            return
        spec = SandboxSpec.model_validate(given)
        sandbox = Sandbox(namespace=spec.namespace, name=spec.name, labels=spec.labels)
        self.sandboxes.append(SandboxItem(place=place, sandbox=sandbox))

    def _subject(
        self, place: Place, kind: str, metadata: Mapping[str, Any], *, at: str = "metadata"
    ) -> Subject | None:
        prefix = f"{at}." if at else ""
        name, namespace = metadata.get("name"), metadata.get("namespace")
        is_named = isinstance(name, str) and len(name) <= _MAX_NAME and _SUBDOMAIN.fullmatch(name) is not None
        if name is None:
            self._problem(place, f"{prefix}name", "is required", hint="add a name", reason=Reason.MISSING_FIELD)
        elif not is_named:
            rule = f"must be at most {_MAX_NAME} of a-z, 0-9, - and ., beginning and ending with a letter or digit"
            self._misnamed(place, f"{prefix}name", name, rule)
        if not _NAMESPACED[kind]:
            return Subject(kind=kind, name=str(name)) if is_named else None
        namespace = DEFAULT_NAMESPACE if namespace is None else namespace
        if not isinstance(namespace, str) or not is_label(namespace):
            self._misnamed(place, f"{prefix}namespace", namespace, _LABEL_RULE)
            return None
        return Subject(kind=kind, namespace=namespace, name=str(name)) if is_named else None

    def _strings(self, place: Place, field_name: str, value: object) -> None:
        if not isinstance(value, dict):
            self._problem(place, f"metadata.{field_name}", "must be an object")
            return
        for key, text in value.items():
            if not isinstance(text, str):
                self._problem(place, path_of(("metadata", field_name, key)), "must be a string", hint="quote it")

    def _bundles(self, kind: str, body: Mapping[str, Any]) -> None:
        metadata = body.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(name, str):
            self.skipped += 1
            return
        namespace = str(metadata.get("namespace") or DEFAULT_NAMESPACE)
        self.data.append((kind, namespace, name))
        for key, pem in bundles_of(kind, body):
            self.bundles[BundleKey(kind, namespace, name, key)] = pem

    def _namespace(self, place: Place, body: Mapping[str, Any]) -> None:
        metadata = body.get("metadata")
        given: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
        name, labels, before = given.get("name"), given.get("labels") or {}, len(self.problems)
        if not isinstance(name, str) or not is_label(name):
            self._misnamed(place, "metadata.name", name, _LABEL_RULE)
        self._strings(place, "labels", labels)
        if len(self.problems) == before:
            self.namespaces[str(name)] = labels

    def _foreign(self, place: Place, version: object, kind: str) -> None:
        self.skipped += 1
        if kind in _NAMESPACED and isinstance(version, str) and kind != Kind.SANDBOX.value:
            self._advise(place, f"a {kind} of another apiVersion than {API_VERSION} is not ours and was skipped")

    def _misnamed(self, place: Place, path: str, name: object, rule: str) -> None:
        if isinstance(name, str):
            self._problem(place, path, rule, hint="use lower-case letters, digits and -")
        else:  # `name: n` is a boolean to YAML 1.1, and nobody who wrote it knows
            self._problem(place, path, "must be a string, and YAML reads it as something else", hint="quote it")

    def _violations(self, place: Place, violations: Iterable[Violation]) -> None:
        for violation in violations:
            self._problem(place, violation.path, violation.message, hint=violation.hint, reason=violation.reason)

    def _problem(
        self, place: Place, path: str, message: str, *, hint: str = "", reason: Reason = Reason.MALFORMED
    ) -> None:
        whole = ".".join(p for p in (place.within, path) if p)
        self.problems.append(Problem(line=place.line, reason=reason, message=message, hint=hint, path=whole))

    def _advise(self, place: Place, message: str) -> None:
        self.advice.append(Problem(line=place.line, message=message, path=place.within))


def _like(kind: str) -> str:
    close = difflib.get_close_matches(kind[:_MAX_NAME], _WRITTEN, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _size(body: Mapping[str, Any]) -> int:
    try:
        return len(canonical(body))
    except ValueError:
        return 0  # the compiler says what is wrong with the number


def _time(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
