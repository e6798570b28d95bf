"""What every resource of ours has, as conversion reads it: a name, metadata, fields that are set. PURE."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from supervisor_middleware.cli.conversion.remarks import Notes
from supervisor_middleware.model.canonical import JsonObject, JsonValue

# Nobody writes these: the API server and kubectl do.
_WRITTEN_BY_SERVERS: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"}
)
_WRITTEN_BY_KUBECTL: Final = "kubectl.kubernetes.io/last-applied-configuration"
_HAS_NO_METADATA: Final = "the other form has no place for it"


def name_of(document: JsonObject) -> str:
    """`metadata.name`, or nothing."""
    name = _object(document.get("metadata")).get("name")
    return name if isinstance(name, str) else ""


def subject_of(document: JsonObject) -> str:
    """Kind, namespace and name, for people."""
    namespace = _object(document.get("metadata")).get("namespace")
    text = f"{document.get('kind')} {f'{namespace}/' if isinstance(namespace, str) else ''}{name_of(document)}"
    return "".join(c if c.isprintable() else "?" for c in text)


def set_fields(value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """The fields of an object; one that is null is not set, as for the API server."""
    yield from ((key, inner) for key, inner in _object(value).items() if inner is not None)


def about_metadata(document: JsonObject, *, held: AbstractSet[str], notes: Notes) -> Mapping[str, str]:
    """The annotations in `held`; what else people wrote into metadata, except the name, is lost."""
    annotations: dict[str, str] = {}
    for field, value in set_fields(document.get("metadata")):
        if field == "annotations":
            for key, text in set_fields(value):
                if key in held and isinstance(text, str):
                    annotations[key] = text
                elif key != _WRITTEN_BY_KUBECTL:
                    notes.lost(("metadata", field, key), _HAS_NO_METADATA)
        elif field == "namespace":
            notes.changed(("metadata", field), f"{_HAS_NO_METADATA}: name it with --namespace on the way back")
        elif field != "name" and field not in _WRITTEN_BY_SERVERS:
            notes.lost(("metadata", field), _HAS_NO_METADATA)
    return annotations


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, Mapping) else {}
