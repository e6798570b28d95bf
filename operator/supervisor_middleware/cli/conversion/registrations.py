"""Gateway TOML `[[openshell.supervisor.middleware]]` to SupervisorMiddleware and back. PURE.

RFC 0009 "Registration and delivery", and the keys a released gateway reads. What a registration cannot hold but the
TOML can (a path on the gateway's machine, an audience) is kept in annotations, so that the way back loses nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from supervisor_middleware.cli.conversion.names import slug
from supervisor_middleware.cli.conversion.remarks import Notes, Remark, taken
from supervisor_middleware.cli.conversion.resources import about_metadata, name_of, set_fields
from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.identifiers import BINDING_ID_RULE, is_binding_id
from supervisor_middleware.model.sandbox import API_VERSION, GROUP

KIND: Final = "SupervisorMiddleware"
AT: Final = ("openshell", "supervisor", "middleware")
CA_PATH: Final = "tls_ca_cert_path"
AUDIENCE: Final = "audience"
ANNOTATIONS: Final[Mapping[str, str]] = {
    CA_PATH: f"{GROUP}/tls-ca-cert-path",
    AUDIENCE: f"{GROUP}/audience",
}
"""TOML key -> the annotation that keeps it."""

_FIELDS: Final[Mapping[str, tuple[str, type]]] = {
    "grpc_endpoint": ("grpcEndpoint", str),
    "max_body_bytes": ("maxBodyBytes", int),
    "timeout": ("timeout", str),
    "allow_insecure": ("allowInsecure", bool),
}
_SPELLINGS: Final[Mapping[str, str]] = {
    "max_payload_bytes": "max_body_bytes",
    "allow_insecure_transport": "allow_insecure",
}
"""A released gateway's key -> the RFC's."""

_INSECURE: Final = "has no meaning on https://, where allowInsecure is refused: verification is never skipped"
_CA_UNREAD: Final = "names a file that could not be read here as certificates: set spec.tls.caBundle or caBundleRef"
_CA_KEPT: Final = "the bundle itself is spec.tls.caBundle now; the path is kept in an annotation"
_AUDIENCE_KEPT: Final = "is kept in an annotation and has no effect yet: callers prove themselves by mutual TLS"


def from_toml(
    config: JsonObject, *, file: str, bundles: Mapping[str, str], used: set[str]
) -> tuple[tuple[JsonObject, ...], tuple[Remark, ...]]:
    """Every entry as a resource.

    `bundles` is PEM by the path an entry names, of those that could be read; `used` holds the names given so far.
    """
    notes = Notes(file)
    entries = _entries(config, notes)
    documents = tuple(
        _resource(entry, at=(*AT, number), used=used, bundles=bundles, notes=notes)
        for number, entry in enumerate(entries)
        if taken(entry, dict, at=(*AT, number), notes=notes) and isinstance(entry, Mapping)
    )
    return documents, tuple(notes.remarks)


def bundle_paths(config: JsonObject) -> tuple[str, ...]:
    """The files of certificates that the entries name."""
    entries = (e for e in _entries(config, Notes("")) if isinstance(e, Mapping))
    return tuple(path for e in entries if isinstance(path := e.get(CA_PATH), str) and path)


def _entries(config: JsonObject, notes: Notes) -> Iterable[JsonValue]:
    """The list at `openshell.supervisor.middleware`; the rest of a gateway's configuration stays where it is."""
    inner: JsonValue = config
    for depth, key in enumerate(AT):
        if not isinstance(inner, Mapping):
            notes.lost(AT[:depth], "must be a table")
            return ()
        for other in (k for k in inner if k != key):
            notes.skipped((*AT[:depth], other), "is no registration; it stays in the gateway's configuration")
        inner = inner.get(key, [] if depth == len(AT) - 1 else {})
    if not taken(inner, list, at=AT, notes=notes) or not isinstance(inner, list):
        return ()
    return inner


