"""Our values, as the API server wants them. PURE: the inverse of `cluster_objects`, and the objects we publish."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.revision import pack
from supervisor_middleware.model.sandbox import API_VERSION, GROUP
from supervisor_middleware.model.snapshot import Kind, Stored, StoredRevision
from supervisor_middleware.model.violation import Subject

Body = dict[str, Any]

TRUST_BUNDLE: Final = "supervisor-middleware-trust"
TRUST_BUNDLE_KEY: Final = "ca.crt"
ROTATION_STATUS: Final = f"{GROUP}/rotation"
CONTROLLER: Final = f"{GROUP}/operator"

_LABELS: Final = {"app.kubernetes.io/managed-by": "supervisor-middleware"}
_MAX_NOTE_BYTES: Final = 1024  # events.k8s.io/v1 refuses a longer one
_MAX_REASON: Final = 128
_CLUSTER_EVENTS: Final = "default"  # where events about cluster-scoped objects are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What is said about an object; `weight` is Normal or Warning. Equal notices are one."""

    uid: str
    reason: str
    message: str
    weight: str


def revision_body(stored: StoredRevision) -> Body:
    """A PolicyRevision. It has no owner: what sandboxes run must not vanish with a policy, but after its grace."""
    revision = stored.revision
    return {
        "apiVersion": API_VERSION,
        "kind": Kind.POLICY_REVISION.value,
        "metadata": {"name": stored.name},
        "spec": {
            "policy": {
                "kind": revision.policy.kind,
                "namespace": revision.policy.namespace or "",
                "name": revision.policy.name,
                "uid": revision.uid,
                "generation": revision.generation,
                "createdAt": revision.created_at.isoformat(),
            },
            "epoch": stored.epoch,
            "revision": stored.number,
            "digest": stored.digest,
            "stages": len(revision.entries),
            "content": pack(revision.content()),
        },
    }


def status_body(stored: Stored, status: JsonObject) -> Body:
    """What replaces the status subresource; the API server takes nothing else of it."""
    metadata = {"name": stored.subject.name, "uid": stored.uid, "resourceVersion": stored.resource_version}
    if stored.subject.namespace:
        metadata["namespace"] = stored.subject.namespace
    return {
        "apiVersion": API_VERSION,
        "kind": stored.subject.kind,
        "metadata": metadata,
        "status": status,
    }


def trust_bundle_body(pem: bytes, *, namespace: str) -> Body:
    """The ConfigMap supervisors read the roots from before first contact."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": TRUST_BUNDLE, "namespace": namespace, "labels": _LABELS},
        "data": {TRUST_BUNDLE_KEY: pem.decode("ascii")},
    }


def tls_secret_body(name: str, *, namespace: str, parts: Mapping[str, bytes | None]) -> Body:
    """A `kubernetes.io/tls` Secret; parts that are None are not in it."""
    data = {part: value for part, value in encoded(parts).items() if value is not None}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": _LABELS},
        "type": "kubernetes.io/tls",
        "data": data,
    }


def encoded(parts: Mapping[str, bytes | None]) -> dict[str, str | None]:
    """A Secret's `data`, also of a patch: None removes."""
    return {part: None if v is None else base64.b64encode(v).decode("ascii") for part, v in parts.items()}


def decoded(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """The parts of a Secret.

    Raises:
        InvalidInput: a part is not what the API server serves.
    """
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in (secret.get("data") or {}).items()}
    except (TypeError, ValueError):
        raise InvalidInput("a part of it is not base64") from None


def ca_bundle_patch(configuration: Mapping[str, Any], pem: bytes) -> Body:
    """Server-side apply of `caBundle` in each webhook of a configuration, and of nothing else.

    The UID keeps the patch from making a new object when the configuration goes in between.
    """
    bundle = base64.b64encode(pem).decode("ascii")
    webhooks = configuration.get("webhooks") or ()
    metadata = configuration["metadata"]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
        "webhooks": [{"name": w["name"], "clientConfig": {"caBundle": bundle}} for w in webhooks],
    }


def event_namespace(subject: Subject) -> str:
    """Where events about `subject` are kept."""
    return subject.namespace or _CLUSTER_EVENTS


def event_body(subject: Subject, notice: Notice, *, instance: str, now: datetime) -> Body:
    """An `events.k8s.io/v1` Event that `kubectl describe` shows with the object."""
    time = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    regarding = {"apiVersion": API_VERSION, "kind": subject.kind, "name": subject.name, "uid": notice.uid}
    if subject.namespace:
        regarding["namespace"] = subject.namespace
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": subject.name[:200].rstrip(".-") + "-", "namespace": event_namespace(subject)},
        "eventTime": time,
        "regarding": regarding,
        "action": "Reconcile",
        "reason": notice.reason[:_MAX_REASON],
        "note": _cut(notice.message),
        "type": notice.weight,
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:_MAX_REASON],
    }


def _cut(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return text
    return encoded[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
