"""What a folder held when it was last readable, and how often each spec has changed. PURE values, kept as JSON.

This is what makes last-known-good outlive a restart: a file that cannot be read takes nothing from anybody. Of
ConfigMaps and Secrets only certificates are kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Self

from supervisor_middleware.model.canonical import JsonObject, ParsedJson, canonical, digest
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import BundleKey
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.objects import Contents, Item, SandboxItem
from supervisor_middleware.sources.places import Place

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the API server would have given an object. `generation` grows whenever the spec changes."""

    generation: int
    spec_digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Files by name with what they held when they were last readable, and objects by UID."""

    files: Mapping[str, Contents] = field(default_factory=dict)
    identities: Mapping[str, Identity] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """The form kept on disk."""
        return {
            "schemaVersion": SCHEMA_VERSION,
            "files": {name: _contents_to_json(c) for name, c in self.files.items()},
            "identities": {
                uid: {"generation": i.generation, "spec": i.spec_digest, "createdAt": i.created_at.isoformat()}
                for uid, i in self.identities.items()
            },
        }

    @classmethod
    def from_json(cls, value: ParsedJson) -> Self:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        if value["schemaVersion"] != SCHEMA_VERSION:
            raise ValueError("an unknown schemaVersion")
        return cls(
            files={str(name): _contents_from_json(c) for name, c in value["files"].items()},
            identities={
                str(uid): Identity(
                    generation=int(i["generation"]),
                    spec_digest=str(i["spec"]),
                    created_at=datetime.fromisoformat(i["createdAt"]),
                )
                for uid, i in value["identities"].items()
            },
        )


def identify(
    specs: Iterable[tuple[str, Item]], known: Mapping[str, Identity], *, now: datetime
) -> dict[str, Identity]:
    """Each UID's identity after this reading: unknown ones are new, changed ones a generation older."""
    found: dict[str, Identity] = {}
    for uid, item in specs:
        spec_digest = _digest_of(item)
        before = known.get(uid)
        if before is None:
            identity = Identity(generation=1, spec_digest=spec_digest, created_at=item.created_at or now)
        elif before.spec_digest != spec_digest:
            identity = replace(before, generation=before.generation + 1, spec_digest=spec_digest)
        else:
            identity = before
        found[uid] = identity if item.created_at is None else replace(identity, created_at=item.created_at)
    return found


def _digest_of(item: Item) -> str:
    try:
        return digest(canonical(item.spec))
    except ValueError:
        # Numbers that no double holds: the compiler refuses them, but every edit must still be seen.
        return digest(repr(item.spec).encode("utf-8", "replace"))


def _contents_to_json(contents: Contents) -> JsonObject:
    return {
        "items": [_item_to_json(i) for i in contents.items],
        "sandboxes": [
            {
                "place": _place_to_json(s.place),
                "namespace": s.sandbox.namespace,
                "name": s.sandbox.name,
                "labels": dict(s.sandbox.labels),
            }
            for s in contents.sandboxes
        ],
        "bundles": [[k.kind, k.namespace, k.name, k.key, pem] for k, pem in contents.bundles.items()],
        "data": [list(d) for d in sorted(contents.data)],
        "namespaces": {name: dict(labels) for name, labels in contents.namespaces.items()},
        "skipped": contents.skipped,
    }


def _contents_from_json(value: ParsedJson) -> Contents:
    return Contents(
        items=tuple(_item_from_json(i) for i in value["items"]),
        sandboxes=tuple(
            SandboxItem(
                place=_place_from_json(s["place"]),
                sandbox=Sandbox(namespace=str(s["namespace"]), name=str(s["name"]), labels=dict(s["labels"])),
            )
            for s in value["sandboxes"]
        ),
        bundles={BundleKey(*map(str, key)): str(pem) for *key, pem in value["bundles"]},
        data=frozenset((str(k), str(ns), str(name)) for k, ns, name in value["data"]),
        # Absent in what an earlier release remembered.
        namespaces={str(n): {str(k): str(v) for k, v in of.items()} for n, of in value.get("namespaces", {}).items()},
        skipped=int(value["skipped"]),
    )


def _item_to_json(item: Item) -> JsonObject:
    return {
        "kind": item.subject.kind,
        "namespace": item.subject.namespace,
        "name": item.subject.name,
        "place": _place_to_json(item.place),
        "uid": item.uid,
        "createdAt": None if item.created_at is None else item.created_at.isoformat(),
        "annotations": dict(item.annotations),
        "spec": item.spec,
    }


def _item_from_json(value: ParsedJson) -> Item:
    created_at = value["createdAt"]
    return Item(
        subject=Subject(kind=str(value["kind"]), namespace=value["namespace"], name=str(value["name"])),
        place=_place_from_json(value["place"]),
        uid=str(value["uid"]),
        created_at=None if created_at is None else datetime.fromisoformat(created_at),
        annotations={str(k): str(v) for k, v in value["annotations"].items()},
        spec=value["spec"],
    )


def _place_to_json(place: Place) -> JsonObject:
    return {"line": place.line, "within": place.within}


def _place_from_json(value: ParsedJson) -> Place:
    return Place(line=int(value["line"]), within=str(value["within"]))