def _resource(
    entry: JsonObject, *, at: tuple[str | int, ...], used: set[str], bundles: Mapping[str, str], notes: Notes
) -> JsonObject:
    metadata, named = _names(entry.get("name"), at=at, used=used, notes=notes)
    annotations, tls = _kept(entry, at=at, bundles=bundles, notes=notes)
    fields = _fields(entry, at=at, notes=notes)
    if annotations:
        metadata["annotations"] = annotations
    spec = {**named, **fields, **({"tls": tls} if tls else {})}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _names(
    given: JsonValue, *, at: tuple[str | int, ...], used: set[str], notes: Notes
) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Metadata, and what the spec says of the name. A diagnostic name need not be a Kubernetes name."""
    known = isinstance(given, str)
    name = given if isinstance(given, str) else ""
    chosen = slug(name, taken=used, otherwise="middleware")
    used.add(chosen)
    if not known:
        notes.lost((*at, "name"), f"must be a string; metadata.name is {chosen}")
    elif not is_binding_id(name):
        notes.lost((*at, "name"), f"must be {BINDING_ID_RULE}; metadata.name is {chosen}")
    elif chosen != name:
        notes.changed((*at, "name"), "is no Kubernetes name: spec.registrationName has it, metadata.name a like one")
        return {"name": chosen}, {"registrationName": name}
    return {"name": chosen}, {}


def _fields(entry: JsonObject, *, at: tuple[str | int, ...], notes: Notes) -> dict[str, JsonValue]:
    spec: dict[str, JsonValue] = {}
    for key, value in entry.items():
        spelled = _SPELLINGS.get(key, key)
        if spelled not in _FIELDS:
            if key != "name" and key not in ANNOTATIONS:
                notes.lost((*at, key), "is not a key of a registration")
            continue
        field, kind = _FIELDS[spelled]
        if field in spec:
            notes.lost((*at, key), f"is another spelling of {field}, which is set already")
        elif taken(value, kind, at=(*at, key), notes=notes):
            spec[field] = value
    if spec.get("allowInsecure") is True and str(spec.get("grpcEndpoint", "")).startswith("https://"):
        del spec["allowInsecure"]
        notes.lost((*at, "allow_insecure"), _INSECURE)
    return spec


def _kept(
    entry: JsonObject, *, at: tuple[str | int, ...], bundles: Mapping[str, str], notes: Notes
) -> tuple[dict[str, JsonValue], JsonObject]:
    """Annotations for the way back, and `tls` where the bundle is known."""
    annotations: dict[str, JsonValue] = {}
    tls: JsonObject = {}
    for key, annotation in ANNOTATIONS.items():
        value = entry.get(key, "")
        # RFC and gateway alike: an empty audience means the default.
        if value == "" or not taken(value, str, at=(*at, key), notes=notes):
            continue
        annotations[annotation] = value
        if key == AUDIENCE:
            notes.changed((*at, key), _AUDIENCE_KEPT)
        elif (pem := bundles.get(str(value))) is not None:
            tls = {"caBundle": pem}
            notes.changed((*at, key), _CA_KEPT)
        else:
            notes.lost((*at, key), _CA_UNREAD)
    return annotations, tls


# -------------------------------------------------------------------------------------------------------- and back

_TOML_KEYS: Final[Mapping[str, str]] = {field: key for key, (field, _) in _FIELDS.items()}
_TLS_LOST: Final[Mapping[str, str]] = {
    "caBundle": "TOML names a file: write the bundle into one and set tls_ca_cert_path",
    "caBundleRef": "TOML names a file, no ConfigMap or Secret: write the bundle into one and set tls_ca_cert_path",
    "serverName": "TOML has no name to verify: the endpoint's host is verified",
}
_LOST: Final[Mapping[str, str]] = {
    "clientAuthentication": "TOML cannot say how callers prove themselves",
    "bindings": "TOML cannot say which bindings the service may expose",
}
_INSECURE_KEY: Final = (
    "is written as allow_insecure, as RFC 0009 has it; a released gateway: allow_insecure_transport"
)


def to_toml_entry(document: JsonObject, *, subject: str) -> tuple[JsonObject, tuple[Remark, ...]]:
    """One `[[openshell.supervisor.middleware]]` of a registration."""
    notes = Notes(subject)
    annotations = about_metadata(document, held=frozenset(ANNOTATIONS.values()), notes=notes)
    entry: dict[str, JsonValue] = {"name": name_of(document)}
    entry.update({key: annotations[a] for key, a in ANNOTATIONS.items() if a in annotations})
    for field, value in set_fields(document.get("spec")):
        _take(field, value, entry=entry, notes=notes)
    return entry, tuple(notes.remarks)


def _take(field: str, value: JsonValue, *, entry: dict[str, JsonValue], notes: Notes) -> None:
    at = ("spec", field)
    if field == "registrationName":
        if taken(value, str, at=at, notes=notes):
            entry["name"] = value
    elif field in _TOML_KEYS:
        key = _TOML_KEYS[field]
        if taken(value, _FIELDS[key][1], at=at, notes=notes):
            entry[key] = value
            if value is True:
                notes.changed(at, _INSECURE_KEY)
    elif field == "tls":
        _tls(value, has_path=CA_PATH in entry, notes=notes)
    else:
        notes.lost(at, _LOST.get(field, "is not a field of a registration"))


def _tls(tls: JsonValue, *, has_path: bool, notes: Notes) -> None:
    for key, _ in set_fields(tls):
        at = ("spec", "tls", key)
        if key == "caBundle" and has_path:
            notes.changed(at, "is not in TOML: the file that tls_ca_cert_path names must hold it")
        else:
            notes.lost(at, _TLS_LOST.get(key, "is not a field of tls"))
