"""A world and a review out of a golden input, answered as the webhook answers.

world:
  registrations: {acme: {bindings: [acme/redactor], maxBodyBytes: 65536}}   # accepted, unless `pending: true`
  policies: {redaction: {spec: ..., daysOld: 1}}                               # accepted as they are
  baselines: {platform: {spec: ..., daysOld: 1}}                               # the same of the platform
  sandboxes: {coder: {app: x}, team-b/coder: {}}
  namespaces: {team-a: {tier: prod}}                                           # labels, in place of none
  verdicts: {acme/redactor: Accepted | {rejected: text} | DEADLINE_EXCEEDED}
  readyEndpoints: {acme: 1}
  unknown: [SupervisorMiddleware]
review: {operation: CREATE, object: {kind, metadata, spec}, oldObject: ...}
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.control.acceptances import acceptance_of
from supervisor_middleware.control.admission import decide_review, open_questions
from supervisor_middleware.control.decisions import decide_registry
from supervisor_middleware.control.reviews import parse_review, response
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from supervisor_middleware.model.verdict import Accepted, Outage, Rejected, Unreachable, Verdict
from supervisor_middleware.registry.catalog import Catalog
from tests.builders import (
    NAMESPACE,
    NAMESPACES,
    NOW,
    a_baseline,
    a_binding,
    a_connection,
    a_manifest,
    a_policy,
    a_registration,
    a_sandbox,
    an_accepted_registration,
    some_settings,
)

SETTINGS = some_settings()


def answer(case: Mapping[str, Any]) -> dict[str, Any]:
    """Who would be asked, and what the API server is told."""
    world = case.get("world", {})
    snapshot = read_world(world)
    review = parse_review(admission_review(case["review"]), now=NOW)
    acceptance = acceptance_of(snapshot)
    registry = decide_registry(snapshot, Catalog(), settings=SETTINGS, acceptance=acceptance)
    asked = open_questions(review, acceptance, registry=registry, verdicts={})
    verdicts = {q.key: _verdict(world.get("verdicts", {}).get(q.key.binding, "Accepted")) for q in asked}
    decision = decide_review(
        review, snapshot, acceptance=acceptance, registry=registry, verdicts=verdicts, settings=SETTINGS
    )
    return {"asked": [q.key.binding for q in asked], "response": response(review.uid, decision)["response"]}


def admission_review(review: Mapping[str, Any]) -> dict[str, Any]:
    """The whole `AdmissionReview` around what a case says of it."""
    of = review.get("object") or review.get("oldObject") or {}
    request = {
        "uid": "review-1",
        "kind": {"group": "middleware.openshell.io", "version": "v1alpha1", "kind": of.get("kind")},
        "namespace": of.get("metadata", {}).get("namespace"),
        "name": of.get("metadata", {}).get("name"),
        **review,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def read_world(world: Mapping[str, Any]) -> Snapshot:
    registrations = tuple(_registration(n, r or {}) for n, r in world.get("registrations", {}).items())
    snapshot = Snapshot(
        registrations=registrations,
        sandboxes=tuple(_sandbox(n, labels or {}) for n, labels in world.get("sandboxes", {}).items()),
        namespaces={**NAMESPACES, **world.get("namespaces", {})},
        ready_endpoints={f"https://{n}.svc:443": count for n, count in world.get("readyEndpoints", {}).items()},
        unknown=frozenset(world.get("unknown", ())),
    )
    pairs = tuple(_accepted((*_tenants(world), *_baselines(world)), snapshot))
    return replace(snapshot, policies=tuple(p for p, _ in pairs), revisions=tuple(r for _, r in pairs))


def _registration(name: str, fields: Mapping[str, Any]) -> Stored:
    endpoint = f"https://{name}.svc:443"
    stored = a_registration(name, grpcEndpoint=endpoint, maxBodyBytes=fields.get("maxBodyBytes", 65536))
    if fields.get("pending"):
        return stored
    bindings = [a_binding(b, max_body_bytes=fields.get("capability", 65536)) for b in fields["bindings"]]
    accepted = an_accepted_registration(
        name,
        manifest=a_manifest(*bindings),
        connection=a_connection(endpoint),
        max_body_bytes=fields.get("maxBodyBytes", 65536),
    )
    return replace(stored, status={"accepted": dict(accepted.to_json())})


def _sandbox(name: str, labels: Mapping[str, str]) -> Sandbox:
    namespace, _, own = name.rpartition("/")
    return a_sandbox(own, namespace=namespace or NAMESPACE, labels=labels)


def _tenants(world: Mapping[str, Any]) -> Iterator[Stored]:
    for name, fields in world.get("policies", {}).items():
        namespace = fields.get("namespace", NAMESPACE)
        yield a_policy(name, namespace=namespace, spec=fields["spec"], created_at=_created(fields))


def _baselines(world: Mapping[str, Any]) -> Iterator[Stored]:
    for name, fields in world.get("baselines", {}).items():
        yield replace(a_baseline(name, created_at=_created(fields)), spec=fields["spec"])


def _created(fields: Mapping[str, Any]) -> datetime:
    return NOW - timedelta(days=fields.get("daysOld", 1))


def _accepted(policies: Iterable[Stored], snapshot: Snapshot) -> Iterator[tuple[Stored, StoredRevision]]:
    acceptance = acceptance_of(snapshot)
    registry = decide_registry(snapshot, Catalog(), settings=SETTINGS, acceptance=acceptance)
    for stored in policies:
        yes = _SaysYes()
        compiled = compile_policy(stored, bindings=registry.bindings, verdicts=yes, settings=SETTINGS)
        assert compiled.revision is not None, compiled.report
        revision = StoredRevision(number=1, epoch=1, digest=compiled.revision.digest, revision=compiled.revision)
        yield replace(stored, status={"accepted": {"revision": 1, "epoch": 1, "digest": revision.digest}}), revision


class _SaysYes(dict[Any, Verdict]):
    def get(self, key: Any, default: Any = None) -> Verdict:
        return Accepted()


def _verdict(said: Any) -> Verdict:
    match said:
        case "Accepted":
            return Accepted()
        case {"rejected": reason}:
            return Rejected(reason)
        case _:
            return Unreachable(Outage[said])
