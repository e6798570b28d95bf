"""OpenShell policy YAML to SandboxPolicy and back. PURE.

RFC 0009 "Policy integration": `network_middlewares` by stable key. `network_policies` pass through as written. The
file names no sandbox and no namespace: OpenShell assigns it, a resource selects.
"""

from collections.abc import Mapping
from typing import Final

from supervisor_middleware.cli.conversion.names import slug
from supervisor_middleware.cli.conversion.remarks import Notes, Remark, taken
from supervisor_middleware.cli.conversion.resources import about_metadata, set_fields
from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.identifiers import is_policy_key
from supervisor_middleware.model.sandbox import API_VERSION

KIND: Final = "SandboxPolicy"
BASELINE: Final = "ClusterSandboxPolicy"
VERSION: Final = 1
MARKS: Final = frozenset({"network_middlewares", "network_policies", "filesystem_policy", "landlock", "process"})
"""Fields by which a document is known as a policy of OpenShell."""

_ENTRY: Final[Mapping[str, str]] = {
    "name": "name",
    "middleware": "middleware",
    "order": "order",
    "config": "config",
    "on_error": "onError",
    "endpoints": "endpoints",
}
_ON_ERROR: Final[Mapping[str, str]] = {"fail_closed": "FailClosed", "fail_open": "FailOpen"}
_SELECTS_ALL: Final = "is new: {} selects every sandbox of the namespace, where OpenShell assigned the policy"
_STAYS: Final = "is not a matter of middleware: SandboxPolicy does not hold it, keep it in OpenShell's policy"


def from_policy(policy: JsonObject, *, file: str, name: str, namespace: str) -> tuple[JsonObject, tuple[Remark, ...]]:
    """The resource; without a namespace if none is given, as `kubectl -n` then says it."""
    notes = Notes(file)
    spec: dict[str, JsonValue] = {"sandboxSelector": {}}
    notes.changed(("spec", "sandboxSelector"), _SELECTS_ALL)
    for field, value in policy.items():
        if field == "network_middlewares":
            if taken(value, dict, at=(field,), notes=notes) and isinstance(value, Mapping):
                spec["networkMiddlewares"] = _middlewares(value, notes)
        elif field == "network_policies":
            if taken(value, dict, at=(field,), notes=notes):
                spec["networkPolicies"] = value
        elif field == "version":
            if value != VERSION:
                notes.lost((field,), f"is another version than {VERSION}, the one known here")
        else:
            notes.lost((field,), _STAYS if field in MARKS else "is not a field of a policy")
    metadata: JsonObject = {"name": name, **({"namespace": namespace} if namespace else {})}
    document: JsonObject = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    return document, tuple(notes.remarks)


def _middlewares(entries: JsonObject, notes: Notes) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    # Keys that are right keep their name whatever stands before them.
    right = {key for key in entries if is_policy_key(key)}
    for key, entry in entries.items():
        at = ("network_middlewares", key)
        if not taken(entry, dict, at=at, notes=notes) or not isinstance(entry, Mapping):
            continue
        chosen, extra = key, {}
        if key not in right:
            chosen = slug(key, taken=right | found.keys(), otherwise="middleware")
            extra = {"name": key} if key and not entry.get("name") else {}
            notes.changed(at, f"is no valid key: it is {chosen} now, also in metadata and audit")
        found[chosen] = {**extra, **_entry(entry, at=at, notes=notes)}
    return found


def _entry(entry: JsonObject, *, at: tuple[str, ...], notes: Notes) -> dict[str, JsonValue]:
    result: dict[str, JsonValue] = {}
    for field, value in entry.items():
        if field not in _ENTRY:
            notes.lost((*at, field), "is not a field of a middleware config")
        elif field != "on_error":
            result[_ENTRY[field]] = value
        elif isinstance(value, str) and value in _ON_ERROR:
            result["onError"] = _ON_ERROR[value]
        elif value != "":  # empty means the default
            notes.lost((*at, field), f"must be {' or '.join(_ON_ERROR)}")
    return result


# -------------------------------------------------------------------------------------------------------- and back

_FIELDS: Final[Mapping[str, str]] = {field: key for key, field in _ENTRY.items()}
_WORDS: Final[Mapping[str, str]] = {word: text for text, word in _ON_ERROR.items()}
_LOST: Final[Mapping[str, str]] = {
    "sandboxSelector": "a policy file selects nothing: assign it to those sandboxes",
    "namespaceSelector": "a policy file selects nothing, and OpenShell has no baseline",
    "position": "OpenShell has no baseline: give its configs lower or higher orders than the policy's",
    "activationDeadline": "OpenShell waits for a new service without end",
}


def to_policy(document: JsonObject, *, subject: str) -> tuple[JsonObject, tuple[Remark, ...]]:
    """The policy file of a SandboxPolicy or ClusterSandboxPolicy."""
    notes = Notes(subject)
    about_metadata(document, held=frozenset(), notes=notes)
    policy: dict[str, JsonValue] = {"version": VERSION}
    for field, value in set_fields(document.get("spec")):
        at = ("spec", field)
        if field == "networkMiddlewares":
            if taken(value, dict, at=at, notes=notes) and isinstance(value, Mapping):
                policy["network_middlewares"] = _entries_back(value, notes)
        elif field == "networkPolicies":
            if taken(value, dict, at=at, notes=notes):
                policy["network_policies"] = value
        elif field != "sandboxSelector" or value != {}:
            notes.lost(at, _LOST.get(field, "is not a field of a policy"))
    return policy, tuple(notes.remarks)


def _entries_back(entries: JsonObject, notes: Notes) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for key, entry in entries.items():
        at = ("spec", "networkMiddlewares", key)
        if taken(entry, dict, at=at, notes=notes) and isinstance(entry, Mapping):
            found[key] = _entry_back(entry, at=at, notes=notes)
    return found


def _entry_back(entry: JsonObject, *, at: tuple[str, ...], notes: Notes) -> dict[str, JsonValue]:
    result: dict[str, JsonValue] = {}
    for field, value in set_fields(entry):
        if field not in _FIELDS:
            notes.lost((*at, field), "is not a field of a middleware config")
        elif field != "onError":
            result[_FIELDS[field]] = value
        elif isinstance(value, str) and value in _WORDS:
            result["on_error"] = _WORDS[value]
        else:
            notes.lost((*at, field), f"must be {' or '.join(_WORDS)}")
    return result
